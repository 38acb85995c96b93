"""Draws rank-frequency charts of words, on logarithmic axes."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bm25v.errors import MissingExtra, WrongUse
from bm25v.evaluate.zipf import Zipf

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind people can tell apart; without the yellow, which is
# too pale for a line.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_STYLES = ("-", "--", ":")


def draw_zipf(zipf: Zipf, title: str, path: Path) -> None:
    """Draw in how many pictures each word is, by rank, and the fitted power law."""
    figure, axes = _sheet(title)
    ranks = np.arange(1, zipf.active + 1)
    fit = f"power law: α = {zipf.alpha:.2f}, R² = {zipf.r2:.3f}"
    axes.loglog(ranks, zipf.df_r, ".", color=_COLOURS[0], markersize=5, label="words")
    axes.loglog(ranks, zipf.fitted_r, "--", color=_COLOURS[1], linewidth=2, label=fit)
    axes.set_ylim(0.7, zipf.pictures * 1.5)
    axes.axhline(zipf.pictures, color="grey", linewidth=1, label=f"all {zipf.pictures:,} pictures")
    axes.set_ylabel("pictures with the word")
    axes.legend(frameon=False, loc="lower left")
    figure.savefig(path, dpi=150)


def draw_overlay(sets: Mapping[str, Zipf], path: Path) -> None:
    """Draw several data sets in one chart, each relative to its most frequent word."""
    if not sets:
        raise WrongUse("there are no data sets to draw")
    figure, axes = _sheet("How often words are used, relative to the most frequent one")
    for number, (name, zipf) in enumerate(sets.items()):
        axes.loglog(
            np.arange(1, zipf.active + 1),
            zipf.df_r / zipf.df_r[0],
            _STYLES[number // len(_COLOURS) % len(_STYLES)],
            color=_COLOURS[number % len(_COLOURS)],
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
    figure.savefig(path, dpi=150)


def _sheet(title: str) -> "tuple[Figure, Axes]":
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("drawing charts", "evaluate") from error
    figure = Figure(figsize=(7, 4.8), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title)
    axes.set_xlabel("rank of the word")
    axes.grid(which="major", color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes
