"""A wish becomes the words and weights that the documentation promises."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bm25v.errors import WrongUse
from bm25v.index.bm25 import WeightedWords
from bm25v.sae.model import Codes
from bm25v.search import regions
from bm25v.search.encode import apply_word_options, combine_bags, combine_vectors
from bm25v.vocabulary.bag import Bag, pool_codes

Weights = dict[int, float]


def bag(*words: int, tf: int = 100) -> Bag:
    return Bag(np.array(words, np.int32), np.full(len(words), tf, np.uint16))


def weights(query: WeightedWords) -> Weights:
    assert (np.diff(query.words) > 0).all()
    return dict(zip(query.words.tolist(), query.weights.tolist(), strict=True))


def test_one_picture_asks_for_each_word_once() -> None:
    one = Bag(np.array([2, 5], np.int32), np.array([10, 900], np.uint16))
    for query in (WeightedWords.from_bag(one), combine_bags([one])):
        assert weights(query) == {2: 1.0, 5: 1.0}
        assert query.frequencies.tolist() == [0.1, 9.0]


def test_several_pictures_ask_for_what_they_share() -> None:
    query = combine_bags([bag(1, 2), bag(2, 3, tf=300), bag(2, 3), bag(2)])
    assert weights(query) == {1: 0.25, 2: 1.0, 3: 0.5}
    assert query.frequencies.tolist() == [0.25, 1.5, 1.0]


def test_feedback_and_counter_examples_shift_weights() -> None:
    query = combine_bags([bag(1, 2)], liked=[bag(2, 3), bag(3)], negative=[bag(1, 4), bag(4)])
    assert weights(query) == {1: 0.75, 2: 1.375, 3: 0.75, 4: -0.5}
    assert query.frequencies.tolist() == [1.0, 1.0, 0, 0], "only the pictures asked with"


def test_by_strength_a_word_counts_the_root_of_its_share_of_the_strongest() -> None:
    one = Bag(np.array([2, 5], np.int32), np.array([100, 900], np.uint16))
    query = combine_bags([one, bag(5)], negative=[one], by_strength=True)
    assert weights(query) == pytest.approx({2: (1 / 3) / 2 - 0.5 / 3, 5: 1.0 - 0.5})
    of_a_text = combine_bags([bag(3, 4, tf=0)], by_strength=True)
    assert weights(of_a_text) == {3: 1.0, 4: 1.0}


def test_no_pictures_ask_for_nothing() -> None:
    assert weights(combine_bags([])) == {}


@given(
    st.lists(st.sets(st.integers(0, 9)), max_size=4),
    st.lists(st.sets(st.integers(0, 9)), max_size=4),
    st.lists(st.sets(st.integers(0, 9)), max_size=4),
)
def test_weights_are_shares_of_the_pictures(
    pictures: list[set[int]], liked: list[set[int]], against: list[set[int]]
) -> None:
    def share(word: int, sets: list[set[int]]) -> float:
        return sum(word in one for one in sets) / len(sets) if sets else 0.0

    found = combine_bags(
        [bag(*sorted(one)) for one in pictures],
        liked=[bag(*sorted(one)) for one in liked],
        negative=[bag(*sorted(one)) for one in against],
    )
    everything: set[int] = set().union(*pictures, *liked, *against)
    assert set(weights(found)) == everything
    for word, weight in weights(found).items():
        expected = share(word, pictures) + 0.75 * share(word, liked) - 0.5 * share(word, against)
        assert weight == pytest.approx(expected, abs=1e-12)


def test_steering_adds_weighs_and_leaves_out() -> None:
    query = WeightedWords.from_bag(bag(1, 2, 3))
    assert weights(apply_word_options(query, must=[2, 7])) == {1: 1, 2: 1, 3: 1, 7: 1}
    assert weights(apply_word_options(query, without=[1, 9])) == {2: 1, 3: 1}
    assert weights(apply_word_options(query, boost={1: 3, 2: 0, 8: -2})) == {1: 3, 3: 1, 8: -2}
    assert weights(apply_word_options(query, must=[7], boost={7: 0})) == {1: 1, 2: 1, 3: 1}, (
        "a filter only"
    )
    kept = apply_word_options(
        WeightedWords(query.words, query.weights, np.array([4.0, 5, 6])), boost={2: 2, 9: 1}
    )
    assert kept.frequencies.tolist() == [4, 5, 6, 0]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"must": [4, 5], "without": [5]}, r"word 5 is both required \(must\) and excluded"),
        ({"without": [5], "boost": {5: 2.0}}, r"word 5 is excluded .*: it cannot be boosted"),
        ({"boost": {5: float("nan")}}, "boost of word 5 by nan: give a finite number"),
        ({"boost": {5: float("inf")}}, "boost of word 5 by inf"),
    ],
)
def test_contradictions_are_refused(asked: dict[str, object], message: str) -> None:
    with pytest.raises(WrongUse, match=message):
        apply_word_options(WeightedWords.from_bag(bag(1)), **asked)  # type: ignore[arg-type]


def test_dense_vectors_are_weighed_like_words() -> None:
    a, b, c = np.eye(3) * 7
    plain = np.array([0.5, 0.5 + 0.75, -0.5])
    found = combine_vectors([a, b], liked=[b], negative=[c])
    np.testing.assert_allclose(found, plain / np.linalg.norm(plain), rtol=1e-6)
    assert combine_vectors([a], negative=[a, a]).tolist() == [1, 0, 0]
    assert not np.isnan(combine_vectors([a, -a])).any()


def test_whole_patches_count_fully_and_others_by_their_share() -> None:
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
def test_a_box_and_the_mask_of_it_mean_the_same(
    x: float, y: float, width: float, height: float, rows: int, columns: int
) -> None:
    """Boxes are rounded to pixels of a picture that the grid divides evenly."""
    high, wide = 40 * rows, 40 * columns
    left, top = int(x * wide), int(y * high)
    right = min(wide, left + max(1, int(width * wide)))
    bottom = min(high, top + max(1, int(height * high)))
    mask = np.zeros((high, wide), dtype=bool)
    mask[top:bottom, left:right] = True
    box = (left / wide, top / high, (right - left) / wide, (bottom - top) / high)
    by_box, by_mask = (regions.patch_weights(one, (rows, columns)) for one in (box, mask))
    np.testing.assert_allclose(by_box, by_mask, atol=1e-5)
    assert by_box.max() == 1
    plain = mask.reshape(rows, 40, columns, 40).mean(axis=(1, 3)).ravel()
    np.testing.assert_allclose(by_box, plain / plain.max(), atol=1e-9)


def test_a_box_in_pixels_needs_the_pictures_size() -> None:
    assert regions.is_in_pixels((0, 0, 2, 1))
    assert not regions.is_in_pixels((0, 0, 1, 1)), "the whole picture, not one pixel"
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
def test_regions_that_make_no_sense_are_refused(region: regions.Region, message: str) -> None:
    with pytest.raises(WrongUse, match=message):
        regions.patch_weights(regions.to_fractions(region, (100, 200)), (7, 7))


def test_only_words_in_the_region_are_left() -> None:
    codes = Codes(np.array([[7, 2], [7, 5]]), np.array([[1.0, 0.5], [2.0, 0.25]], np.float32))
    left = regions.patch_weights((0, 0, 0.5, 1), (1, 2))
    found = pool_codes(regions.weigh_codes(codes, left), k_post=9)
    assert (found.words.tolist(), found.tf.tolist()) == ([2, 7], [50, 100])
    tiny = regions.patch_weights((0.9, 0.9, 0.001, 0.001), (1, 2))
    found = pool_codes(regions.weigh_codes(codes, tiny), k_post=9)
    assert (found.words.tolist(), found.tf.tolist()) == ([5, 7], [25, 200]), "not rounded away"
