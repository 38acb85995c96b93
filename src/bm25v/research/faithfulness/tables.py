"""What was measured as tables, for the terminal and in Markdown."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bm25v.research.faithfulness.orders import ORDERS
from bm25v.research.faithfulness.result import RIVALS, Faithfulness, Hidden
from bm25v.research.statistics import Interval, compare, interval
from bm25v.research.tables import chance, decimals, markdown_table, rich_table

if TYPE_CHECKING:
    from rich.table import Table

Cells = tuple[list[str], list[list[str]]]  # the head and the rows

_NOTE = (
    "deletion: what is left of the score while patches are hidden, lower is better; insertion: "
    "what is there while they are shown, higher is better; both as the area below the curve"
)


def about(result: Faithfulness) -> list[str]:
    """Return what the figures are of, in a few lines."""
    words = result.vocabulary
    shares = ", ".join(f"{share:.0%}" for share in result.shares)
    return [
        f"{result.title}: {result.pairs:,} pairs of a query and a hit, {result.pictures:,} "
        f"pictures to search; seed {result.seed}; {shares} of the patches",
        f"vocabulary {words['name']}: {words['words']:,} words of {words['backbone']}, "
        f"k_post {words['k_post']}",
        _NOTE,
    ]


def printed(result: Faithfulness) -> "Iterator[str | Table]":
    """Give lines and tables for the terminal."""
    for way, hidden in result.ways.items():
        yield ""
        yield rich_table(*_areas(way, hidden))
        yield ""
        yield rich_table(*_against(hidden))
        yield _word(hidden)


def markdown(result: Faithfulness) -> str:
    """Return everything in Markdown, with all problems below."""
    parts = about(result)
    for way, hidden in result.ways.items():
        parts += [markdown_table(*_areas(way, hidden)), markdown_table(*_against(hidden))]
        parts.append(_word(hidden))
    parts.append("\n".join(f"- {problem}" for problem in result.problems))
    return "\n\n".join(filter(None, parts)) + "\n"


def _areas(way: str, hidden: Hidden) -> Cells:
    (deletion, insertion), cosine = hidden.bm25, hidden.cosine
    head = ["deletion", "95 %", "insertion", "95 %", "cosine deletion", "cosine insertion"]
    rows = [
        [
            name,
            *_cells(deletion.area(name)),
            *_cells(insertion.area(name)),
            decimals(cosine.deletion.area(name).mean),
            decimals(cosine.insertion.area(name).mean),
        ]
        for name in ORDERS
    ]
    return [f"hidden by {way}, order of", *head], rows


def _against(hidden: Hidden) -> Cells:
    deletion, insertion = hidden.bm25
    rows = [
        [
            name,
            _times(hidden.deletion_ratio(name)),
            chance(deletion.compared(name).p),
            _times(hidden.insertion_ratio(name)),
            chance(insertion.compared(name).p),
        ]
        for name in RIVALS
    ]
    return ["explanation is better than", "in deletion", "chance", "in insertion", "chance"], rows


def _word(hidden: Hidden) -> str:
    patches, left, other = (interval(values_q) for values_q in hidden.word)
    p = chance(compare(hidden.word.hidden_q, hidden.word.random_q).p)
    return (
        f"one word: without the {patches.mean:.1f} patches where it is, {_within(left)} of what it "
        f"gives is left; without as many random ones, {_within(other)} ({p})"
    )


def _cells(area: Interval) -> list[str]:
    return [decimals(area.mean), f"{decimals(area.low)}–{decimals(area.high)}"]


def _within(share: Interval) -> str:
    return f"{decimals(share.mean)} ({decimals(share.low)}–{decimals(share.high)})"


def _times(ratio: Interval) -> str:
    return f"{ratio.mean:.2f}× ({ratio.low:.2f}–{ratio.high:.2f})"
