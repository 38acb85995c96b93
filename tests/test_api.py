"""The methods of `Gallery` that compose other packages: queries, matches, words and names."""

import os
from pathlib import Path
from typing import Any

import pytest

from bm25v import Query
from bm25v.api import Gallery
from bm25v.errors import WrongUse
from bm25v.search import Results
from tests.conftest import make_image, make_pixels


def values(results: Results) -> tuple[object, ...]:
    """Return everything but the times."""
    return (
        results.mode,
        results.hits,
        results.query,
        results.no_match,
        results.notes,
        results.sparse_factor,
    )


def any_word(gallery: Gallery) -> int:
    return max(gallery.words(), key=lambda word: word.df).word


OPTIONS: list[dict[str, Any]] = [
    {},
    {"k": 3, "mode": "sparse"},
    {"mode": "hybrid", "candidates": 4, "query_words": 30},
    {"region": (0, 0, 0.5, 1), "min_coverage": 0.1},
    {"like": "photos/1.png", "unlike": "photos/2.png", "negative": make_pixels(5)},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ", ".join(options) or "none")
def test_a_query_object_and_keyword_options_search_alike(
    gallery: Gallery, photos: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos.parent)
    image = photos / "3.png"
    by_options = gallery.search(image, **options)
    assert by_options.hits
    query = Query.of(image, **options)
    assert values(gallery.search(query)) == values(by_options)
    (results,) = gallery.search_many([query])
    assert values(results) == values(by_options)
    (results,) = gallery.search_many([image], **options)
    assert values(results) == values(by_options)
    path = by_options[-1].path
    assert gallery.match(query, path) == gallery.match(image, path, **options)
    assert (
        gallery.explain(query, path).to_dict() == gallery.explain(image, path, **options).to_dict()
    )


def test_options_beside_a_query_object_raise_wrong_use(gallery: Gallery, photos: Path) -> None:
    query, path = Query.of(photos / "3.png"), photos / "3.png"
    for call in (
        lambda: gallery.search(query, k=3, mode="sparse"),
        lambda: gallery.match(query, path, k=3, mode="sparse"),
        lambda: gallery.explain(query, path, k=3, mode="sparse"),
    ):
        with pytest.raises(WrongUse, match="k, mode beside a Query: set them in the Query"):
            call()


def test_an_encoding_stands_for_exactly_one_query_image(gallery: Gallery, photos: Path) -> None:
    image, path = photos / "3.png", photos / "4.png"
    encoding = gallery.vocabulary.encode(image)
    explanation = gallery.explain(image, path, encoding=encoding)
    assert explanation.to_dict() == gallery.explain(image, path).to_dict()
    with pytest.raises(WrongUse, match="an encoding with 2 images: it needs exactly one"):
        gallery.explain([image, image], path, encoding=encoding)
    with pytest.raises(WrongUse, match="an encoding with 0 images"):
        gallery.explain(None, path, must=any_word(gallery), encoding=encoding)


def test_search_many_takes_images_with_options_and_queries_with_their_own(
    gallery: Gallery, photos: Path
) -> None:
    image, encoding = photos / "1.png", gallery.vocabulary.encode(photos / "2.png")
    query = Query.of(photos / "3.png", k=2, mode="dense")
    mixed = gallery.search_many([image, query, make_pixels(4), encoding], k=4, mode="sparse")
    expected = [
        gallery.search(image, k=4, mode="sparse"),
        gallery.search(query),
        gallery.search(make_pixels(4), k=4, mode="sparse"),
        gallery.search(photos / "2.png", k=4, mode="sparse"),
    ]
    assert list(map(values, mixed)) == list(map(values, expected))
    assert gallery.search_many([]) == []
    many = gallery.search_many([photos / f"{n}.png" for n in range(12)] * 3, k=2)
    assert [Path(results[0].path).name for results in many] == [f"{n}.png" for n in range(12)] * 3


def test_a_match_has_the_values_of_the_hit(
    gallery: Gallery, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos)
    word = any_word(gallery)
    hits = {hit.path: hit for hit in gallery.search(photos / "3.png", k=12, boost={word: 2.0})}
    assert 1 < len(hits) <= 12
    for path, hit in hits.items():
        for same_path in (path, Path(path), os.path.relpath(path)):
            match = gallery.match(photos / "3.png", same_path, boost={word: 2.0})
            assert {name: getattr(hit, name) for name in vars(match)} == vars(match)
    no_words = gallery.match(photos / "3.png", photos / "4.png", boost=dict.fromkeys(range(192), 0))
    assert (no_words.sparse, no_words.words, no_words.coverage) == (0.0, (), 0.0)
    by_words = gallery.match(None, photos / "4.png", must=word)
    assert by_words.dense is None


def test_a_match_needs_no_filter_to_be_passed(gallery: Gallery, photos: Path) -> None:
    """It compares the image even if a search would leave it out."""
    word = gallery.search(photos / "3.png")[0].words[0].word
    without = gallery.match(photos / "3.png", photos / "3.png", without=word)
    assert word not in {part.word for part in without.words}
    assert without.coverage == pytest.approx(1)


def test_a_word_has_the_images_that_a_search_for_it_finds(gallery: Gallery, photos: Path) -> None:
    (photos / "more").mkdir()
    make_image(40).save(photos / "more" / "40.png")
    gallery.add(photos)
    gallery.remove(photos / "5.png")
    listed = {word.word: word for word in gallery.words(best=100)}
    for word in range(gallery.vocabulary.n_words):
        use = gallery.word(word)
        hits = gallery.search(must=word, k=100).hits
        tf = {hit.path: part.tf for hit in hits for part in hit.words}
        assert dict(use.images) == tf
        assert (use.n, use.facts.df) == (12, len(hits))
        assert [image.tf for image in use.images] == sorted(tf.values(), reverse=True)
        assert sum(folder.has_word for folder in use.folders) == len(hits)
        assert (word in listed) == bool(hits)
        if hits:
            assert use.facts.idf == listed[word].idf == hits[0].words[0].idf
            assert listed[word].best == use.images


def test_names_of_words_are_used_everywhere(gallery: Gallery, photos: Path) -> None:
    word = gallery.search(photos / "3.png")[0].words[0].word
    gallery.name_words({word: "striped ear"})

    def labels() -> set[str]:
        results = gallery.search(photos / "3.png")
        hit = results[0]
        return {
            *(part.label for part in hit.words if part.word == word),
            *(part.label for part in results.query if part.word == word),
            *(part.label for part in gallery.match(photos / "3.png", hit.path).words[:1]),
            *(listed.label for listed in gallery.words() if listed.word == word),
            gallery.explain(photos / "3.png", hit.path).parts[0].word.label,
            gallery.word(word).facts.label,
        }

    assert labels() == {"striped ear"}
    assert gallery.word_names == {word: "striped ear"}
    by_name = gallery.search(must="striped ear")
    gallery.name_words({word: None})
    assert labels() == {f"word {word}"}
    assert [hit.path for hit in gallery.search(must=word)] == [hit.path for hit in by_name]
