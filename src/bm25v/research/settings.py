"""What can be varied between patch features and a ranking, with the paper's values."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from bm25v.errors import WrongUse
from bm25v.index.bm25 import K1, B

Pooling = Literal["sum", "max", "top3"]
"""How a word's activations over the patches become one: all, the largest, or three of them."""

Transform = Literal["none", "sqrt", "log1p"]
"""What is made of a frequency before it is scored, in pictures and in queries."""

Weighting = Literal["presence", "tf", "sqrt-tf", "saturated"]
"""How much a word of the query counts in BM25: as much as any other, by its frequency, by the
square root of it, or by what BM25 would make of it in a picture."""

Scoring = Literal["bm25", "tfidf", "cosine", "dot", "idf", "binary"]
"""BM25; the cosine of tf · IDF, or of tf; the dot product of tf; the IDF of the words that two
pictures share, or their number."""

Fusion = Literal["coverage", "convex", "rrf"]
"""How words and dense vectors are joined: cosine + weight · the share of the most that the query
could score; a weighted mean of both, each stretched to 0 … 1; or the sum of 1 / (60 + rank)."""


ALL = 10**9
"""More words, or candidates, than there are."""


@dataclass(frozen=True)
class Settings:
    """All of them; the defaults are the product's.

    >>> Settings(k_post=64, query="sqrt-tf").changes
    {'k_post': 64, 'query': 'sqrt-tf'}
    """

    k_post: int | None = None  # words of a picture; None: the vocabulary's own
    k_query: int | None = None  # words of a query; None: as many
    pooling: Pooling = "sum"
    quantised: bool = True
    tf: Transform = "none"
    scoring: Scoring = "bm25"
    k1: float = K1
    b: float = B
    query: Weighting = "presence"
    stop: float = 1.0  # words in a larger share of the gallery are not asked for
    candidates: int = 200  # that words hand to dense vectors
    fusion: Fusion = "coverage"
    weight: float = 0.1  # of the words in a fusion

    def __post_init__(self) -> None:
        kinds = {"pooling": Pooling, "tf": Transform, "scoring": Scoring}
        kinds |= {"query": Weighting, "fusion": Fusion}
        for name, kind in kinds.items():
            value = getattr(self, name)
            if value not in get_args(kind):
                raise WrongUse(f"{name} = {value!r}: choose one of {', '.join(get_args(kind))}")
        least = {
            "k_post": 1,
            "k_query": 1,
            "candidates": 1,
            "k1": 0,
            "b": 0,
            "stop": 0,
            "weight": 0,
        }
        for name, smallest in least.items():
            value = getattr(self, name)
            if value is not None and not value >= smallest:
                raise WrongUse(f"{name} = {value}: it must be at least {smallest}")
        for name in ("b", "stop", *(["weight"] if self.fusion == "convex" else [])):
            if getattr(self, name) > 1:
                raise WrongUse(f"{name} = {getattr(self, name)}: it must be at most 1")

    @classmethod
    def paper(cls) -> "Settings":
        """Return the paper's settings (section 4.1)."""
        return cls(k_post=16)

    def changed(self, name: str, text: str) -> "Settings":
        """Return them with one changed to what a person typed.

        >>> Settings().changed("k_post", "all").k_post == ALL
        True
        """
        names = [field.name for field in fields(self)]
        if name not in names:
            raise WrongUse(f"no setting {name!r}; there are: {', '.join(names)}")
        try:
            value = _READERS.get(name, str)(text)
        except (ValueError, KeyError) as error:
            raise WrongUse(
                f"{name} = {text!r}: {_EXPECTED.get(name, 'a number')} is wanted"
            ) from error
        return replace(self, **{name: value})

    @property
    def changes(self) -> dict[str, object]:
        """What differs from the defaults."""
        return {name: value for name, value in vars(self).items() if value != getattr(_OURS, name)}

    @property
    def suits_the_engine(self) -> bool:
        """Whether the product's own index can rank by these settings."""
        fixed = (self.quantised, self.tf, self.scoring, self.k1, self.b)
        return fixed == (True, "none", "bm25", K1, B)


def typed(value: object) -> str:
    """Return a value as one types it.

    >>> typed(64), typed(ALL), typed(False)
    ('64', 'all', 'off')
    """
    if isinstance(value, bool):
        return "on" if value else "off"
    return "all" if value == ALL else str(value)


def _count(text: str) -> int:
    return ALL if text == "all" else int(text)


def _switch(text: str) -> bool:
    return {"on": True, "off": False}[text]


_READERS: dict[str, Callable[[str], Any]] = {
    "k_post": _count,
    "k_query": _count,
    "candidates": _count,
    "quantised": _switch,
    **dict.fromkeys(("k1", "b", "stop", "weight"), float),
}
_EXPECTED = {
    **dict.fromkeys(("k_post", "k_query", "candidates"), "a whole number, or all,"),
    "quantised": "on or off",
}

_OURS = Settings()

PRESETS = {"default": _OURS, "paper": Settings.paper()}
