"""What a gallery answers: hits, reports, facts."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


class Word(NamedTuple):
    """What one shared word gives: contribution = weight · idf · saturation."""

    word: int
    name: str | None
    idf: float
    tf: float
    query_tf: float
    saturation: float
    contribution: float
    weight: float = 1.0
    df: int = 0

    @property
    def label(self) -> str:
        """Its name, or its number as one."""
        return label(self.word, self.name)


class QueryWord(NamedTuple):
    """A word that was asked for: what it counts, and how rare it is here."""

    word: int
    name: str | None
    weight: float
    query_tf: float
    idf: float
    df: int

    @property
    def label(self) -> str:
        """Its name, or its number as one."""
        return label(self.word, self.name)


def label(word: int, name: str | None) -> str:
    """Return what a word is called: by its name, or by its number.

    >>> label(12, None), label(12, "striped ear")
    ('word 12', 'striped ear')
    """
    return name or f"word {word}"


@dataclass(frozen=True)
class Match:
    """How one picture compares: `sparse` is the sum of its words, `dense` the cosine.

    `coverage` is the share of the query's IDF mass (the sum of weight · idf over the words that
    speak for a picture) that it matched: 1 if it has all of these words.
    """

    path: str
    sparse: float
    dense: float | None  # None if what was asked for has no dense vector
    words: tuple[Word, ...]
    coverage: float
    length: float  # |d|, the sum of its term frequencies
    average_length: float  # of all pictures
    pictures: int  # N

    def to_dict(self) -> dict[str, Any]:
        """Return the match as plain values."""
        return {**vars(self), "words": [word._asdict() for word in self.words]}


@dataclass(frozen=True)
class Hit(Match):
    """One result; `score` is what ranks it, `first_rank` how BM25 alone ranked it."""

    rank: int
    first_rank: int | None  # None if all pictures were ordered by cosine
    score: float

    def to_dict(self) -> dict[str, Any]:
        """Return the hit as plain values."""
        first = ("rank", "first_rank", "path", "score", "sparse", "dense", "coverage")
        plain = super().to_dict()
        words = plain.pop("words")
        return {key: plain.pop(key) for key in first} | plain | {"words": words}


@dataclass(frozen=True)
class Results:
    """The hits of one search, best first, what was asked for, and how long each stage took.

    Where nothing matches, `no_match` says why. `sparse_factor` is for hybrid order, in which a
    hit's score = dense + sparse_factor · sparse.
    """

    mode: str
    hits: tuple[Hit, ...]
    ms: dict[str, float]
    query: tuple[QueryWord, ...] = ()
    no_match: str | None = None
    notes: tuple[str, ...] = ()
    sparse_factor: float | None = None

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)

    def __getitem__(self, place: int) -> Hit:
        return self.hits[place]

    def to_dict(self) -> dict[str, Any]:
        """Return the results as plain values."""
        return {
            "mode": self.mode,
            "query": [word._asdict() for word in self.query],
            "hits": [hit.to_dict() for hit in self.hits],
            "no_match": self.no_match,
            "notes": list(self.notes),
            "sparse_factor": self.sparse_factor,
            "ms": self.ms,
        }


class Failure(NamedTuple):
    """A file that did not become a picture, and why."""

    path: str
    error: str


@dataclass(frozen=True)
class IndexReport:
    """What became of the files that were given."""

    added: int
    updated: int
    moved: int
    unchanged: int
    removed: int
    failed: tuple[Failure, ...]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {**asdict(self), "failed": [failure._asdict() for failure in self.failed]}


@dataclass(frozen=True)
class Info:
    """The facts of a gallery."""

    path: str
    pictures: int
    removed_rows: int  # rows on disk that no picture names any more
    vocabulary: str
    vocabulary_fingerprint: str
    backbone: str
    words: int
    words_in_use: int
    average_length: float
    bag_bytes_per_picture: float
    dense_bytes_per_picture: float
    catalog_bytes_per_picture: float

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as plain values."""
        return asdict(self)
