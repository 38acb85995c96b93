"""Draws how words are spread, and how many are in use, on logarithmic axes."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bm25v.errors import MissingExtra, WrongUse
from bm25v.research.cost import Growth
from bm25v.research.zipf import Zipf

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind people can tell apart; without the yellow, which is
# too pale for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_STYLES = ("-", "--", ":")
_KINDS = (".png", ".svg", ".pdf")


def draw_zipf(zipf: Zipf, title: str, path: Path) -> None:
    """Draw in how many pictures each word is, by rank, and the fitted power law."""
    figure, axes = sheet(path, title, "rank of the word")
    ranks = np.arange(1, zipf.active + 1)
    fit = f"power law: α = {zipf.alpha:.2f}, R² = {zipf.r2:.3f}"
    axes.loglog(ranks, zipf.df_r, ".", color=COLOURS[0], markersize=5, label="words")
    axes.loglog(ranks, zipf.fitted_r, "--", color=COLOURS[1], linewidth=2, label=fit)
    axes.set_ylim(0.7, zipf.pictures * 1.5)
    axes.axhline(zipf.pictures, color="grey", linewidth=1, label=f"all {zipf.pictures:,} pictures")
    axes.set_ylabel("pictures with the word")
    axes.legend(frameon=False, loc="lower left")
    _save(figure, axes, path)


def draw_overlay(sets: Mapping[str, Zipf], path: Path) -> None:
    """Draw several data sets in one chart, each relative to its most frequent word."""
    if not sets:
        raise WrongUse("there are no data sets to draw")
    figure, axes = sheet(
        path, "How often words are used, relative to the most frequent one", "rank of the word"
    )
    for number, (name, zipf) in enumerate(sets.items()):
        axes.loglog(
            np.arange(1, zipf.active + 1),
            zipf.df_r / zipf.df_r[0],
            _STYLES[number // len(COLOURS) % len(_STYLES)],
            color=COLOURS[number % len(COLOURS)],
            linewidth=1.8,
            label=f"{name} (α = {zipf.alpha:.2f})",
        )
    longest = max(zipf.active for zipf in sets.values())
    text = 1 / np.arange(1.0, longest + 1)
    axes.loglog(
        np.arange(1, longest + 1), text, color="silver", linewidth=1, label="α = 1, as text"
    )
    axes.set_ylim(min(1 / zipf.df_r[0] for zipf in sets.values()) * 0.7, 1.5)
    axes.set_ylabel("document frequency, first word = 1")
    axes.legend(frameon=False, loc="lower left", fontsize="small")
    _save(figure, axes, path)


def draw_growth(growth: Growth, title: str, path: Path) -> None:
    """Draw how many words are in use after so many pictures, and how many were expected."""
    figure, axes = sheet(path, title, "pictures")
    axes.loglog(
        growth.sizes, growth.measured, "o-", color=COLOURS[0], markersize=4, label="measured"
    )
    axes.loglog(
        growth.sizes,
        growth.expected,
        "--",
        color=COLOURS[1],
        linewidth=2,
        label="expected, if pictures drew words evenly",
    )
    there = f"all {growth.vocabulary:,} words"
    axes.axhline(growth.vocabulary, color="grey", linewidth=1, label=there)
    axes.set_ylabel("words in any picture")
    axes.legend(frameon=False, loc="lower right")
    _save(figure, axes, path)


def check(path: Path) -> None:
    """Refuse a file whose ending does not say how to draw."""
    if path.suffix.lower() not in _KINDS:
        raise WrongUse(f"{path} has no ending that says how to draw: use {', '.join(_KINDS)}")


def blank(path: Path, width: float, height: float) -> "Figure":
    """Return an empty figure; refuse what cannot be drawn."""
    check(path)
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("drawing charts", "research") from error
    return Figure(figsize=(width, height), layout="constrained")


def sheet(path: Path, title: str, what: str) -> "tuple[Figure, Axes]":
    """Return an empty chart; `what` goes along it."""
    figure = blank(path, 7, 4.8)
    axes = figure.subplots()
    plain(axes, title, what)
    return figure, axes


def plain(axes: "Axes", title: str, what: str) -> None:
    """Give axes the look of all charts."""
    axes.set_title(title)
    axes.set_xlabel(what)
    axes.grid(which="major", color="0.9")
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: "Figure", axes: "Axes", path: Path) -> None:
    for axis in (axes.xaxis, axes.yaxis):  # 1,000 rather than 10³
        axis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    figure.savefig(path, dpi=150)
