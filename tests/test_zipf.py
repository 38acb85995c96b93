"""Power laws of document frequencies, and the costs that follow from them, as in the paper."""

import sys
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray
from PIL import Image

from bm25v.errors import EvaluationError, InvalidOption, MissingExtra
from bm25v.research import cost, plots
from bm25v.research.zipf import ZipfFit, fit_zipf
from bm25v.vocabulary.bag import Bag


def power_law(alpha: float, words: int = 2_000, images: int = 10**9) -> NDArray[np.int64]:
    df_v = np.round(images * 0.8 * np.arange(1.0, words + 1) ** -alpha).astype(np.int64)
    np.random.default_rng(1).shuffle(df_v)
    return df_v


@pytest.mark.parametrize("alpha", [0.7, 1.0, 1.2, 2.32])
def test_the_fit_recovers_a_power_law(alpha: float) -> None:
    fit = fit_zipf(np.append(power_law(alpha), np.zeros(500, np.int64)), 10**9)
    assert fit.alpha == pytest.approx(alpha, abs=1e-3)
    assert fit.scale == pytest.approx(0.8e9, rel=1e-2)
    assert fit.r2 > 0.99999
    assert fit.active_words == 2_000
    np.testing.assert_allclose(fit.fitted_df_r, fit.df_r, rtol=0.05)


def test_the_fit_agrees_with_scipy() -> None:
    df_v = np.random.default_rng(2).integers(0, 400, 300)
    fit = fit_zipf(df_v, 400)
    df_r = np.sort(df_v[df_v > 0])[::-1]
    line = scipy.stats.linregress(np.log10(np.arange(1, len(df_r) + 1)), np.log10(df_r))
    assert fit.df_r.tolist() == df_r.tolist()
    assert fit.alpha == pytest.approx(-line.slope)
    assert fit.scale == pytest.approx(10**line.intercept)
    assert fit.r2 == pytest.approx(line.rvalue**2)
    assert fit.r2 < 0.9


def test_shares_count_active_words_with_strict_limits() -> None:
    # IDF of df 13 in 100 images: ln(1 + 87.5 / 13.5) = 2.012; of df 14: 1.941
    fit = fit_zipf(np.array([100, 51, 50, 14, 13, 10, 9, 1, 0, 0]), 100)
    assert fit.active_words == 8
    assert fit.head == 2 / 8
    assert fit.tail == 2 / 8
    assert fit.high_idf == 4 / 8


def test_equal_frequencies_fit_a_flat_line() -> None:
    fit = fit_zipf(np.full(10, 7), 20)
    assert fit.alpha == pytest.approx(0, abs=1e-9)
    assert fit.r2 == 1


def test_one_active_word_is_refused() -> None:
    with pytest.raises(EvaluationError, match="needs at least 2 active words, not 1"):
        fit_zipf(np.array([0, 3]), 10)


def pixels(path: Path) -> NDArray[np.uint8]:
    return np.asarray(Image.open(path).convert("RGB"))


def share(image: NDArray[np.uint8], colour: str) -> float:
    rgb = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)])
    return float((np.abs(image.astype(int) - rgb).max(axis=2) < 12).mean())


def noisy(alpha: float, seed: int) -> ZipfFit:
    noise = np.random.default_rng(seed).lognormal(0, 0.2, 800)
    df_v = np.ceil(3_000 * 0.8 * np.arange(1.0, 801) ** -alpha * noise).clip(1, 3_000)
    return fit_zipf(df_v.astype(np.int64), 3_000)


def test_plots_show_words_and_fits(tmp_path: Path) -> None:
    plots.draw_zipf(noisy(1.2, 0), "Pets", tmp_path / "one.png")
    image = pixels(tmp_path / "one.png")
    assert share(image, plots.COLOURS[0]) > 0.001
    assert share(image, plots.COLOURS[1]) > 0.001
    fits = {f"set {n}": noisy(1 + n / 10, n) for n in range(9)}
    plots.draw_zipf_comparison(fits, tmp_path / "all.png")
    image = pixels(tmp_path / "all.png")
    for colour in plots.COLOURS:
        assert share(image, colour) > 0.0005


def test_without_matplotlib_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"\[research\]"):
        plots.draw_zipf(noisy(1, 0), "Pets", tmp_path / "one.png")


def bag(*words: int) -> Bag:
    return Bag(np.array(words, np.int32), np.ones(len(words), np.uint16))


def usage_in_the_paper(images: int, active: int) -> cost.WordUsage:
    return cost.WordUsage(images, 18_432, active, 16, 16, postings=0)


# The paper's range of active words, and its range of operations per image, "(0.4-2.4) N".
@pytest.mark.parametrize(("active", "per_image"), [(3_240, 0.4), (527, 2.4)])
def test_operations_agree_with_the_paper(active: int, per_image: float) -> None:
    images = 75_750
    lines = {
        line.system: line for line in cost.cost_table(usage_in_the_paper(images, active), dim=1152)
    }
    assert round(lines["BM25-V"].operations / images, 1) == per_image
    assert lines["Two-stage"].operations == lines["BM25-V"].operations + 200 * 1152
    assert lines["Dense"].operations == 2 * 1152 * images
    assert lines["HNSW"].operations == 2 * 1152 * 100
    assert lines["IVF+PQ"].operations == pytest.approx(0.48 * images)


def test_bytes_agree_with_the_paper() -> None:
    lines = {
        line.system: line for line in cost.cost_table(usage_in_the_paper(5_994, 1_498), dim=1152)
    }
    assert {name: line.bytes_per_image for name, line in lines.items()} == {
        "Dense": 4608,
        "HNSW": 4864,
        "IVF+PQ": 48,
        "BM25-V": 96,
        "Two-stage": 4704,
    }
    assert lines["BM25-V"].compression == 48
    assert lines["IVF+PQ"].compression == 96


def test_counted_postings_are_those_that_queries_read() -> None:
    rng = np.random.default_rng(3)
    share = 1 / np.arange(1, 41)
    bags = [bag(*rng.choice(40, 5, replace=False, p=share / share.sum())) for _ in range(200)]
    df_v = np.bincount(np.concatenate([one.words for one in bags]), minlength=60)
    queries = bags[:20]
    usage = cost.count_usage(df_v, len(bags), queries)
    read = [sum(len(set(q.words) & set(b.words)) for b in bags) for q in queries]
    assert usage.postings == np.mean(read)
    assert (usage.image_words, usage.query_words) == (5, 5)
    assert (usage.vocabulary, usage.active) == (60, 40)
    assert usage.expect_postings(usage.query_words) == pytest.approx(5 * 5 * 200 / 40)
    assert usage.postings > usage.expect_postings(usage.query_words)
    lines = {line.system: line for line in cost.cost_table(usage, dim=8)}
    assert lines["BM25-V"].counted == 5 * usage.postings
    assert lines["Two-stage"].counted == 5 * usage.postings + 200 * 8
    assert lines["Dense"].counted is None


def test_equally_frequent_words_read_the_expected_postings() -> None:
    bags = [bag(*(np.arange(4) + 4 * (n % 10))) for n in range(100)]
    df_v = np.bincount(np.concatenate([one.words for one in bags]))
    usage = cost.count_usage(df_v, 100, bags)
    assert usage.postings == usage.expect_postings(usage.query_words) == 40


def test_usage_needs_words() -> None:
    with pytest.raises(EvaluationError, match="none of the 3 images has a word"):
        cost.count_usage(np.zeros(5, np.int64), 3, [bag(1)])


def test_expected_active_words_agree_with_random_draws() -> None:
    rng = np.random.default_rng(4)
    drawn = [
        len(np.unique([rng.choice(300, 6, replace=False) for _ in range(40)])) for _ in range(30)
    ]
    assert cost.expected_active_words(40, 6, 300) == pytest.approx(np.mean(drawn), rel=0.02)
    curve = cost.expected_active_words(np.array([1, 10, 100, 10_000]), 6, 300)
    assert (np.diff(curve) > 0).all()
    assert curve[-1] == pytest.approx(300)


def test_a_projection_to_a_large_gallery_reaches_the_limit_of_the_paper() -> None:
    projected = cost.WordUsage(1_000, 18_432, 900, 16, 16, postings=500).project(100_000_000)
    assert projected.expect_postings(projected.query_words) == pytest.approx(
        16 * 16 * 100_000_000 / 18_432
    )
    assert projected.postings == 500 * 100_000
    assert projected.active == pytest.approx(18_432)


def test_without_queries_each_image_is_a_query() -> None:
    rng = np.random.default_rng(5)
    bags = [bag(*rng.choice(50, 1 + n % 6, replace=False)) for n in range(80)]
    df_v = np.bincount(np.concatenate([one.words for one in bags]), minlength=64)
    with_queries, without = cost.count_usage(df_v, 80, bags), cost.count_usage(df_v, 80)
    for name, value in vars(with_queries).items():
        assert getattr(without, name) == pytest.approx(value), name
    with pytest.raises(EvaluationError, match="none of the 3 images has a word"):
        cost.count_usage(np.zeros(5, np.int64), 3)


def test_mean_active_words_agree_with_random_samples() -> None:
    rng = np.random.default_rng(6)
    share = 1 / np.arange(1, 61)
    bags = [rng.choice(60, 4, replace=False, p=share / share.sum()) for _ in range(50)]
    df_v = np.bincount(np.concatenate(bags), minlength=70)
    sizes = [0, 1, 5, 20, 50]
    means = cost.mean_active_words(df_v, 50, sizes)
    drawn = np.zeros(len(sizes))
    for _ in range(2_000):
        order = rng.permutation(50)
        drawn += [len({w for row in order[:n] for w in bags[row]}) for n in sizes]
    np.testing.assert_allclose(means, drawn / 2_000, rtol=0.02)
    assert means[-1] == (df_v > 0).sum()


def test_mean_active_words_are_exact_in_large_galleries() -> None:
    million = cost.mean_active_words(np.array([1, 10**6, 5 * 10**7]), 10**8, [10**6, 10**8])
    assert million[0] == pytest.approx(0.01 + 1 + 1, rel=1e-6)
    assert million[1] == 3


def test_growth_goes_from_one_image_to_all() -> None:
    growth = cost.measure_growth(np.array([30, 20, 10, 0]), 30)
    assert growth.sizes == [1, 2, 5, 10, 20, 30]
    assert growth.measured[0] == pytest.approx(2)  # 60 words in 30 images
    assert growth.expected[0] == pytest.approx(2)
    assert (growth.measured[-1], growth.vocabulary) == (3, 4)


def test_growth_is_drawn_to_a_file_with_a_known_suffix(tmp_path: Path) -> None:
    growth = cost.measure_growth(power_law(1.0, 500, 2_000).clip(1), 2_000)
    plots.draw_growth(growth, "Pets", tmp_path / "growth.png")
    image = pixels(tmp_path / "growth.png")
    assert share(image, plots.COLOURS[0]) > 0.001
    assert share(image, plots.COLOURS[1]) > 0.001
    with pytest.raises(
        InvalidOption, match=r"growth: a plot's name must end in \.png, \.svg, \.pdf"
    ):
        plots.draw_growth(growth, "Pets", tmp_path / "growth")


def test_a_failed_plot_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = pytest.importorskip("matplotlib.figure")
    path = tmp_path / "one.png"
    path.write_bytes(b"old")

    def fail(self: object, file: BinaryIO, **options: object) -> None:
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(figure.Figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        plots.draw_zipf(noisy(1, 0), "Pets", path)
    assert [file.name for file in tmp_path.iterdir()] == ["one.png"]
    assert path.read_bytes() == b"old"
