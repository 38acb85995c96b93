"""The parts of a score as they are printed and drawn: they add up to what stands below them."""

from bm25v.explain.explanation import Explanation


def peak(explanation: Explanation) -> float:
    """Return how far the bars reach: all that speaks for the hit, before what speaks against."""
    return sum(max(0.0, part.word.contribution) for part in explanation.parts)


def remainder(explanation: Explanation, *, top: int) -> float:
    """Return what the words after the `top` give, to the cent: printed parts add up as printed."""
    printed = sum(round(part.word.contribution, 2) for part in explanation.parts[:top])
    rest = [part.word.contribution for part in explanation.parts[top:]]
    if not rest:
        return 0.0
    left = round(explanation.sparse, 2) - printed
    return left if min(rest) < 0 else max(0.0, left)


def share(part: float, whole: float) -> str:
    """Return a part of a score in percent; a small part is still there.

    >>> share(2.5, 10), share(0.02, 10), share(0, 0)
    ('25%', 'under 1%', '0%')
    """
    percent = 100 * part / whole if whole else 0.0
    return "under 1%" if 0 < percent < 1 else f"{percent:.0f}%"


def count(n: int, what: str) -> str:
    """Return a number of things.

    >>> count(1, "word"), count(1200, "more word")
    ('1 word', '1,200 more words')
    """
    return f"{n:,} {what}{'s' * (n != 1)}"
