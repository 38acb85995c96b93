"""Every plot of the research commands, drawn with matplotlib as .png, .svg or .pdf."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bm25v.errors import InvalidOption, MissingExtra
from bm25v.files import replacing_file
from bm25v.privacy import prepare_matplotlib
from bm25v.research.faithfulness import ORDERS
from bm25v.research.tables import format_share

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bm25v.research.ablate import AblationResult
    from bm25v.research.cost import Growth
    from bm25v.research.evaluate import EvaluationResult
    from bm25v.research.faithfulness import Faithfulness
    from bm25v.research.zipf import ZipfFit

# Okabe and Ito's palette for colour-blind readers, without its yellow, which is too pale for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")

_LINE_STYLES = ("-", "--", ":")
_SUFFIXES = (".png", ".svg", ".pdf")


def check_path(path: Path) -> None:
    """Refuse a plot that cannot be drawn; call it before a long measurement."""
    if path.suffix.lower() not in _SUFFIXES:
        raise InvalidOption(f"{path}: a plot's name must end in {', '.join(_SUFFIXES)}")
    if not path.parent.is_dir():
        raise InvalidOption(f"{path}: the folder {path.parent} does not exist: create it first")
    prepare_matplotlib()
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingExtra("drawing plots", "research") from error


def draw_zipf(fit: "ZipfFit", title: str, path: Path) -> None:
    with _plot(path, title, "rank of the word", "images with the word") as axes:
        ranks = np.arange(1, fit.active_words + 1)
        label = f"power law: α = {fit.alpha:.2f}, R² = {fit.r2:.3f}"
        axes.loglog(ranks, fit.df_r, ".", color=COLOURS[0], markersize=5, label="words")
        axes.loglog(ranks, fit.fitted_df_r, "--", color=COLOURS[1], linewidth=2, label=label)
        axes.set_ylim(0.7, fit.n_images * 1.5)
        axes.axhline(fit.n_images, color="grey", linewidth=1, label=f"all {fit.n_images:,} images")
        axes.legend(frameon=False, loc="lower left")
        _plain_numbers(axes)


def draw_zipf_comparison(fits: "Mapping[str, ZipfFit]", path: Path) -> None:
    """Draw several collections in one plot, each relative to its most frequent word."""
    title = "Document frequency, relative to the most frequent word"
    y_label = "document frequency, most frequent word = 1"
    with _plot(path, title, "rank of the word", y_label) as axes:
        for number, (name, fit) in enumerate(fits.items()):
            axes.loglog(
                np.arange(1, fit.active_words + 1),
                fit.df_r / fit.df_r[0],
                **_line(number),
                linewidth=1.8,
                label=f"{name} (α = {fit.alpha:.2f})",
            )
        ranks = np.arange(1, max(fit.active_words for fit in fits.values()) + 1)
        axes.loglog(ranks, 1 / ranks, color="silver", linewidth=1, label="α = 1, as text")
        axes.set_ylim(min(1 / fit.df_r[0] for fit in fits.values()) * 0.7, 1.5)
        axes.legend(frameon=False, loc="lower left", fontsize="small")
        _plain_numbers(axes)


def draw_recall(result: "EvaluationResult", path: Path) -> None:
    metrics = [metric for metric in result.metrics if metric.startswith("R@")]
    y_label = "share of queries with their class among the first K"
    with _plot(path, f"Recall at K: {result.name}", "K", y_label) as axes:
        ks = [int(metric.removeprefix("R@")) for metric in metrics]
        for number, (name, system) in enumerate(result.systems.items()):
            axes.plot(
                ks,
                [system.metrics[metric].mean for metric in metrics],
                **_line(number),
                marker="o",
                markersize=4,
                label=name,
            )
        axes.set_xscale("log")
        axes.set_xticks(ks, map(str, ks))
        axes.minorticks_off()
        axes.legend(frameon=False, fontsize="small")


def draw_growth(growth: "Growth", title: str, path: Path) -> None:
    with _plot(path, title, "images", "words in at least one image") as axes:
        sizes = growth.sizes
        axes.loglog(sizes, growth.measured, "o-", color=COLOURS[0], markersize=4, label="measured")
        label = "expected if images drew words uniformly"
        axes.loglog(sizes, growth.expected, "--", color=COLOURS[1], linewidth=2, label=label)
        label = f"all {growth.vocabulary:,} words"
        axes.axhline(growth.vocabulary, color="grey", linewidth=1, label=label)
        axes.legend(frameon=False, loc="lower right")
        _plain_numbers(axes)


def ablation_values(settings: Sequence[Mapping[str, str]]) -> list[float]:
    """Return the values of the one setting that an ablation varies, as numbers."""
    names = list(settings[0])
    if len(names) != 1:
        raise InvalidOption(
            f"a plot shows one setting, not {' and '.join(names)}: vary one of them"
        )
    try:
        return [float(values[names[0]]) for values in settings]
    except ValueError as error:
        raise InvalidOption(
            f"{names[0]} has values that are not numbers: it cannot be drawn"
        ) from error


def draw_ablation(ablation: "AblationResult", path: Path) -> None:
    """Draw the first metric of each system over the varied setting, and bm25v's R@100."""
    x = ablation_values([trial.values for trial in ablation.trials])
    (setting,) = ablation.axes
    first = next(iter(ablation.dense))
    with _plot(path, ablation.dataset.title, setting, "share of queries") as axes:
        for system, colour in zip(("bm25v", "two-stage", "hybrid", "words"), COLOURS, strict=False):
            trials = [trial.metrics.get(system, {}) for trial in ablation.trials]
            for metric, style in ((first, "o-"), ("R@100", "o:")):
                if metric in trials[0] and (metric == first or system == "bm25v"):
                    y = [metrics[metric] for metrics in trials]
                    axes.plot(x, y, style, color=colour, markersize=4, label=f"{system} {metric}")
        axes.axhline(ablation.dense[first], color="grey", linewidth=1, label=f"dense {first}")
        if min(x) > 0 and max(x) / min(x) >= 8:
            axes.set_xscale("log", base=2)
        axes.set_xticks(x, [trial.values[setting] for trial in ablation.trials])
        axes.minorticks_off()
        axes.legend(frameon=False)


def draw_faithfulness(result: "Faithfulness", path: Path) -> None:
    """Draw deletion and insertion curves, one row of plots per kind of mask."""
    figure = _new_figure(path, 10, 0.9 + 3.5 * len(result.masks))
    panels = figure.subplots(len(result.masks), 2, sharex=True, sharey=True, squeeze=False)
    for (mask, measured), row in zip(result.masks.items(), panels, strict=True):
        kinds = {"deletion": "masked", "insertion": "revealed, all others masked"}
        for axes, (kind, label) in zip(row, kinds.items(), strict=True):
            for order, colour in zip(ORDERS, (*COLOURS[:3], "grey"), strict=True):
                auc = format_share(measured.bm25.auc(order, kind).mean)
                means, lows, highs = zip(*measured.bm25.means(order, kind), strict=True)
                axes.fill_between(result.shares, lows, highs, color=colour, alpha=0.15, lw=0)
                axes.plot(
                    result.shares,
                    means,
                    ".-",
                    color=colour,
                    label=f"{order}: area {auc}",
                    zorder=3 if order == "explanation" else 2,
                )
            _style(axes, f"share of patches {label} ({mask})")
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
            axes.legend(frameon=False, fontsize="small")
        row[0].set_ylabel("BM25, complete hit = 1")
    panels[0, 0].set_title("Deletion, most important first: lower is better")
    panels[0, 1].set_title("Insertion, most important first: higher is better")
    figure.suptitle(f"{result.title}: {result.pairs:,} pairs, means with 95 % intervals")
    _save(figure, path, dpi=110)


@contextmanager
def _plot(path: Path, title: str, x_label: str, y_label: str) -> "Iterator[Axes]":
    figure = _new_figure(path, 7, 4.8)
    axes = figure.subplots()
    axes.set_title(title)
    axes.set_ylabel(y_label)
    _style(axes, x_label)
    yield axes
    _save(figure, path)


def _new_figure(path: Path, width: float, height: float) -> "Figure":
    check_path(path)
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _style(axes: "Axes", x_label: str) -> None:
    axes.set_xlabel(x_label)
    axes.grid(which="major", color="0.9")
    axes.spines[["top", "right"]].set_visible(False)


def _line(number: int) -> dict[str, Any]:
    """Return a colour and a style that differ from those of other lines."""
    style = _LINE_STYLES[number // len(COLOURS) % len(_LINE_STYLES)]
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": style}


def _plain_numbers(axes: "Axes") -> None:
    """Label ticks 1,000 instead of 10³."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")


def _save(figure: "Figure", path: Path, dpi: int = 150) -> None:
    with replacing_file(path) as file:
        figure.savefig(file, format=path.suffix[1:].lower(), dpi=dpi)
