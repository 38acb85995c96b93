"""The charts of pages about words, as SVG that takes its colours from the page."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.explain.word_portrait import TfBin

POINTS = 300  # a curve has at most; of more steps, neighbours are averaged

_WIDTH, _HEIGHT = 520, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 36, 512, 24, 222  # of the plot
_PER_DECADE = 3  # narrower, and rare words, which have 1, 2, 3 … patches, would leave bins empty


class Bin(NamedTuple):
    """Words whose share of the patches lies between two values."""

    low: float
    high: float
    words: int


def density_bins(density_v: NDArray[np.float64]) -> list[Bin]:
    """Sort the words that are active at all into bins of equal width on a logarithmic scale.

    >>> [one.words for one in density_bins(np.array([0, 0.03, 0.04, 0.05, 0.5]))]
    [2, 1, 0, 0, 1]
    """
    active = density_v[density_v > 0]
    if not len(active):
        return []
    places = np.floor(np.log10(active) * _PER_DECADE + 1e-9).astype(int)
    places = np.minimum(places, -1)  # what is active everywhere goes into the last bin
    first, last = int(places.min()), int(places.max())
    counts = np.bincount(places - first).tolist()
    edges = [10 ** (place / _PER_DECADE) for place in range(first, last + 2)]
    return [Bin(*one) for one in zip(edges, edges[1:], counts, strict=False)]


def spread(bins: Sequence[TfBin]) -> str:
    """Draw how many pictures have how much of a word."""
    most = max((one.pictures for one in bins), default=1)
    slot = (_WIDTH - 16) / max(len(bins), 6)
    parts = []
    for number, one in enumerate(bins):
        about = f"tf {one.low:g} to {one.high:g}"
        parts.append(_bar(8 + number * slot, slot, one.pictures, most, "active", about, "pictures"))
    for number, edge in enumerate([one.low for one in bins] + [one.high for one in bins[-1:]]):
        parts.append(_text(8 + number * slot, _BOTTOM + 20, f"{edge:g}"))
    parts.append(_line(8, _BOTTOM, 8 + len(bins) * slot, _BOTTOM, "axis"))
    return _svg("histogram", "How many pictures have how much of the word", parts)


def place(grid: NDArray[np.float32]) -> str:
    """Draw where in a picture a word is: the more, the stronger the colour."""
    rows, columns = grid.shape
    peak = float(grid.max()) or 1.0
    cells = "".join(
        f'<rect x="{x}" y="{y}" width="1" height="1" opacity="{grid[y, x] / peak:.2f}"/>'
        for y in range(rows)
        for x in range(columns)
        if grid[y, x] > 0.01 * peak
    )
    return (
        f'<svg class="place" viewBox="0 0 {columns} {rows}" role="img" '
        f'aria-label="Where in a picture the word is, on average">{cells}</svg>'
    )


def histogram(density_v: NDArray[np.float64]) -> str:
    """Draw how many words have which density; words that are never active get their own bar."""
    bins, silent = density_bins(density_v), int((density_v == 0).sum())
    most = max(silent, *(one.words for one in bins), 1) if bins else max(silent, 1)
    slot = (_RIGHT - 16) / (len(bins) + 1.5)  # half a slot sets the silent ones apart
    parts = [_bar(8, slot, silent, most, "silent", "never active in the sample")]
    start = 8 + 1.5 * slot
    for number, one in enumerate(bins):
        about = f"active in {percent(one.low)} to {percent(one.high)} of the patches"
        parts.append(_bar(start + number * slot, slot, one.words, most, "active", about))
    parts.append(_text(8 + slot / 2, _BOTTOM + 20, "silent"))
    edges = [one.low for one in bins] + [one.high for one in bins[-1:]]
    for number, edge in enumerate(edges):
        if abs(math.log10(edge) - round(math.log10(edge))) < 1e-6:
            x = start + number * slot
            parts.append(_line(x, _BOTTOM, x, _BOTTOM + 5, "axis"))
            parts.append(_text(x, _BOTTOM + 20, percent(edge)))
    parts.append(_line(8, _BOTTOM, _RIGHT - 8, _BOTTOM, "axis"))
    return _svg("histogram", "How many words are active in which share of the patches", parts)


def curve(points: Sequence[tuple[int, float]], final: float | None) -> str:
    """Draw the unexplained share of the variance over the steps, and where it ended."""
    thin = thinned(points)
    first, last = points[0][0], points[-1][0]
    highest = max(value for _, value in thin)
    gap = 0.2 if highest > 0.4 else 0.1
    top = min(1.0, gap * math.ceil(highest / gap))

    def x(step: float) -> float:
        return _LEFT + (step - first) / max(last - first, 1) * (_RIGHT - _LEFT)

    def y(value: float) -> float:
        return _BOTTOM - min(value, top) / top * (_BOTTOM - _TOP)

    parts = []
    for tick in np.linspace(0, top, round(top / gap) + 1).tolist():
        parts.append(_line(_LEFT, y(tick), _RIGHT, y(tick), "grid" if tick else "axis"))
        parts.append(_text(_LEFT - 8, y(tick) + 4, f"{tick:.2g}", "end"))
    for step, anchor in ((first, "start"), (last, "end")):
        parts.append(_text(x(step), _BOTTOM + 20, f"step {step:,}", anchor))
    line = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in thin)
    if final is not None:
        parts.append(_line(_LEFT, y(final), _RIGHT, y(final), "final"))
    parts.append(f'<polyline points="{line}"/>')
    if final is not None:
        parts.append(_text(_RIGHT, y(final) - 14, f"held out {final:.3f}", "end", "note"))
    return _svg("curve", "Share of the variance left unexplained, over the steps", parts)


def thinned(points: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """Return at most `POINTS` points: where there are more, the means of neighbours.

    >>> len(thinned([(step, 0.5) for step in range(1000)])), thinned([(1, 0.5)])
    (300, [(1.0, 0.5)])
    """
    parts = np.array_split(np.array(points, dtype=np.float64), min(POINTS, len(points)))
    return [(float(part[:, 0].mean()), float(part[:, 1].mean())) for part in parts]


def percent(share: float) -> str:
    """Return a share in percent, with two digits that matter.

    >>> percent(1), percent(0.1), percent(0.0217), percent(0.000464)
    ('100%', '10%', '2.2%', '0.046%')
    """
    value = 100 * share
    digits = 0 if value >= 10 or value == 0 else 1 - math.floor(math.log10(value) + 1e-9)
    text = f"{value:.{digits}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + "%"


def _bar(
    x: float, slot: float, count: int, most: int, kind: str, about: str, unit: str = "words"
) -> str:
    height = count / most * (_BOTTOM - _TOP)
    top, gap = _BOTTOM - height, min(4.0, slot / 8)
    rect = f'<rect class="{kind}" data-{unit}="{count}" x="{x + gap:.1f}" y="{top:.1f}"'
    label = _text(x + slot / 2, top - 6, f"{count:,}", kind="count") if count else ""
    return (
        f'<g><title>{count:,} {unit}, {about}</title>{rect} width="{slot - 2 * gap:.1f}" '
        f'height="{height:.1f}"></rect>{label}</g>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str = "middle", kind: str = "tick") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def _svg(kind: str, about: str, parts: list[str]) -> str:
    return (
        f'<svg class="{kind}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{about}">'
        f"{''.join(parts)}</svg>"
    )
