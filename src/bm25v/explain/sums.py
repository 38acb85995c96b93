"""How a score adds up, in rounded numbers: printed terms add up to the printed sum."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bm25v.display import count
from bm25v.search import Match, WordContribution
from bm25v.search.scoring import MODES


class SumLine(NamedTuple):
    """A term of a score, or the score itself: the last line."""

    label: str
    value: str  # empty for what is not a part of the score
    about: str = ""


def sum_up(match: Match) -> Iterator[SumLine]:
    """Yield the terms of a score, then the score.

    >>> scores = ("hybrid", 0.8, 20.0, 0.01, "strong", 0.6)
    >>> for line in sum_up(Match("rose.jpg", *scores, (), 0.4, 3.0, 3.0, 20)):
    ...     print(line.label, line.value, line.about)
    overall similarity 0.600 cosine of both whole images
    0 shared words 0.200 20.00 points × 0.01
    score 0.800
    """
    words, points = count(len(match.words), "shared word"), f"{match.sparse:.2f} points"
    terms: list[tuple[str, float, str]] = []
    if match.text:
        terms += ((part.label, part.value, "") for part in match.parts)
    elif match.dense is not None and MODES[match.mode].cosine:
        terms.append(("overall similarity", match.dense, "cosine of both whole images"))
    if match.sparse_factor and not match.text:
        about = (
            "points by BM25" if match.by_words_alone else f"{points} × {match.sparse_factor:.3g}"
        )
        terms.append((words, match.sparse_factor * match.sparse, about))
    rounded = round_to_sum([value for _, value, _ in terms], match.score, match.digits)
    for (label, _, about), value in zip(terms, rounded, strict=True):
        yield SumLine(label, f"{value:.{match.digits}f}", about)
    if not match.sparse_factor and not match.text:
        yield SumLine(words, "", f"{points}, which did not order the hits")
    yield SumLine("score", f"{match.score:.{match.digits}f}")


def list_reasons(match: Match) -> Sequence[WordContribution]:
    """Return the words that are shown as reasons: none for a text that they did not order by."""
    return match.words if match.sparse_factor or not match.text else ()


def list_shares(match: Match) -> list[tuple[str, float]]:
    """Return the words of a text, each with its share of what counts for the match.

    Images beside the text are one more part. A part that counts against the match has 0. The list
    is empty if there is one part only.

    >>> from bm25v.search.results import TextPart
    >>> facts = ("hybrid", 0.25, 9.0, 0.02, None, 0.3, (), 0.4, 3.0, 3.0, 20)
    >>> text = (TextPart("dog", 0.375, 0.25, 0.125), TextPart("beach", -0.125, 0.0, -0.125))
    >>> list_shares(Match("dog.jpg", *facts, text=text))
    [('dog', 1.0), ('beach', 0.0)]
    """
    positive = sum(max(0.0, part.value) for part in match.parts)
    parts = [(part.label, part.value) for part in match.text]
    if match.rest:
        parts.append(("like the image", match.rest))
    shares = [(label, max(0.0, value) / (positive or 1.0)) for label, value in parts]
    return shares if match.text and len(shares) > 1 else []


def round_to_sum(values: Sequence[float], total: float, digits: int = 2) -> list[float]:
    """Round values so that they add up to the rounded total.

    All are rounded down first; those that lose most by it then get the units that are left over
    (the method of the largest remainder).

    >>> round_to_sum([1.004, 1.004, 1.004], 3.012)
    [1.01, 1.0, 1.0]
    """
    unit = 10**digits
    counts = [math.floor(value * unit) for value in values]
    left_over = round(round(total, digits) * unit) - sum(counts)
    by_loss = sorted(range(len(values)), key=lambda n: counts[n] - values[n] * unit)
    for n in by_loss[: max(0, left_over)]:
        counts[n] += 1
    return [count / unit for count in counts]


def percent_of(part: float, whole: float) -> str:
    """Return a part of a score in percent; a small part is not shown as nothing.

    >>> percent_of(2.5, 10), percent_of(0.02, 10), percent_of(0, 0)
    ('25%', 'under 1%', '0%')
    """
    percent = 100 * part / whole if whole else 0.0
    return "under 1%" if 0 < percent < 1 else f"{percent:.0f}%"
