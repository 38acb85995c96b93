"""Draws what a number makes of recall."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bm25v.errors import WrongUse
from bm25v.research import charts
from bm25v.research.ablations import Grid

_COLOURS = {"bm25v": "#0072B2", "two-stage": "#D55E00", "hybrid": "#009E73"}


def numbers(values: Sequence[Mapping[str, str]], path: Path) -> list[float]:
    """Return the values of one axis as numbers; refuse what cannot be drawn.

    >>> numbers([{"b": "0.5"}, {"b": "1"}], Path("plot.png"))
    [0.5, 1.0]
    """
    axes = list(values[0])
    charts.check(path)
    if len(axes) != 1:
        raise WrongUse(f"{' and '.join(axes)} cannot be drawn at once: vary one of them")
    try:
        return [float(one[axes[0]]) for one in values]
    except ValueError as error:
        raise WrongUse(f"the values of {axes[0]} are no numbers, so there is no curve") from error


def draw(grid: Grid, path: Path) -> None:
    """Draw each system's first figure over the values of one axis, and bm25v's R@100."""
    x = numbers([cell.values for cell in grid.cells], path)
    (axis,) = grid.axes
    first = next(iter(grid.dense))
    figure, axes = charts.sheet(path, grid.dataset.title, axis)
    for system, colour in _COLOURS.items():
        for name, style in ((first, "o-"), ("R@100", "o:")):
            found = [cell.figures.get(system, {}) for cell in grid.cells]
            if name not in found[0] or (name != first and system != "bm25v"):
                continue
            y = [figures[name] for figures in found]
            axes.plot(x, y, style, color=colour, markersize=4, label=f"{system} {name}")
    axes.axhline(grid.dense[first], color="grey", linewidth=1, label=f"dense {first}")
    if min(x) > 0 and max(x) / min(x) >= 8:
        axes.set_xscale("log", base=2)
    axes.set_xticks(x, [cell.values[axis] for cell in grid.cells])
    axes.minorticks_off()
    axes.set_ylabel("share of queries")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
