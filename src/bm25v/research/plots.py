"""Every plot of the research commands, drawn with matplotlib.

In: results and the path of the plot. Out: a .png, .svg or .pdf file. Not this module's job: charts
inside HTML pages.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bm25v.errors import MissingExtra, WrongUse
from bm25v.files import replacing_file
from bm25v.privacy import prepare_matplotlib
from bm25v.research.tables import format_share

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bm25v.research.ablate import AblationResult
    from bm25v.research.bench.search import SearchTimes
    from bm25v.research.cost import Growth
    from bm25v.research.faithfulness_results import Faithfulness
    from bm25v.research.zipf import ZipfFit

# Okabe and Ito's palette for colour-blind readers, without its yellow, which is too pale for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")

_LINE_STYLES = ("-", "--", ":")
_STAGE = re.compile(r"rerank|words-first-stage")  # of a search by full bags
_SUFFIXES = (".png", ".svg", ".pdf")
_ABLATED = dict(zip(("bm25v", "two-stage", "hybrid", "words"), COLOURS, strict=False))
_OURS = {
    "first-stage": "#d1481f",
    "two-stage": "#7a2a12",
    "batch": "#f0a58c",
    "words": "#0072B2",
    "hybrid": "#56B4E9",
}


def check_path(path: Path) -> None:
    """Refuse a plot that cannot be drawn; call it before a long measurement."""
    if path.suffix.lower() not in _SUFFIXES:
        raise WrongUse(f"{path}: a plot's name must end in {', '.join(_SUFFIXES)}")
    if not path.parent.is_dir():
        raise WrongUse(f"{path}: the folder {path.parent} does not exist: create it first")
    prepare_matplotlib()
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingExtra("drawing plots", "research") from error


def draw_zipf(fit: "ZipfFit", title: str, path: Path) -> None:
    """Draw the document frequency of each word by rank, and the fitted power law."""
    figure, axes = _new_plot(path, title, "rank of the word")
    ranks = np.arange(1, fit.active_words + 1)
    label = f"power law: α = {fit.alpha:.2f}, R² = {fit.r2:.3f}"
    axes.loglog(ranks, fit.df_r, ".", color=COLOURS[0], markersize=5, label="words")
    axes.loglog(ranks, fit.fitted_df_r, "--", color=COLOURS[1], linewidth=2, label=label)
    axes.set_ylim(0.7, fit.images * 1.5)
    axes.axhline(fit.images, color="grey", linewidth=1, label=f"all {fit.images:,} images")
    axes.set_ylabel("images with the word")
    axes.legend(frameon=False, loc="lower left")
    _plain_numbers(axes)
    _save(figure, path)


def draw_zipf_comparison(fits: "Mapping[str, ZipfFit]", path: Path) -> None:
    """Draw several collections in one plot, each relative to its most frequent word."""
    if not fits:
        raise WrongUse("there are no collections to draw: give at least 1")
    title = "Document frequency, relative to the most frequent word"
    figure, axes = _new_plot(path, title, "rank of the word")
    for number, (name, fit) in enumerate(fits.items()):
        axes.loglog(
            np.arange(1, fit.active_words + 1),
            fit.df_r / fit.df_r[0],
            _LINE_STYLES[number // len(COLOURS) % len(_LINE_STYLES)],
            color=COLOURS[number % len(COLOURS)],
            linewidth=1.8,
            label=f"{name} (α = {fit.alpha:.2f})",
        )
    ranks = np.arange(1, max(fit.active_words for fit in fits.values()) + 1)
    axes.loglog(ranks, 1 / ranks, color="silver", linewidth=1, label="α = 1, as text")
    axes.set_ylim(min(1 / fit.df_r[0] for fit in fits.values()) * 0.7, 1.5)
    axes.set_ylabel("document frequency, most frequent word = 1")
    axes.legend(frameon=False, loc="lower left", fontsize="small")
    _plain_numbers(axes)
    _save(figure, path)


def draw_growth(growth: "Growth", title: str, path: Path) -> None:
    """Draw how many words are active as the gallery grows, measured and expected."""
    figure, axes = _new_plot(path, title, "images")
    sizes = growth.sizes
    axes.loglog(sizes, growth.measured, "o-", color=COLOURS[0], markersize=4, label="measured")
    label = "expected if images drew words uniformly"
    axes.loglog(sizes, growth.expected, "--", color=COLOURS[1], linewidth=2, label=label)
    label = f"all {growth.vocabulary:,} words"
    axes.axhline(growth.vocabulary, color="grey", linewidth=1, label=label)
    axes.set_ylabel("words in at least one image")
    axes.legend(frameon=False, loc="lower right")
    _plain_numbers(axes)
    _save(figure, path)


def ablation_values(settings: Sequence[Mapping[str, str]]) -> list[float]:
    """Return the values of the one setting that an ablation varies, as numbers.

    >>> ablation_values([{"b": "0.5"}, {"b": "1"}])
    [0.5, 1.0]
    """
    names = list(settings[0])
    if len(names) != 1:
        raise WrongUse(f"a plot shows one setting, not {' and '.join(names)}: vary one of them")
    try:
        return [float(values[names[0]]) for values in settings]
    except ValueError as error:
        raise WrongUse(f"{names[0]} has values that are not numbers: it cannot be drawn") from error


def draw_ablation(grid: "AblationResult", path: Path) -> None:
    """Draw the first metric of each system over the varied setting, and bm25v's R@100."""
    x = ablation_values([cell.values for cell in grid.trials])
    (setting,) = grid.axes
    first = next(iter(grid.dense))
    figure, axes = _new_plot(path, grid.dataset.title, setting)
    for system, colour in _ABLATED.items():
        for metric, style in ((first, "o-"), ("R@100", "o:")):
            cells = [cell.metrics.get(system, {}) for cell in grid.trials]
            if metric not in cells[0] or (metric != first and system != "bm25v"):
                continue
            y = [metrics[metric] for metrics in cells]
            axes.plot(x, y, style, color=colour, markersize=4, label=f"{system} {metric}")
    axes.axhline(grid.dense[first], color="grey", linewidth=1, label=f"dense {first}")
    if min(x) > 0 and max(x) / min(x) >= 8:
        axes.set_xscale("log", base=2)
    axes.set_xticks(x, [cell.values[setting] for cell in grid.trials])
    axes.minorticks_off()
    axes.set_ylabel("share of queries")
    axes.legend(frameon=False)
    _save(figure, path)


def draw_faithfulness(result: "Faithfulness", path: Path) -> None:
    """Draw deletion and insertion curves, one row of plots per kind of mask."""
    figure = _new_figure(path, 10, 0.9 + 3.5 * len(result.masks))
    panels = figure.subplots(len(result.masks), 2, sharex=True, sharey=True, squeeze=False)
    for (mask, measured), row in zip(result.masks.items(), panels, strict=True):
        labels = ("masked", "revealed, all others masked")
        for axes, curves, label in zip(row, measured.bm25, labels, strict=True):
            for order, colour in zip(curves.orders, (*COLOURS[:3], "grey"), strict=True):
                auc = format_share(curves.auc(order).mean)
                means, lows, highs = zip(*curves.means(order), strict=True)
                axes.fill_between(curves.shares_s, lows, highs, color=colour, alpha=0.15, lw=0)
                axes.plot(
                    curves.shares_s,
                    means,
                    ".-",
                    color=colour,
                    label=f"{order}: area {auc}",
                    zorder=3 if order == "explanation" else 2,
                )
            _style(axes, "", f"share of patches {label} ({mask})")
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
            axes.legend(frameon=False, fontsize="small")
        row[0].set_ylabel("BM25, complete hit = 1")
    panels[0, 0].set_title("Deletion, most important first: lower is better")
    panels[0, 1].set_title("Insertion, most important first: higher is better")
    figure.suptitle(f"{result.title}: {result.pairs:,} pairs, means with 95 % intervals")
    _save(figure, path, dpi=110)


def draw_search_times(results: "Sequence[SearchTimes]", path: Path) -> None:
    """Draw the median time of each search over the number of images; not of single stages."""
    figure = _new_figure(path, 8, 5)
    axes = figure.subplots()
    names = dict.fromkeys(name for times in results for name in times.systems)
    for name in (name for name in names if not _STAGE.search(name)):
        points = sorted((t.n, t.systems[name].median_ms) for t in results if name in t.systems)
        x, y = zip(*points, strict=True)
        axes.loglog(
            x,
            y,
            marker="o",
            label=name,
            color=_OURS.get(name),
            linewidth=2.5 if name in _OURS else 1,
        )
    _style(axes, f"K = {results[0].k}", "images")
    axes.set_ylabel("ms per query, median")
    lines = sorted(axes.get_lines(), key=lambda line: -np.asarray(line.get_ydata())[-1])
    figure.legend(handles=lines, loc="outside right upper", frameon=False)  # slowest first
    _plain_numbers(axes)
    _save(figure, path, dpi=100)


def _new_figure(path: Path, width: float, height: float) -> "Figure":
    check_path(path)
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _new_plot(path: Path, title: str, x_label: str) -> "tuple[Figure, Axes]":
    figure = _new_figure(path, 7, 4.8)
    axes = figure.subplots()
    _style(axes, title, x_label)
    return figure, axes


def _style(axes: "Axes", title: str, x_label: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(x_label)
    axes.grid(which="major", color="0.9")
    axes.spines[["top", "right"]].set_visible(False)


def _plain_numbers(axes: "Axes") -> None:
    """Label ticks 1,000 instead of 10³."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")


def _save(figure: "Figure", path: Path, dpi: int = 150) -> None:
    with replacing_file(path) as file:
        figure.savefig(file, format=path.suffix[1:].lower(), dpi=dpi)
