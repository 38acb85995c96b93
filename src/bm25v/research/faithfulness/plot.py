"""Draws scores over the share of patches that are hidden, or shown."""

from pathlib import Path

from bm25v.research.charts import COLOURS, blank, plain
from bm25v.research.faithfulness.orders import ORDERS, OURS
from bm25v.research.faithfulness.result import Faithfulness
from bm25v.research.tables import decimals

_COLOURS = dict(zip(ORDERS, (*COLOURS[:3], "grey"), strict=True))


def draw(result: Faithfulness, path: Path) -> None:
    """Draw what is left of a score while patches are hidden, and what is there while shown."""
    ways = list(result.ways.items())
    figure = blank(path, 10, 0.9 + 3.5 * len(ways))
    panels = figure.subplots(len(ways), 2, sharex=True, sharey=True, squeeze=False)
    for (way, hidden), row in zip(ways, panels, strict=True):
        sides = zip(row, hidden.bm25, ("hidden", "shown, all others hidden"), strict=True)
        for axes, curves, what in sides:
            for name, colour in _COLOURS.items():
                area = decimals(curves.area(name).mean)
                means, lows, highs = zip(*curves.steps(name), strict=True)
                axes.fill_between(curves.shares_s, lows, highs, color=colour, alpha=0.15, lw=0)
                label = f"{name}: area {area}"
                front = 3 if name == OURS else 2
                axes.plot(curves.shares_s, means, ".-", color=colour, label=label, zorder=front)
            plain(axes, "", f"share of patches {what} ({way})")
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
            axes.legend(frameon=False, fontsize="small")
        row[0].set_ylabel("BM25, whole hit = 1")
    panels[0, 0].set_title("Hiding what matters first: lower is better")
    panels[0, 1].set_title("Showing what matters first: higher is better")
    figure.suptitle(f"{result.title}: {result.pairs:,} pairs, means with 95 % intervals")
    figure.savefig(path, dpi=110)
