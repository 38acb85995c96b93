"""Line plots as SVG that takes its colours from the page it is in."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

_WIDTH, _HEIGHT = 520, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 508, 14, 254  # of the plot

Ticks = Sequence[tuple[float, str]]


class Line(NamedTuple):
    """Points in order; `kind` is the class that gives them a colour."""

    name: str
    points: Sequence[tuple[float, float]]
    kind: str
    is_marked: bool = True  # with a dot at each point


@dataclass(frozen=True)
class Axis:
    """What goes along one side; the upper side's label stands above the plot, in the page."""

    label: str
    low: float
    high: float
    ticks: Ticks
    is_log: bool = False

    def share(self, value: float) -> float:
        """Return how far along the axis a value lies, 0 to 1."""
        low, high = self.low, self.high
        if self.is_log:
            value, low, high = (math.log10(one) for one in (value, low, high))
        return (value - low) / ((high - low) or 1)


def logarithmic(label: str, low: float, high: float) -> Axis:
    """Return an axis with a tick at each power of ten.

    >>> [text for _, text in logarithmic("pictures", 1, 1_500).ticks]
    ['1', '10', '100', '1,000']
    """
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    ticks = [
        (10.0**power, f"{10.0**power:,.{max(0, -power)}f}") for power in range(first, last + 1)
    ]
    return Axis(label, low, high, ticks, is_log=True)


def linear(label: str, low: float, high: float) -> Axis:
    """Return an axis for shares, with at most seven round ticks, that holds both values.

    >>> [text for _, text in linear("recall", 0.74, 0.98).ticks]
    ['.70', '.75', '.80', '.85', '.90', '.95', '1.0']
    """
    for step in (0.01, 0.02, 0.05, 0.1, 0.2):
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if last - first <= 6:
            break
    ticks = [(n * step, share(n * step, 2)) for n in range(first, max(last, first + 1) + 1)]
    return Axis(label, ticks[0][0], ticks[-1][0], ticks)


def share(value: float, digits: int = 3) -> str:
    """Return a share as the paper's tables have it, always equally wide.

    >>> share(0.8921), share(1.0), share(0), share(-0.0123), share(float("nan"))
    ('.892', '1.00', '.000', '−.012', '–')
    """
    if math.isnan(value):
        return "–"
    text = f"{abs(value):.{digits}f}"
    text = text[:-1] if float(text) >= 1 else text[1:]
    return f"−{text}" if value < 0 and float(text) else text


def draw(about: str, lines: Sequence[Line], x: Axis, y: Axis) -> str:
    """Draw lines on two axes."""
    parts = [*_along(x), *_upwards(y)]
    for line in lines:
        places = [(_x(x, at), _y(y, value)) for at, value in line.points]
        path = " ".join(f"{left:.1f},{top:.1f}" for left, top in places)
        shape = f'<polyline class="{line.kind}" points="{path}"/>' if len(places) > 1 else ""
        if line.is_marked:
            shape += "".join(
                f'<circle class="{line.kind}" cx="{left:.1f}" cy="{top:.1f}" r="3"/>'
                for left, top in places
            )
        parts.append(f"<g><title>{escape(line.name)}</title>{shape}</g>")
    box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(about)}"'
    return f"<svg {box}>{''.join(parts)}</svg>"


def legend(lines: Sequence[Line]) -> str:
    """Return what the lines are, as a list to go with the plot."""
    items = []
    for line in lines:
        mark = f'<line class="{line.kind}" x1="1" y1="4" x2="25" y2="4"/>'
        if line.is_marked:
            mark += f'<circle class="{line.kind}" cx="13" cy="4" r="3"/>'
        swatch = f'<svg viewBox="0 0 26 8" aria-hidden="true">{mark}</svg>'
        items.append(f"<li>{swatch}{escape(line.name)}</li>")
    return f'<ul class="legend">{"".join(items)}</ul>'


def _along(axis: Axis) -> Iterator[str]:
    for value, text in axis.ticks:
        x = _x(axis, value)
        yield _line(x, _BOTTOM, x, _BOTTOM + 5, "axis")
        yield _text(x, _BOTTOM + 22, text)
    yield _line(_LEFT, _BOTTOM, _RIGHT, _BOTTOM, "axis")
    yield _text((_LEFT + _RIGHT) / 2, _HEIGHT - 2, axis.label)


def _upwards(axis: Axis) -> Iterator[str]:
    for value, text in axis.ticks:
        y = _y(axis, value)
        if y < _BOTTOM - 1:
            yield _line(_LEFT, y, _RIGHT, y, "grid")
        yield _text(_LEFT - 8, y + 4, text, "end")


def _x(axis: Axis, value: float) -> float:
    return _LEFT + axis.share(value) * (_RIGHT - _LEFT)


def _y(axis: Axis, value: float) -> float:
    return _BOTTOM - axis.share(value) * (_BOTTOM - _TOP)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
