"""How words are spread, and what that costs: planted power laws, the paper's own figures."""

import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray
from PIL import Image

from bm25v.errors import EvaluationError, MissingExtra, WrongUse
from bm25v.research import cost, plots
from bm25v.research.zipf import ZipfFit, fit_zipf
from bm25v.vocabulary.bag import Bag


def planted(alpha: float, words: int = 2_000, pictures: int = 10**9) -> NDArray[np.int64]:
    df_v = np.round(pictures * 0.8 * np.arange(1.0, words + 1) ** -alpha).astype(np.int64)
    np.random.default_rng(1).shuffle(df_v)
    return df_v


@pytest.mark.parametrize("alpha", [0.7, 1.0, 1.2, 2.32])
def test_a_planted_power_law_is_found(alpha: float) -> None:
    found = fit_zipf(np.append(planted(alpha), np.zeros(500, np.int64)), 10**9)
    assert found.alpha == pytest.approx(alpha, abs=1e-3)
    assert found.scale == pytest.approx(0.8e9, rel=1e-2)
    assert found.r2 > 0.99999
    assert found.active_words == 2_000
    np.testing.assert_allclose(found.fitted_df_r, found.df_r, rtol=0.05)


def test_the_fit_is_that_of_scipy() -> None:
    df_v = np.random.default_rng(2).integers(0, 400, 300)
    found = fit_zipf(df_v, 400)
    df_r = np.sort(df_v[df_v > 0])[::-1]
    line = scipy.stats.linregress(np.log10(np.arange(1, len(df_r) + 1)), np.log10(df_r))
    assert found.df_r.tolist() == df_r.tolist()
    assert found.alpha == pytest.approx(-line.slope)
    assert found.scale == pytest.approx(10**line.intercept)
    assert found.r2 == pytest.approx(line.rvalue**2)
    assert found.r2 < 0.9


def test_shares_are_of_active_words_and_their_edges_are_strict() -> None:
    # IDF of df 13 in 100 pictures: ln(1 + 87.5 / 13.5) = 2.012; of df 14: 1.941
    found = fit_zipf(np.array([100, 51, 50, 14, 13, 10, 9, 1, 0, 0]), 100)
    assert found.active_words == 8
    assert found.head == 2 / 8
    assert found.tail == 2 / 8
    assert found.high_idf == 4 / 8


def test_equal_frequencies_have_no_slope() -> None:
    found = fit_zipf(np.full(10, 7), 20)
    assert found.alpha == pytest.approx(0, abs=1e-9)
    assert found.r2 == 1


def test_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(EvaluationError, match="needs at least 2 active words, not 1"):
        fit_zipf(np.array([0, 3]), 10)
    with pytest.raises(EvaluationError, match="df 30, but there are only 10 images"):
        fit_zipf(np.array([30, 3]), 10)


def pixels(path: Path) -> NDArray[np.uint8]:
    return np.asarray(Image.open(path).convert("RGB"))


def share(image: NDArray[np.uint8], colour: str) -> float:
    wanted = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)])
    return float((np.abs(image.astype(int) - wanted).max(axis=2) < 12).mean())


def noisy(alpha: float, seed: int) -> ZipfFit:
    noise = np.random.default_rng(seed).lognormal(0, 0.2, 800)
    df_v = np.ceil(3_000 * 0.8 * np.arange(1.0, 801) ** -alpha * noise).clip(1, 3_000)
    return fit_zipf(df_v.astype(np.int64), 3_000)


def test_charts_show_words_and_fits(tmp_path: Path) -> None:
    plots.draw_zipf(noisy(1.2, 0), "Pets", tmp_path / "one.png")
    one = pixels(tmp_path / "one.png")
    assert share(one, plots.COLOURS[0]) > 0.001
    assert share(one, plots.COLOURS[1]) > 0.001
    sets = {f"set {n}": noisy(1 + n / 10, n) for n in range(9)}
    plots.draw_zipf_comparison(sets, tmp_path / "all.png")
    image = pixels(tmp_path / "all.png")
    for colour in plots.COLOURS:
        assert share(image, colour) > 0.0005
    with pytest.raises(WrongUse, match="no collections to draw"):
        plots.draw_zipf_comparison({}, tmp_path / "none.png")


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"bm25v\[research\]"):
        plots.draw_zipf(noisy(1, 0), "Pets", tmp_path / "one.png")


def bag(*words: int) -> Bag:
    return Bag(np.array(words, np.int32), np.ones(len(words), np.uint16))


def papers_usage(pictures: int, active: int) -> cost.WordUsage:
    return cost.WordUsage(pictures, 18_432, active, 16, 16, postings=0)


# The paper's range of active words, and its range of operations a picture, "(0.4-2.4) N".
@pytest.mark.parametrize(("active", "a_picture"), [(3_240, 0.4), (527, 2.4)])
def test_operations_are_those_of_the_paper(active: int, a_picture: float) -> None:
    pictures = 75_750
    lines = {
        line.system: line for line in cost.cost_table(papers_usage(pictures, active), dim=1152)
    }
    assert round(lines["BM25-V"].operations / pictures, 1) == a_picture
    assert lines["Two-stage"].operations == lines["BM25-V"].operations + 200 * 1152
    assert lines["Dense"].operations == 2 * 1152 * pictures
    assert lines["HNSW"].operations == 2 * 1152 * 100
    assert lines["IVF+PQ"].operations == pytest.approx(0.48 * pictures)


def test_bytes_are_those_of_the_paper() -> None:
    lines = {line.system: line for line in cost.cost_table(papers_usage(5_994, 1_498), dim=1152)}
    assert {name: line.bytes_per_image for name, line in lines.items()} == {
        "Dense": 4608,
        "HNSW": 4864,
        "IVF+PQ": 48,
        "BM25-V": 96,
        "Two-stage": 4704,
    }
    assert lines["BM25-V"].compression == 48
    assert lines["IVF+PQ"].compression == 96
    ours = cost.cost_table(papers_usage(5_994, 1_498), dim=1152, entry_bytes=4)
    assert ours[3].bytes_per_image == 64


def test_postings_are_counted_by_reading_them() -> None:
    rng = np.random.default_rng(3)
    share = 1 / np.arange(1, 41)
    bags = [bag(*rng.choice(40, 5, replace=False, p=share / share.sum())) for _ in range(200)]
    df_v = np.bincount(np.concatenate([one.words for one in bags]), minlength=60)
    queries = bags[:20]
    found = cost.count_usage(df_v, len(bags), queries)
    read = [sum(len(set(q.words) & set(b.words)) for b in bags) for q in queries]
    assert found.postings == np.mean(read)
    assert (found.image_words, found.query_words) == (5, 5)
    assert (found.vocabulary, found.active_words) == (60, 40)
    assert found.expected_postings == pytest.approx(5 * 5 * 200 / 40)
    assert found.postings > found.expected_postings
    lines = {line.system: line for line in cost.cost_table(found, dim=8)}
    assert lines["BM25-V"].counted == 5 * found.postings
    assert lines["Two-stage"].counted == 5 * found.postings + 200 * 8
    assert lines["Dense"].counted is None


def test_even_words_read_what_is_expected() -> None:
    bags = [bag(*(np.arange(4) + 4 * (n % 10))) for n in range(100)]
    df_v = np.bincount(np.concatenate([one.words for one in bags]))
    found = cost.count_usage(df_v, 100, bags)
    assert found.postings == found.expected_postings == 40


def test_nothing_to_count_is_refused() -> None:
    with pytest.raises(EvaluationError, match="none of the 3 images has a word"):
        cost.count_usage(np.zeros(5, np.int64), 3, [bag(1)])
    with pytest.raises(EvaluationError, match="no queries to count"):
        cost.count_usage(np.array([0, 3]), 3, [])


def test_the_coupon_collector_agrees_with_drawing() -> None:
    rng = np.random.default_rng(4)
    drawn = [
        len(np.unique([rng.choice(300, 6, replace=False) for _ in range(40)])) for _ in range(30)
    ]
    assert cost.expected_active_words(40, 6, 300) == pytest.approx(np.mean(drawn), rel=0.02)
    curve = cost.expected_active_words(np.array([1, 10, 100, 10_000]), 6, 300)
    assert (np.diff(curve) > 0).all()
    assert curve[-1] == pytest.approx(300)


def test_projection_to_a_large_gallery_is_the_papers_limit() -> None:
    at = cost.WordUsage(1_000, 18_432, 900, 16, 16, postings=500).project(100_000_000)
    assert at.expected_postings == pytest.approx(16 * 16 * 100_000_000 / 18_432)
    assert at.postings == 500 * 100_000
    assert at.active_words == pytest.approx(18_432)


def test_all_queries_at_once_are_counted_as_one_by_one() -> None:
    rng = np.random.default_rng(5)
    bags = [bag(*rng.choice(50, 1 + n % 6, replace=False)) for n in range(80)]
    df_v = np.bincount(np.concatenate([one.words for one in bags]), minlength=64)
    one_by_one, at_once = cost.count_usage(df_v, 80, bags), cost.count_usage(df_v, 80)
    for name, value in vars(one_by_one).items():
        assert getattr(at_once, name) == pytest.approx(value), name
    with pytest.raises(EvaluationError, match="none of the 3 images has a word"):
        cost.count_usage(np.zeros(5, np.int64), 3)


def test_words_in_use_are_those_of_random_orders() -> None:
    rng = np.random.default_rng(6)
    share = 1 / np.arange(1, 61)
    bags = [rng.choice(60, 4, replace=False, p=share / share.sum()) for _ in range(50)]
    df_v = np.bincount(np.concatenate(bags), minlength=70)
    sizes = [0, 1, 5, 20, 50]
    found = cost.mean_active_words(df_v, 50, sizes)
    drawn = np.zeros(len(sizes))
    for _ in range(2_000):
        order = rng.permutation(50)
        drawn += [len({w for row in order[:n] for w in bags[row]}) for n in sizes]
    np.testing.assert_allclose(found, drawn / 2_000, rtol=0.02)
    assert found[-1] == (df_v > 0).sum()
    with pytest.raises(EvaluationError, match="cannot sample 51 of 50 images"):
        cost.mean_active_words(df_v, 50, [51])


def test_words_in_use_stay_exact_in_large_galleries() -> None:
    million = cost.mean_active_words(np.array([1, 10**6, 5 * 10**7]), 10**8, [10**6, 10**8])
    assert million[0] == pytest.approx(0.01 + 1 + 1, rel=1e-6)
    assert million[1] == 3


def test_growth_goes_from_one_picture_to_all() -> None:
    found = cost.measure_growth(np.array([30, 20, 10, 0]), 30)
    assert found.sizes == [1, 2, 5, 10, 20, 30]
    assert found.measured[0] == pytest.approx(2)  # 60 words in 30 pictures
    assert found.expected[0] == pytest.approx(2)
    assert (found.measured[-1], found.vocabulary) == (3, 4)


def test_growth_is_drawn_and_endings_must_say_how(tmp_path: Path) -> None:
    growth = cost.measure_growth(planted(1.0, 500, 2_000).clip(1), 2_000)
    plots.draw_growth(growth, "Pets", tmp_path / "growth.png")
    image = pixels(tmp_path / "growth.png")
    assert share(image, plots.COLOURS[0]) > 0.001
    assert share(image, plots.COLOURS[1]) > 0.001
    with pytest.raises(WrongUse, match=r"growth: a plot's name must end in \.png, \.svg, \.pdf"):
        plots.draw_growth(growth, "Pets", tmp_path / "growth")
