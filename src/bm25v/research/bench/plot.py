"""Draws search times over the number of pictures."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from bm25v.errors import MissingExtra
from bm25v.research.bench.search import SearchTimes

_OURS = {"first-stage": "#d1481f", "two-stage": "#7a2a12", "batch": "#f0a58c"}


def figure() -> Any:
    """Return an empty figure; ask for it early, as it needs an extra."""
    try:
        return import_module("matplotlib.figure").Figure(figsize=(8, 5), layout="constrained")
    except ModuleNotFoundError as error:
        raise MissingExtra("drawing a plot", "research") from error


def draw(empty: Any, found: Sequence[SearchTimes], path: Path) -> None:
    """Draw the median of each system, a line each, on logarithmic axes."""
    axes = empty.subplots()
    for name in dict.fromkeys(name for times in found for name in times.systems):
        timed = sorted((t.n, t.systems[name].median_ms) for t in found if name in t.systems)
        look = {"color": _OURS[name], "linewidth": 2.5} if name in _OURS else {"linewidth": 1}
        axes.loglog(*zip(*timed, strict=True), marker="o", label=name, **look)
    axes.set(xlabel="pictures", ylabel="ms a query, median", title=f"K = {found[0].k}")
    axes.grid(alpha=0.3)
    handles, labels = axes.get_legend_handles_labels()
    slow_first = sorted(zip(handles, labels, strict=True), key=lambda one: -one[0].get_ydata()[-1])
    empty.legend(*zip(*slow_first, strict=True), loc="outside right upper", frameon=False)
    empty.savefig(path)
