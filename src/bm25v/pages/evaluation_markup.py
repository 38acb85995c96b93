"""The pieces of HTML that a report's page is made of."""

from collections.abc import Iterable, Sequence

from bm25v.explain.markup import text
from bm25v.pages import plots


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, chosen: int | None = None) -> str:
    """Return a table of cells that are HTML already; the first of each row names it.

    The chosen row stands out. On narrow screens the table scrolls sideways.

    >>> table(["system", "R@1"], [["dense", ".892"]])[:40]
    '<div class="table" tabindex="0"><table><'
    """
    whole = (one.replace("-", "&#8209;") for one in heads)  # no break in BM25-V
    head = "".join(f'<th scope="col">{one}</th>' for one in whole)
    lines = []
    for number, (name, *cells) in enumerate(rows):
        kind = ' class="chosen"' if number == chosen else ""
        body = "".join(f"<td>{cell}</td>" for cell in cells)
        lines.append(f'<tr{kind}><th scope="row">{name}</th>{body}</tr>')
    body = "".join(lines)
    return (
        f'<div class="table" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def plot(title: str, about: str, lines: Sequence[plots.Line], x: plots.Axis, y: plots.Axis) -> str:
    """Return a plot with its title, what goes upwards in it, and its legend."""
    drawn = plots.draw(f"{title}: {y.label}, by {x.label}", lines, x, y)
    keys = plots.legend(lines) if len(lines) > 1 else ""
    return f"<div><h3>{text(title)}</h3><p>{text(about)}</p>{drawn}{keys}</div>"


def section(name: str, title: str, *parts: str) -> str:
    """Return a section that can be linked to."""
    return f'<section id="{name}"><h2>{text(title)}</h2>{"".join(parts)}</section>'


def paragraph(content: str, kind: str = "") -> str:
    """Return a paragraph of text that is HTML already."""
    return f'<p class="{kind}">{content}</p>' if kind else f"<p>{content}</p>"
