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

    @property
    def label(self) -> str:
        """Its name, or its number as one."""
        return self.name or f"word {self.word}"


@dataclass(frozen=True)
class Match:
    """How one picture compares: `sparse` is the sum of its words, `dense` the cosine."""

    path: str
    sparse: float
    dense: float
    words: tuple[Word, ...]


@dataclass(frozen=True)
class Hit(Match):
    """One result; `score` is what ranks it."""

    rank: int
    score: float

    def to_json(self) -> dict[str, Any]:
        """Return the hit as plain values."""
        return {
            "rank": self.rank,
            "path": self.path,
            "score": self.score,
            "sparse": self.sparse,
            "dense": self.dense,
            "words": [word._asdict() for word in self.words],
        }


@dataclass(frozen=True)
class Results:
    """The hits of one search, best first, and how long each stage took."""

    mode: str
    hits: tuple[Hit, ...]
    ms: dict[str, float]

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)

    def __getitem__(self, place: int) -> Hit:
        return self.hits[place]

    def to_json(self) -> dict[str, Any]:
        """Return the results as plain values."""
        return {"mode": self.mode, "hits": [hit.to_json() for hit in self.hits], "ms": self.ms}


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

    def to_json(self) -> dict[str, Any]:
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

    def to_json(self) -> dict[str, Any]:
        """Return the facts as plain values."""
        return asdict(self)
