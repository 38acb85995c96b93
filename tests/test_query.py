"""Queries: their options are checked, and they become the documented words, weights and patches."""

from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bm25v import Gallery, StoredImage, Vocabulary
from bm25v.cli.search import search
from bm25v.errors import InvalidOption
from bm25v.index.bm25 import WeightedWords
from bm25v.render.commands import list_options
from bm25v.sae.model import Codes
from bm25v.search import Query, QueryOptions, regions
from bm25v.search.combine import apply_word_options, combine_bags, combine_vectors
from bm25v.search.query import OPTIONS
from bm25v.vocabulary.bag import Bag, pool_codes
from tests.conftest import make_image
from tests.histories import make_encoding

INVALID_OPTIONS = [
    ({"images": ()}, "an empty query: give an image, a text, or words"),
    ({"images": (), "without": (3,)}, "an empty query"),
    ({"images": (), "negative": ("dog.jpg",)}, "an empty query"),
    ({"images": (), "unlike": ("/dog.jpg",)}, "an empty query"),
    ({"text": ""}, "an empty text: write what to look for"),
    ({"text": " \n"}, "an empty text"),
    ({"images": (), "must": (3,), "region": (0, 0, 1, 1)}, "a region with 0 images"),
    ({"images": ("a.jpg", "b.jpg"), "region": (0, 0, 1, 1)}, "a region with 2 images: it needs ex"),
    ({"mode": "fast"}, "mode 'fast': choose one of hybrid, words, two-stage, sparse, dense"),
    ({"k": 0}, "k = 0: give a whole number, 1 or more"),
    ({"candidates": 0}, "candidates = 0: give a whole number, 1 or more"),
    ({"query_words": 0}, "query_words = 0: give a whole number, 1 or more"),
    ({"k": -5}, "k = -5"),
    ({"min_coverage": 1.5}, "min_coverage = 1.5: give a share between 0 and 1"),
    ({"min_coverage": -0.1}, "min_coverage = -0.1"),
    ({"min_coverage": float("nan")}, "min_coverage = nan"),
]


@pytest.mark.parametrize(("options", "message"), INVALID_OPTIONS)
def test_invalid_options_raise_wrong_use_however_a_query_is_made(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        Query(**{"images": ("cat.jpg",), **options})
    with pytest.raises(InvalidOption, match=message):
        Query.of(**{"images": "cat.jpg", **options})
    with pytest.raises(InvalidOption, match=message):
        replace(Query(images=("cat.jpg",)), **options)


def test_every_field_of_a_query_is_a_described_option_and_a_keyword_argument() -> None:
    public = [f.name for f in fields(Query) if not f.name.startswith("_")]
    assert public == [*OPTIONS] == ["images", *QueryOptions.__annotations__]
    assert all(option.help for option in OPTIONS.values())


def test_the_command_line_reads_what_is_written_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {
        "text": "a cat",
        "folder": ("photos", "2023/**/*.jpg"),
        "date": ("2021", None),
        "must": ("ear",),
        "without": ("7", "-x"),
        "region": (0.1, 0.2, 1 / 3, 0.5),
        "boost": {"striped ear": 2.5, "a=b": -1e-3},
        "like": ("1.png", "2.png"),
        "unlike": ("3.png",),
        "negative": ("dog.jpg",),
        "min_size": 80,
        "max_size": (4000, 3000),
        "min_coverage": 0.25,
        "include_query": True,
        "merge_copies": True,
        "mode": "two-stage",
        "candidates": 20,
        "query_words": 9,
    }
    assert options.keys() | {"k", "offset"} == QueryOptions.__annotations__.keys()
    read: list[dict[str, Any]] = []
    monkeypatch.setattr(search, "callback", lambda **values: read.append(values["options"]))
    search.main(["cat.jpg", *list_options(Query.of("cat.jpg", **options))], standalone_mode=False)
    expected = {**options, "date": "2021..", "k": 10, "offset": 0}
    expected["region"] = pytest.approx(options["region"], abs=1e-8)
    assert read == [expected]


def test_each_kind_of_content_is_enough_for_a_query() -> None:
    for options in (
        {"images": ("cat.jpg",)},
        {"text": "a cat"},
        {"must": (3,)},
        {"boost": {3: 2.0}},
        {"like": ("/cat.jpg",)},
    ):
        query = Query(**options)
        assert (query.k, query.candidates, query.mode) == (10, None, None)
    limits = Query.of("cat.jpg", k=1, candidates=1, query_words=1, min_coverage=1)
    assert limits.min_coverage == 1


def test_a_query_accepts_single_values_however_it_is_made() -> None:
    pixels = np.zeros((2, 2, 3), np.uint8)
    values: dict[str, Any] = {"images": "a.jpg", "must": 3, "like": "b.jpg", "negative": pixels}
    query = Query(**values | {"boost": None, "without": None})
    assert (query.images, query.must, query.without, query.boost) == (("a.jpg",), (3,), (), {})
    assert query.like == ("b.jpg",)
    assert len(query.negative) == 1


def test_a_query_cannot_be_changed() -> None:
    query = Query.of("cat.jpg", must=3)
    with pytest.raises(FrozenInstanceError):
        query.k = 0  # type: ignore[misc]
    assert replace(query, k=3).must == (3,)


def test_single_values_stand_for_lists_of_one(tmp_path: Path) -> None:
    encoding, pixels = make_encoding(1), np.zeros((8, 8, 3), np.uint8)
    for image in ("cat.jpg", tmp_path / "cat.jpg", b"bytes", pixels, encoding):
        for images in (image, [image], (image,), iter([image])):
            (kept,) = Query.of(images, negative=image).images
            assert kept is image
            (kept,) = Query.of("cat.jpg", negative=[image]).negative
            assert kept is image
    words: list[tuple[Any, Any]] = [(3, [3]), ("ear", ["ear"]), (np.int64(3), np.array([3]))]
    for single, several in words:
        one, many = (Query.of("cat.jpg", must=w, without=w) for w in (single, several))
        assert one.must == many.must == one.without == many.without == (single,)
    for path in ("cat.jpg", Path("cat.jpg"), ["cat.jpg"], [Path("cat.jpg")]):
        assert Query.of(like=path, unlike=path).like == ("cat.jpg",)
        assert Query.of(like=path, unlike=path).unlike == ("cat.jpg",)
    assert Query.of(text="a cat", negative=None, boost=None).boost == {}


def make_bag(*words: int, tf: int = 100) -> Bag:
    return Bag(np.array(words, np.int32), np.full(len(words), tf, np.uint16))


def weights_of(query: WeightedWords) -> dict[int, float]:
    assert (np.diff(query.words) > 0).all()
    return dict(zip(query.words.tolist(), query.weights.tolist(), strict=True))


def test_each_word_of_one_image_has_weight_one() -> None:
    bag = Bag(np.array([2, 5], np.int32), np.array([10, 900], np.uint16))
    for query in (WeightedWords.from_bag(bag), combine_bags([bag])):
        assert weights_of(query) == {2: 1.0, 5: 1.0}
        assert query.frequencies.tolist() == [0.1, 9.0]


def test_a_word_of_several_images_weighs_the_share_that_have_it() -> None:
    query = combine_bags([make_bag(1, 2), make_bag(2, 3, tf=300), make_bag(2, 3), make_bag(2)])
    assert weights_of(query) == {1: 0.25, 2: 1.0, 3: 0.5}
    assert query.frequencies.tolist() == [0.25, 1.5, 1.0]
    assert weights_of(combine_bags([])) == {}


def test_liked_images_raise_weights_and_negative_images_lower_them() -> None:
    query = combine_bags(
        [make_bag(1, 2)],
        liked=[make_bag(2, 3), make_bag(3)],
        negative=[make_bag(1, 4), make_bag(4)],
    )
    assert weights_of(query) == {1: 0.75, 2: 1.375, 3: 0.75, 4: -0.5}
    assert query.frequencies.tolist() == [1.0, 1.0, 0, 0], "of the query images only"


def test_by_strength_a_word_weighs_the_root_of_its_share_of_the_strongest() -> None:
    bag = Bag(np.array([2, 5], np.int32), np.array([100, 900], np.uint16))
    query = combine_bags([bag, make_bag(5)], negative=[bag], by_strength=True)
    assert weights_of(query) == pytest.approx({2: (1 / 3) / 2 - 0.5 / 3, 5: 1.0 - 0.5})
    text = combine_bags([make_bag(3, 4, tf=0)], by_strength=True)
    assert weights_of(text) == {3: 1.0, 4: 1.0}


word_sets = st.lists(st.sets(st.integers(0, 9)), max_size=4)


@given(word_sets, word_sets, word_sets)
def test_weights_are_shares_of_the_images(
    images: list[set[int]], liked: list[set[int]], negative: list[set[int]]
) -> None:
    def share(word: int, sets: list[set[int]]) -> float:
        return sum(word in words for words in sets) / len(sets) if sets else 0.0

    query = combine_bags(
        [make_bag(*sorted(words)) for words in images],
        liked=[make_bag(*sorted(words)) for words in liked],
        negative=[make_bag(*sorted(words)) for words in negative],
    )
    all_words: set[int] = set().union(*images, *liked, *negative)
    assert set(weights_of(query)) == all_words
    for word, weight in weights_of(query).items():
        expected = share(word, images) + 0.75 * share(word, liked) - 0.5 * share(word, negative)
        assert weight == pytest.approx(expected, abs=1e-12)


def test_word_options_add_multiply_and_leave_out_words() -> None:
    query = WeightedWords.from_bag(make_bag(1, 2, 3))
    for options, expected in (
        ({"must": [2, 7]}, {1: 1, 2: 1, 3: 1, 7: 1}),
        ({"without": [1, 9]}, {2: 1, 3: 1}),
        ({"boost": {1: 3, 2: 0, 8: -2}}, {1: 3, 3: 1, 8: -2}),
        ({"must": [7], "boost": {7: 0}}, {1: 1, 2: 1, 3: 1}),  # 7 is a filter only
    ):
        assert weights_of(apply_word_options(query, **options)) == expected
    with_tf = WeightedWords(query.words, query.weights, np.array([4.0, 5, 6]))
    boosted = apply_word_options(with_tf, boost={2: 2, 9: 1})
    assert boosted.frequencies.tolist() == [4, 5, 6, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"must": [4, 5], "without": [5]}, r"word 5 is both required \(must\) and excluded"),
        ({"without": [5], "boost": {5: 2.0}}, r"word 5 is excluded .*: it cannot be boosted"),
        ({"boost": {5: float("nan")}}, "boost of word 5 by nan: give a number from -1,000,000 to"),
        ({"boost": {5: float("inf")}}, "boost of word 5 by inf"),
    ],
)
def test_contradictory_word_options_raise_wrong_use(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        apply_word_options(WeightedWords.from_bag(make_bag(1)), **options)  # type: ignore[arg-type]


def test_dense_vectors_are_weighted_like_words() -> None:
    a_e, b_e, c_e = np.eye(3) * 7
    sum_e = np.array([0.5, 0.5 + 0.75, -0.5])
    combined_e = combine_vectors([a_e, b_e], liked=[b_e], negative=[c_e])
    np.testing.assert_allclose(combined_e, sum_e / np.linalg.norm(sum_e), rtol=1e-6)
    assert combine_vectors([a_e], negative=[a_e, a_e]).tolist() == [1, 0, 0]
    assert not np.isnan(combine_vectors([a_e, -a_e])).any()


def test_a_patch_weighs_the_share_of_it_that_lies_in_the_region() -> None:
    shares = regions.patch_weights((0.25, 0, 0.5, 1), grid=(1, 3)).tolist()
    assert shares == pytest.approx([0.25, 1, 0.25])
    assert regions.patch_weights((0, 0, 1, 1), grid=(7, 7)).tolist() == [1] * 49


@given(
    st.floats(0, 0.95),
    st.floats(0, 0.95),
    st.floats(0.01, 1),
    st.floats(0.01, 1),
    st.integers(1, 9),
    st.integers(1, 9),
)
def test_a_box_and_a_mask_of_the_same_pixels_weigh_patches_alike(
    x: float, y: float, width: float, height: float, rows: int, columns: int
) -> None:
    """Boxes are rounded to pixels of an image that the grid divides evenly."""
    image_height, image_width = 40 * rows, 40 * columns
    left, top = int(x * image_width), int(y * image_height)
    right = min(image_width, left + max(1, int(width * image_width)))
    bottom = min(image_height, top + max(1, int(height * image_height)))
    mask = np.zeros((image_height, image_width), dtype=bool)
    mask[top:bottom, left:right] = True
    box = (
        left / image_width,
        top / image_height,
        (right - left) / image_width,
        (bottom - top) / image_height,
    )
    by_box, by_mask = (regions.patch_weights(region, (rows, columns)) for region in (box, mask))
    np.testing.assert_allclose(by_box, by_mask, atol=1e-5)
    assert by_box.max() == 1
    shares = mask.reshape(rows, 40, columns, 40).mean(axis=(1, 3)).ravel()
    np.testing.assert_allclose(by_box, shares / shares.max(), atol=1e-9)


def test_a_box_in_pixels_becomes_fractions_of_the_image() -> None:
    assert regions.is_in_pixels((0, 0, 2, 1))
    assert not regions.is_in_pixels((0, 0, 1, 1)), "the whole image, not one pixel"
    assert not regions.is_in_pixels(np.ones((300, 200)))
    assert regions.to_fractions((50, 0, 25, 100), (100, 200)) == (0.5, 0, 0.25, 0.5)
    assert regions.to_fractions((0.5, 0, 0.25, 0.5), (100, 200)) == (0.5, 0, 0.25, 0.5)
    assert regions.to_fractions((60, 0, 41, 200.5), (100, 200)) == (0.6, 0, 0.4, 1), "rounded"


@pytest.mark.parametrize(
    ("region", "message"),
    [
        ((10, 10, 0, 5), "10,10,0,5 has no area"),
        ((10, 10, 5, -5), "10,10,5,-5 has no area"),
        ((-1, 10, 5, 5), "-1,10,5,5 starts outside"),
        ((10, 10, 95, 5), "reaches beyond the image of 100 × 200 pixels"),
        ((100, 10, 5, 5), "reaches beyond"),
        ((500, 500, 5, 5), "reaches beyond"),
        ((0.5, 0.5, 0.6, 0.1), "0.5,0.5,0.6,0.1 reaches beyond the image: in fractions"),
        ((1, 0, 1, 1), "reaches beyond"),
        ((1, 2, 3), "give x,y,width,height"),
        (("a", 2, 3, 4), "give x,y,width,height"),
        ((float("nan"), 2, 3, 4), "finite"),
        (np.zeros((5, 5)), "0 everywhere"),
        (np.ones((5, 5, 3)), r"shape \(5, 5, 3\)"),
    ],
)
def test_invalid_regions_raise_wrong_use(region: regions.Region, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        regions.patch_weights(regions.to_fractions(region, (100, 200)), (7, 7))


def test_a_region_keeps_only_the_words_of_its_patches() -> None:
    codes = Codes(np.array([[7, 2], [7, 5]]), np.array([[1.0, 0.5], [2.0, 0.25]], np.float32))
    left_half = regions.patch_weights((0, 0, 0.5, 1), (1, 2))
    bag = pool_codes(regions.weigh_codes(codes, left_half), k_post=9)
    assert (bag.words.tolist(), bag.tf.tolist()) == ([2, 7], [50, 100])
    tiny = regions.patch_weights((0.9, 0.9, 0.001, 0.001), (1, 2))
    bag = pool_codes(regions.weigh_codes(codes, tiny), k_post=9)
    assert (bag.words.tolist(), bag.tf.tolist()) == ([5, 7], [25, 200]), "not rounded away"


def test_a_filter_that_can_be_read_only_once_is_kept(gallery: Gallery, photos: Path) -> None:
    """A generator of folders selects what a list of them does."""
    (photos / "a").mkdir()
    make_image(90).save(photos / "a" / "90.png")
    gallery.add(photos)
    listed = gallery.search(photos / "1.png", folder=[photos / "a"])
    generated = gallery.search(photos / "1.png", folder=(photos / name for name in "a"))
    assert [hit.path for hit in listed] == [str(photos / "a" / "90.png")]
    assert [hit.path for hit in generated] == [hit.path for hit in listed]


@pytest.mark.parametrize("mode", ["hybrid", "words", "sparse"])
def test_query_words_count_for_stored_images_too(gallery: Gallery, photos: Path, mode: Any) -> None:
    path = str(photos / "1.png")
    from_file = gallery.search(path, query_words=2, mode=mode)
    stored = gallery.search(StoredImage(path), query_words=2, mode=mode)
    (photos / "1.png").unlink()
    without_file = gallery.search(path, query_words=2, mode=mode)
    for results in (stored, without_file):
        assert len(results.query) == len(from_file.query) == 2
        assert [word.word for word in results.query] == [word.word for word in from_file.query]
        assert [hit.path for hit in results] == [hit.path for hit in from_file] != []


def test_an_image_covers_itself_whatever_the_number_of_stored_words(
    photos: Path, tmp_path: Path
) -> None:
    """A query has all words of an image, a full bag only the strongest."""
    replace(Vocabulary.load("toy"), k_full=20).save(tmp_path / "narrow")
    gallery = Gallery.create(tmp_path / "g", vocabulary=tmp_path / "narrow")
    gallery.add(photos)
    modes: list[Any] = ["hybrid", "words"]
    for mode in modes:
        results = gallery.search(photos / "1.png", include_query=True, mode=mode)
        assert len(results.query) > 20
        assert results[0].path == str(photos / "1.png")
        assert results[0].coverage == pytest.approx(1.0)
        options: Any = {"include_query": True, "min_coverage": 0.99, "mode": mode}
        assert [hit.path for hit in gallery.search(photos / "1.png", **options)] == [
            str(photos / "1.png")
        ]
