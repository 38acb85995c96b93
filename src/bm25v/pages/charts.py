"""Charts as SVG that takes its colours from the style sheet of the page.

In: numbers. Out: markup that templates include as it is; every text in it is escaped. Not this
module's job: titles, and charts for papers (`bm25v.research` draws those with matplotlib).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from bm25v.display import percent
from bm25v.explanations.word_portrait import TfBin

MAX_POINTS = 300  # of a curve

_WIDTH = 520
_CURVE_POINTS = 120
_BINS_PER_DECADE = 3  # with more, rare words, which are in 1, 2, 3 … patches, leave bins empty

Ticks = Sequence[tuple[float, str]]


class _Frame(NamedTuple):
    """The area of a plot inside its drawing."""

    height: int  # of the drawing
    left: int
    right: int
    top: int
    bottom: int


_LINES = _Frame(300, 50, 508, 14, 254)
_CURVE = _Frame(260, 36, 512, 24, 222)
_BARS = _Frame(260, 8, 504, 24, 222)


# Lines over two axes.


class Line(NamedTuple):
    """Points in order; `kind` is the class that gives them a colour."""

    name: str
    points: Sequence[tuple[float, float]]
    kind: str
    is_marked: bool = True  # with a dot at each point


@dataclass(frozen=True)
class Axis:
    """One side of a plot; the label of the vertical axis stands above the plot, in the page."""

    label: str
    low: float
    high: float
    ticks: Ticks
    is_log: bool = False

    def share(self, value: float) -> float:
        """Return how far along the axis a value lies, from 0 to 1."""
        low, high = self.low, self.high
        if self.is_log:
            value, low, high = (math.log10(number) for number in (value, low, high))
        return (value - low) / ((high - low) or 1)


def log_axis(label: str, low: float, high: float) -> Axis:
    """Return a logarithmic axis with a tick at each power of ten.

    >>> [text for _, text in log_axis("images", 1, 1_500).ticks]
    ['1', '10', '100', '1,000']
    """
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    ticks = [
        (10.0**power, f"{10.0**power:,.{max(0, -power)}f}") for power in range(first, last + 1)
    ]
    return Axis(label, low, high, ticks, is_log=True)


def share_axis(label: str, low: float, high: float) -> Axis:
    """Return an axis for shares that holds both values, with at most seven round ticks.

    >>> [text for _, text in share_axis("recall", 0.74, 0.98).ticks]
    ['.70', '.75', '.80', '.85', '.90', '.95', '1.0']
    """
    for step in (0.01, 0.02, 0.05, 0.1, 0.2):
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if last - first <= 6:
            break
    ticks = [(n * step, format_share(n * step, 2)) for n in range(first, max(last, first + 1) + 1)]
    return Axis(label, ticks[0][0], ticks[-1][0], ticks)


def format_share(value: float, digits: int = 3) -> str:
    """Return a share as the paper's tables have it, always equally wide.

    >>> format_share(0.8921), format_share(1.0), format_share(0), format_share(-0.0123)
    ('.892', '1.00', '.000', '−.012')
    >>> format_share(float("nan"))
    '–'
    """
    if math.isnan(value):
        return "–"
    text = f"{abs(value):.{digits}f}"
    text = text[:-1] if float(text) >= 1 else text[1:]
    return f"−{text}" if value < 0 and float(text) else text


def draw_lines(label: str, lines: Sequence[Line], x: Axis, y: Axis) -> Markup:
    """Draw lines over two axes."""
    frame = _LINES

    def at(point: tuple[float, float]) -> tuple[float, float]:
        return (
            frame.left + x.share(point[0]) * (frame.right - frame.left),
            frame.bottom - y.share(point[1]) * (frame.bottom - frame.top),
        )

    parts = []
    for value, text in x.ticks:
        left, _ = at((value, y.low))
        parts.append(_line(left, frame.bottom, left, frame.bottom + 5, "axis"))
        parts.append(_text(left, frame.bottom + 22, text))
    parts.append(_line(frame.left, frame.bottom, frame.right, frame.bottom, "axis"))
    parts.append(_text((frame.left + frame.right) / 2, frame.height - 2, x.label))
    for value, text in y.ticks:
        _, top = at((x.low, value))
        if top < frame.bottom - 1:
            parts.append(_line(frame.left, top, frame.right, top, "grid"))
        parts.append(_text(frame.left - 8, top + 4, text, "end"))
    for line in lines:
        points = [at(point) for point in line.points]
        shapes = [_polyline(points, line.kind)] if len(points) > 1 else []
        if line.is_marked:
            shapes += [_circle(*point, line.kind) for point in points]
        parts.append(_element("g", [_element("title", [line.name]), *shapes]))
    return _drawing(frame, label, parts)


def draw_legend(lines: Sequence[Line]) -> Markup:
    """Return the names of the lines beside their colours, as a list."""
    items = []
    for line in lines:
        marks = [_line(1, 4, 25, 4, line.kind)]
        if line.is_marked:
            marks.append(_circle(13, 4, line.kind))
        key = _element("svg", marks, viewBox="0 0 26 8", aria_hidden="true")
        items.append(_element("li", [key, line.name]))
    return _element("ul", items, class_="legend")


# Bars, a curve and a map, about words.


def draw_tf_histogram(bins: Sequence[TfBin]) -> Markup:
    """Draw how many images have how much of a word."""
    highest = max((tf_bin.n_images for tf_bin in bins), default=1)
    slot = (_WIDTH - 16) / max(len(bins), 6)
    parts = []
    for n, tf_bin in enumerate(bins):
        label = f"{tf_bin.n_images:,} images, tf {tf_bin.low:g} to {tf_bin.high:g}"
        parts.append(_bar(8 + n * slot, slot, tf_bin.n_images, highest, "active", label))
    edges = [tf_bin.low for tf_bin in bins] + [tf_bin.high for tf_bin in bins[-1:]]
    for n, edge in enumerate(edges):
        parts.append(_text(8 + n * slot, _BARS.bottom + 20, f"{edge:g}"))
    parts.append(_line(8, _BARS.bottom, 8 + len(bins) * slot, _BARS.bottom, "axis"))
    return _drawing(_BARS, "How many images have how much of the word", parts, "histogram")


class DensityBin(NamedTuple):
    """How many words are active in a share of the patches from `low` to below `high`."""

    low: float
    high: float
    words: int


def density_bins(density_v: NDArray[np.float64]) -> list[DensityBin]:
    """Sort the words that are active at all into bins of equal width on a logarithmic scale.

    >>> [density_bin.words for density_bin in density_bins(np.array([0, 0.03, 0.04, 0.05, 0.5]))]
    [2, 1, 0, 0, 1]
    """
    active = density_v[density_v > 0]
    if not len(active):
        return []
    numbers = np.floor(np.log10(active) * _BINS_PER_DECADE + 1e-9).astype(int)
    numbers = np.minimum(numbers, -1)  # what is active in every patch goes into the last bin
    first, last = int(numbers.min()), int(numbers.max())
    counts = np.bincount(numbers - first).tolist()
    edges = [10 ** (number / _BINS_PER_DECADE) for number in range(first, last + 2)]
    return [DensityBin(*values) for values in zip(edges, edges[1:], counts, strict=False)]


def draw_density_histogram(density_v: NDArray[np.float64], of: str = "patches") -> Markup:
    """Draw how many words are in which share of the patches or images.

    Words that are in none get a bar of their own.
    """
    bins, n_silent = density_bins(density_v), int((density_v == 0).sum())
    highest = max([n_silent, 1, *(density_bin.words for density_bin in bins)])
    slot = (_BARS.right - 8) / (len(bins) + 1.5)  # half a slot separates the silent words
    silent = f"{n_silent:,} words, never active in the sample"
    parts = [_bar(8, slot, n_silent, highest, "silent", silent)]
    start = 8 + 1.5 * slot
    for n, density_bin in enumerate(bins):
        low, high = percent(density_bin.low), percent(density_bin.high)
        label = f"{density_bin.words:,} words, active in {low} to {high} of the {of}"
        parts.append(_bar(start + n * slot, slot, density_bin.words, highest, "active", label))
    parts.append(_text(8 + slot / 2, _BARS.bottom + 20, "silent"))
    edges = [density_bin.low for density_bin in bins]
    edges += [density_bin.high for density_bin in bins[-1:]]
    for n, edge in enumerate(edges):
        if abs(math.log10(edge) - round(math.log10(edge))) < 1e-6:
            x = start + n * slot
            parts.append(_line(x, _BARS.bottom, x, _BARS.bottom + 5, "axis"))
            parts.append(_text(x, _BARS.bottom + 20, percent(edge)))
    parts.append(_line(8, _BARS.bottom, _BARS.right, _BARS.bottom, "axis"))
    label = f"How many words are active in which share of the {of}"
    return _drawing(_BARS, label, parts, "histogram")


def draw_frequencies(df_v: NDArray[np.int64]) -> Markup:
    """Draw how many images have each word, the most frequent word first, on logarithmic axes."""
    frequencies = np.sort(df_v[df_v > 0])[::-1]
    ranks = np.unique(np.geomspace(1, max(len(frequencies), 1), _CURVE_POINTS).astype(int))
    points = [(float(rank), float(frequencies[rank - 1])) for rank in ranks[: len(frequencies)]]
    highest = points[0][1] if points else 1.0
    return draw_lines(
        "How many images have each word",
        [Line("words in use", points, "s0", is_marked=False)],
        log_axis("words, the most frequent first", 1, max(10, len(frequencies))),
        log_axis("images", 1, max(10, highest)),
    )


def draw_training_curve(points: Sequence[tuple[int, float]], final: float | None) -> Markup:
    """Draw the unexplained share of the variance over the steps, and its final value."""
    frame, curve = _CURVE, thin(points)
    first, last = points[0][0], points[-1][0]
    highest = max(value for _, value in curve)
    gap = 0.2 if highest > 0.4 else 0.1
    top = min(1.0, gap * max(1, math.ceil(highest / gap)))

    def x(step: float) -> float:
        return frame.left + (step - first) / max(last - first, 1) * (frame.right - frame.left)

    def y(value: float) -> float:
        return frame.bottom - min(value, top) / top * (frame.bottom - frame.top)

    parts = []
    for tick in np.linspace(0, top, round(top / gap) + 1).tolist():
        parts.append(_line(frame.left, y(tick), frame.right, y(tick), "grid" if tick else "axis"))
        parts.append(_text(frame.left - 8, y(tick) + 4, f"{tick:.2g}", "end"))
    for step, anchor in ((first, "start"), (last, "end")):
        parts.append(_text(x(step), frame.bottom + 20, f"step {step:,}", anchor))
    if final is not None:
        parts.append(_line(frame.left, y(final), frame.right, y(final), "final"))
    parts.append(_polyline([(x(step), y(value)) for step, value in curve]))
    if final is not None:
        parts.append(_text(frame.right, y(final) - 14, f"held out {final:.3f}", "end", "note"))
    return _drawing(frame, "Share of the variance left unexplained, over the steps", parts, "curve")


def thin(points: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """Return at most `MAX_POINTS` points: where there are more, the means of neighbours.

    >>> len(thin([(step, 0.5) for step in range(1000)])), thin([(1, 0.5)])
    (300, [(1.0, 0.5)])
    """
    parts = np.array_split(np.array(points, dtype=np.float64), min(MAX_POINTS, len(points)))
    return [(float(part[:, 0].mean()), float(part[:, 1].mean())) for part in parts]


def draw_position_map(grid: NDArray[np.float32]) -> Markup:
    """Draw where in an image a word is: the more, the stronger the colour."""
    rows, columns = grid.shape
    peak = float(grid.max()) or 1.0
    cells = [
        _element("rect", x=x, y=y, width=1, height=1, opacity=f"{grid[y, x] / peak:.2f}")
        for y in range(rows)
        for x in range(columns)
        if grid[y, x] > 0.01 * peak
    ]
    return _element(
        "svg",
        cells,
        class_="position-map",
        viewBox=f"0 0 {columns} {rows}",
        role="img",
        aria_label="Where in an image the word is, on average",
    )


# Elements of SVG.


def _drawing(frame: _Frame, label: str, parts: Iterable[Markup], kind: str = "") -> Markup:
    return _element(
        "svg",
        parts,
        class_=kind,
        viewBox=f"0 0 {_WIDTH} {frame.height}",
        role="img",
        aria_label=label,
    )


def _bar(x: float, slot: float, value: int, highest: int, kind: str, label: str) -> Markup:
    height = value / highest * (_BARS.bottom - _BARS.top)
    top, gap = _BARS.bottom - height, min(4.0, slot / 8)
    shapes = [
        _element("title", [label]),
        _element(
            "rect",
            class_=kind,
            data_count=value,
            x=x + gap,
            y=top,
            width=slot - 2 * gap,
            height=height,
        ),
    ]
    if value:
        shapes.append(_text(x + slot / 2, top - 6, f"{value:,}", kind="count"))
    return _element("g", shapes)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return _element("line", class_=kind, x1=x1, y1=y1, x2=x2, y2=y2)


def _polyline(points: Iterable[tuple[float, float]], kind: str = "") -> Markup:
    return _element("polyline", class_=kind, points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points))


def _circle(x: float, y: float, kind: str) -> Markup:
    return _element("circle", class_=kind, cx=x, cy=y, r=3)


def _text(x: float, y: float, text: str, anchor: str = "middle", kind: str = "tick") -> Markup:
    return _element("text", [text], class_=kind, x=x, y=y, text_anchor=anchor)


def _element(name: str, content: Iterable[str] = (), **attributes: str | float) -> Markup:
    """Return an element; `class_` and `text_anchor` stand for class and text-anchor.

    >>> _element("text", ["<&>"], class_="tick", x=1.25, y=3, text_anchor="end")
    Markup('<text class="tick" x="1.2" y="3" text-anchor="end">&lt;&amp;&gt;</text>')
    """
    inside = Markup("").join(content)
    return Markup("<{0}{1}>{2}</{0}>").format(
        name, Markup("").join(_attributes(attributes)), inside
    )


def _attributes(attributes: dict[str, str | float]) -> Iterator[Markup]:
    for name, value in attributes.items():
        if value != "":
            text = f"{value:.1f}" if isinstance(value, float) else value
            yield Markup(' {}="{}"').format(name.rstrip("_").replace("_", "-"), text)
