"""What people browse, on every engine: pages of images, folders, words; as in a gallery."""

import math
import os
from collections import Counter
from typing import Any

import pytest

from bm25v import Gallery
from bm25v.store.base import Filter
from bm25v.store.filters import ImageFilter
from bm25v.store.qdrant.store import QdrantStore
from bm25v.store.records import ImageRecord, to_gallery_image
from tests import test_engines
from tests.test_engines import (
    FILES,
    FILTERS,
    FULL_BAGS,
    INDEX_BAGS,
    N_IMAGES,
    PATHS,
    Opened,
    assert_close,
)

pytestmark = test_engines.pytestmark
source, opened, qdrant = test_engines.source, test_engines.opened, test_engines.qdrant

OF_IMAGES = ("folder", "folders", "file", "pattern", "long pattern", "size", "date", "range")


def page_of(collection: Gallery, images: ImageFilter, offset: int, limit: int) -> list[ImageRecord]:
    return collection.store.read(lambda view: view.page(images, offset, limit))


@pytest.mark.parametrize("name", [None, *OF_IMAGES])
def test_pages_have_every_selected_image_once(opened: Opened, name: str | None) -> None:
    options, allows = FILTERS[name] if name else ({}, lambda path: True)
    images = ImageFilter.of(**options)
    expected = sorted(filter(allows, PATHS))
    pages = [page_of(opened.collection, images, offset, 64) for offset in range(0, N_IMAGES, 64)]
    records = [record for page in pages for record in page]
    assert sorted(record.path for record in records) == expected
    assert opened.collection.store.read(lambda view: view.count(Filter(images))) == len(expected)
    again = page_of(opened.collection, images, 0, N_IMAGES)
    assert [record.path for record in again] == [record.path for record in records]
    for record in records:
        file = FILES[record.path]
        assert record[1:5] == file[:4]
        assert record.metadata == file.metadata
    assert page_of(opened.collection, images, 10**9, 5) == []
    assert page_of(opened.collection, images, 0, 0) == []


@pytest.mark.parametrize("word", [None, 3, 150])
def test_folders_have_the_images_in_them_and_below(opened: Opened, word: int | None) -> None:
    paths = [path for path in PATHS if word is None or word in FULL_BAGS[path]]
    condition = Filter(must=() if word is None else ((word,),))
    counts = opened.collection.store.read(lambda view: view.count_by("folder", condition))
    years = Counter(os.path.dirname(path) for path in paths)
    assert counts == {"": len(paths), "/photos": len(paths), **years}


def test_months_have_the_images_of_their_dates(opened: Opened) -> None:
    months = opened.collection.store.read(lambda view: view.count_by("month", Filter()))
    records = opened.collection.store.read(
        lambda view: view.page(ImageFilter(), 0, N_IMAGES, newest_first=True)
    )
    assert sorted(record.path for record in records) == sorted(PATHS)
    if isinstance(opened.collection.store, QdrantStore):
        assert months == {}
        return
    dates = [to_gallery_image(record).date for record in records]
    assert dates == sorted(dates, reverse=True)
    assert len(months) > 1
    assert dict(months) == Counter(f"{date:%Y-%m}" for date in dates)
    assert [*months] == sorted(months, reverse=True)


def test_images_of_words_are_those_of_the_gallery(opened: Opened, source: Gallery) -> None:
    words = list(range(0, 192, 5))

    def find(collection: Gallery) -> dict[int, list[str]]:
        images, rows_by_word = collection.store.read(lambda view: view.find_examples(words, 40, 40))
        return {word: images.paths(rows) for word, rows in rows_by_word.items()}

    own, expected = find(opened.collection), find(source)
    n_rare = 0
    for word in words:
        having = [path for path in PATHS if word in FULL_BAGS[path]]
        assert set(own[word]) <= set(having)
        n_in_index = sum(word in bag for bag in INDEX_BAGS.values())
        is_all = len(having) <= 40
        n_compared = 40 if is_all else min(n_in_index, 36)  # of the last ones, some are copies
        assert own[word][:n_compared] == expected[word][:n_compared]
        n_rare += is_all and n_in_index < len(having)
    assert n_rare, "some words are looked up in full bags"


@pytest.mark.parametrize("sort", ["word", "df", "idf"])
def test_words_are_listed_as_in_the_gallery(opened: Opened, source: Gallery, sort: Any) -> None:
    own = opened.collection.words(sort=sort, offset=5, limit=150, best=2)
    expected = source.words(sort=sort, offset=5, limit=150, best=2)
    assert [(w.word, w.name, w.df) for w in own] == [(w.word, w.name, w.df) for w in expected]
    assert [w.idf for w in own] == pytest.approx([w.idf for w in expected])
    for word, other in zip(own, expected, strict=True):
        assert len(word.best) == 2
        if word.df <= 24:
            assert_close(word.best, other.best)
    assert opened.collection.info().words_in_use == len(source.words())


def test_a_word_is_described_as_in_the_gallery(opened: Opened, source: Gallery) -> None:
    for number in (0, 7, 190):
        own, expected = opened.collection.word(number), source.word(number)
        assert_close(vars(own.facts), vars(expected.facts))
        assert_close(own.images, expected.images)
        assert_close(own.companions, expected.companions)
        assert_close(own.folders, expected.folders)
        assert_close([own.n, own.purity], [expected.n, expected.purity])


def test_facts_are_those_of_the_gallery_but_for_bytes(qdrant: Opened, source: Gallery) -> None:
    own, expected = qdrant.collection.info().to_dict(), source.info().to_dict()
    assert own.pop("path") == qdrant.collection.location
    del expected["path"]
    for key in [key for key in expected if key.endswith("bytes_per_image")]:
        del expected[key]
        assert math.isnan(own.pop(key)), "not known"
    assert_close(own, expected)
