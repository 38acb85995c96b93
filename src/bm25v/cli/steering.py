"""The options by which a search, or its explanation, is steered."""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from bm25v.errors import WrongUse

if TYPE_CHECKING:
    from bm25v.search import QueryOptions

_OPTIONS = (
    click.option(
        "--text",
        metavar="TEXT",
        help="What to look for, in words: by a text tower, or by the names of visual words.",
    ),
    click.option(
        "--region",
        metavar="X,Y,W,H",
        help="Only this box of the picture counts: pixels, or fractions if none is above 1.",
    ),
    click.option("--must", multiple=True, metavar="WORD", help="Only pictures that have the word."),
    click.option(
        "--without", multiple=True, metavar="WORD", help="Only pictures without the word."
    ),
    click.option(
        "--boost",
        multiple=True,
        metavar="WORD=FACTOR",
        help="Multiply the word's weight; 0 mutes it, below 0 it counts against.",
    ),
    click.option(
        "--not",
        "negative",
        multiple=True,
        type=click.Path(),
        metavar="PICTURE",
        help="A counter-example.",
    ),
    click.option(
        "--like",
        multiple=True,
        type=click.Path(),
        metavar="HIT",
        help="More like this picture of the gallery.",
    ),
    click.option(
        "--unlike",
        multiple=True,
        type=click.Path(),
        metavar="HIT",
        help="Less like this picture of the gallery.",
    ),
    click.option(
        "--query-words",
        type=click.IntRange(min=1),
        metavar="N",
        help="Ask with so many words of the picture, strong ones more; 64 find more by words  "
        "[default: those that are kept of a picture, each alike]",
    ),
)


def steering_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command these options; it gets them as one, `wanted`."""

    @wraps(function)
    def steered(
        *arguments: Any,
        text: str | None,
        region: str | None,
        must: tuple[str, ...],
        without: tuple[str, ...],
        boost: tuple[str, ...],
        negative: tuple[str, ...],
        like: tuple[str, ...],
        unlike: tuple[str, ...],
        query_words: int | None,
        **rest: Any,
    ) -> None:
        wanted: QueryOptions = {
            "text": text,
            "region": None if region is None else _numbers(region),
            "must": must,
            "without": without,
            "boost": _factors(boost),
            "negative": negative,
            "like": like,
            "unlike": unlike,
            "query_words": query_words,
        }
        function(*arguments, wanted=wanted, **rest)

    command: Callable[..., None] = steered
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def _numbers(region: str) -> tuple[float, ...]:
    """Read a box.

    >>> _numbers("120,40, 200,180")
    (120.0, 40.0, 200.0, 180.0)
    """
    try:
        numbers = tuple(float(number) for number in region.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) != 4:
        raise WrongUse(
            f"--region {region}: give x,y,width,height, such as 120,40,200,180 or 0.1,0.2,0.5,0.5"
        )
    return numbers


def _factors(boosts: tuple[str, ...]) -> dict[int | str, float]:
    """Read words and their factors.

    >>> _factors(("19=2", "striped ear=0"))
    {'19': 2.0, 'striped ear': 0.0}
    """
    found: dict[int | str, float] = {}
    for boost in boosts:
        word, _, factor = boost.rpartition("=")
        if not word or word in found:
            raise WrongUse(f"--boost {boost}: give each word once, with a factor, such as 19=2")
        try:
            found[word] = float(factor)
        except ValueError:
            raise WrongUse(f"--boost {boost}: {factor!r} is no number") from None
    return found
