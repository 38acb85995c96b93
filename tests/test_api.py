"""The methods of `Gallery` that compose other packages: queries, matches, words and names."""

import io
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bm25v import Bag, Query
from bm25v.errors import InvalidOption
from bm25v.gallery import Gallery
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
        with pytest.raises(InvalidOption, match="k, mode beside a Query: set them in the Query"):
            call()


def test_an_encoding_stands_for_exactly_one_query_image(gallery: Gallery, photos: Path) -> None:
    image, path = photos / "3.png", photos / "4.png"
    encoding = gallery.vocabulary.encode(image)
    explanation = gallery.explain(image, path, encoding=encoding)
    assert explanation.to_dict() == gallery.explain(image, path).to_dict()
    with pytest.raises(
        InvalidOption, match="encoding= needs a query with exactly one image, got 2"
    ):
        gallery.explain([image, image], path, encoding=encoding)
    with pytest.raises(InvalidOption, match="exactly one image, got 0"):
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
        gallery.search(photos / "2.png", k=4, mode="sparse", include_query=True),
    ]
    assert list(map(values, mixed)) == list(map(values, expected))
    assert gallery.search_many([]) == []
    images = [photos / f"{n}.png" for n in range(12)] * 3
    many = gallery.search_many(images, k=2, include_query=True)
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
        hits = gallery.search(must=word, k=100, mode="words").hits
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


def test_an_image_may_be_a_path_bytes_a_file_a_pillow_image_an_array_or_a_hit(
    gallery: Gallery, photos: Path
) -> None:
    path = photos / "3.png"
    image = Image.open(path)
    (first, *_) = expected = gallery.search(path, include_query=True)
    with path.open("rb") as file, io.BytesIO(path.read_bytes()) as buffer:
        pixels = np.asarray(image)
        inputs: list[Any] = [str(path), path.read_bytes(), file, buffer, image, pixels, first]
        for given in inputs:
            hits = gallery.search(given, include_query=True)
            assert [hit.path for hit in hits] == [hit.path for hit in expected]
    assert gallery.vocabulary.bag(image).words.tolist() == (
        gallery.vocabulary.bag(path).words.tolist()
    )
    assert gallery.explain(first, expected[1]).match.path == expected[1].path
    liked = gallery.search(like=[first, expected[1]], k=12)
    assert len(liked) > 0
    assert gallery.remove(first) == 1


def test_grey_images_are_searched_as_rgb(gallery: Gallery, photos: Path) -> None:
    grey = Image.open(photos / "3.png").convert("L")
    arrays = (np.asarray(grey), np.asarray(grey)[:, :, None], np.asarray(grey.convert("RGB")))
    results = [gallery.search(given) for given in (grey, *arrays)]
    scores = [[(hit.path, hit.score) for hit in one] for one in results]
    assert scores.count(scores[0]) == 4


def test_a_pillow_image_is_turned_upright(gallery: Gallery, photos: Path, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees
    Image.open(photos / "3.png").save(tmp_path / "turned.png", exif=exif)
    by_path = gallery.search(tmp_path / "turned.png")
    by_image = gallery.search(Image.open(tmp_path / "turned.png"))
    assert [(hit.path, hit.score) for hit in by_image] == [(h.path, h.score) for h in by_path]


@pytest.mark.parametrize("wrong", [7, 2.5, {"a": 1}, io.StringIO("text")])
def test_what_is_not_an_image_is_named(gallery: Gallery, wrong: Any) -> None:
    message = f"a {type(wrong).__name__} is not an image: give a path"
    with pytest.raises(InvalidOption, match=message):
        gallery.search([wrong])
    if not isinstance(wrong, dict):
        with pytest.raises(InvalidOption, match=message):
            gallery.search(wrong)


def test_open_or_create_opens_what_is_there(tmp_path: Path, photos: Path) -> None:
    for expected in (0, 12):
        with Gallery.open_or_create(tmp_path / "g", vocabulary="toy", k1=0.9) as gallery:
            assert len(gallery) == expected
            assert gallery.info().k1 == 0.9
            gallery.add(photos)


def test_a_gallery_lists_its_images(gallery: Gallery, photos: Path) -> None:
    assert {image.path for image in gallery} == set(map(str, photos.iterdir()))
    assert photos / "3.png" in gallery
    gallery.remove(photos / "3.png")
    assert photos / "3.png" not in gallery
    assert len(list(gallery)) == len(gallery) == 11


def test_reprs_are_short_and_say_what_matters(gallery: Gallery, photos: Path) -> None:
    results = gallery.search(photos / "3.png", mode="sparse")
    explanation = gallery.explain(photos / "3.png", results[1])
    match = gallery.match(photos / "3.png", results[1])
    for located in (gallery, results, results[0], match, explanation):
        assert str(photos.parent) in repr(located)
    word = results[0].words[0]
    gallery.name_words({word.word: "striped ear"})
    named = gallery.search(photos / "3.png", mode="sparse")
    assert f"{word.word} 'striped ear'" in repr(named[0].words[0])
    assert f"{word.word} 'striped ear'" in repr(gallery.word(word.word))
    assert f": {word.contribution:.2f} = 1 · {word.idf:.2f} · {word.saturation:.2f}>" in repr(word)
    shutil.copy(photos / "3.png", photos / "copy.png")
    gallery.add(photos)
    (group,) = gallery.duplicates(near=False)
    assert "2 images (exact)" in repr(group)
    encoding = gallery.vocabulary.encode(photos / "3.png")
    strongest = encoding.bag.words[encoding.bag.tf.argmax()]
    assert f"16 words, strongest {strongest} (" in repr(encoding.bag)
    assert "none" in repr(Bag(np.empty(0, np.int32), np.empty(0, np.uint16)))
    assert "49 patches" in repr(encoding)
    values: tuple[object, ...] = (
        *(gallery, results, results[0], match, explanation, explanation.parts[0], word, group),
        *(results.query[0], gallery.words()[0], gallery.word(word.word), encoding, encoding.bag),
        *(gallery.vocabulary, gallery.info()),
    )
    for value in values:
        assert len(repr(value)) < 500
        assert "\n" not in repr(value)
        assert "array(" not in repr(value)


def test_the_repr_of_results_shows_the_best_hit_or_why_there_is_none(
    gallery: Gallery, photos: Path
) -> None:
    results = gallery.search(photos / "3.png")
    assert repr(results).startswith("<Results: 10 hits (hybrid), best <Hit 1: ")
    nothing = gallery.search(photos / "3.png", min_coverage=1, without=results.query[0].word)
    assert repr(nothing).startswith("<Results: 0 hits (hybrid): no image that")
