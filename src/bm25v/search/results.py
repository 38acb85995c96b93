"""What a search returns: hits, each with the contributions of its words."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from bm25v.dataframes import make_frame
from bm25v.display import count, identify_word, word_label
from bm25v.errors import InvalidOption, InvalidQuery
from bm25v.images import ImageInput
from bm25v.index.bm25 import Contributions
from bm25v.progress import Progress, no_progress
from bm25v.search.scoring import MODES, Mode

if TYPE_CHECKING:
    import pandas

    from bm25v.explain import ExplainedHits, Explanation
    from bm25v.search.naming import GroupedWords


_COLUMNS = {  # of Results.to_pandas()
    "rank": "int",
    "path": "object",
    "score": "float",
    "sparse": "float",
    "dense": "float",
    "coverage": "float",
    "first_rank": "Int64",  # an integer that may be missing
    "words": "object",
}


class WordContribution(NamedTuple):
    """What one word adds to a score: contribution = weight · idf · saturation."""

    word: int
    name: str | None
    idf: float
    tf: float
    query_tf: float
    saturation: float
    contribution: float
    weight: float = 1.0
    df: int = 0

    def __repr__(self) -> str:
        word = identify_word(self.word, self.name)
        factors = f"{self.weight:.3g} · {self.idf:.2f} · {self.saturation:.2f}"
        return f"<WordContribution {word}: {self.contribution:.2f} = {factors}>"

    @property
    def label(self) -> str:
        """Its name, or its number if it has none."""
        return word_label(self.word, self.name)


class QueryWord(NamedTuple):
    """A word of the query: its weight, and how rare it is in the gallery."""

    word: int
    name: str | None
    weight: float
    query_tf: float
    idf: float
    df: int

    def __repr__(self) -> str:
        word = identify_word(self.word, self.name)
        return f"<QueryWord {word}: weight {self.weight:.3g}, idf {self.idf:.2f}>"

    @property
    def label(self) -> str:
        """Its name, or its number if it has none."""
        return word_label(self.word, self.name)


class MatchWords(Sequence[WordContribution]):
    """The words of one match, the largest contribution first; each is made when it is read.

    A search has hundreds of words for each hit, of which most callers read a few.
    """

    def __init__(self, query: Sequence[QueryWord], shared: Contributions) -> None:
        self._query, self._shared = query, shared
        self._order: NDArray[np.intp] | None = None

    def __len__(self) -> int:
        return len(self._shared.values)

    @overload
    def __getitem__(self, position: int) -> WordContribution: ...
    @overload
    def __getitem__(self, position: slice) -> tuple[WordContribution, ...]: ...
    def __getitem__(self, position: int | slice) -> WordContribution | tuple[WordContribution, ...]:
        if self._order is None:  # of equal contributions, the lower word comes first
            self._order = np.argsort(-self._shared.values, kind="stable")
        if isinstance(position, slice):
            return tuple(self._make(self._order[position]))
        (word,) = self._make(self._order[[position]])
        return word

    def __iter__(self) -> Iterator[WordContribution]:
        return iter(self[:])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self[:] == tuple(other)

    def __hash__(self) -> int:
        return hash(self[:])

    def __repr__(self) -> str:
        return repr(self[:])

    def __reduce__(self) -> tuple[type, tuple[tuple[WordContribution, ...]]]:
        return tuple, (self[:],)

    def _make(self, chosen: NDArray[np.intp]) -> Iterator[WordContribution]:
        _, positions, *columns = (column[chosen].tolist() for column in self._shared)
        for position, tf, saturation, value in zip(positions, *columns, strict=True):
            word, name, weight, query_tf, idf, df = self._query[position]
            yield WordContribution(word, name, idf, tf, query_tf, saturation, value, weight, df)


Strength = Literal["strong", "fair", "weak"]


class OpenSearch(Protocol):
    """A search with the query as it was encoded, whose hits an open gallery can explain."""

    def explain_hits(
        self,
        hits: Sequence[str],
        *,
        image: ImageInput | None = None,
        progress: Progress = no_progress,
    ) -> "ExplainedHits": ...

    def group_words(self, results: "Results") -> "GroupedWords": ...


class TextPart(NamedTuple):
    """What a word or phrase of a text adds to a score: by the vector and by visual words.

    0 is what it adds for a photo of anything, on average.
    """

    label: str
    value: float  # similarity + by_words
    similarity: float
    by_words: float

    def __repr__(self) -> str:
        return f"<TextPart {self.label}: {self.value:.3f}>"


class ScorePart(NamedTuple):
    """A part of a score: one word, the cosine, or a term of a text."""

    word: int | None  # None: the cosine, or a term of a text
    label: str
    value: float


@dataclass(frozen=True)
class Match:
    """How one image compares with a query: `sparse` is the sum of `words`, `dense` the cosine.

    `score` is what a search orders its hits by, the sum of `parts`. `coverage` is the share of the
    query's IDF mass (the sum of weight · idf over the words with a weight above 0) that the image
    matches: 1 if it has all of these words. In modes "hybrid" and "words", all of this is about the
    image's full bag, else about the words that the index has of it. `strength` compares the image
    with the best hits of the gallery's own images; it is known in these two modes, if the query is
    one whole image.
    """

    path: str
    mode: Mode
    score: float
    sparse: float
    sparse_factor: float  # of `sparse` in the score: 0 if the mode orders by cosine alone
    strength: Strength | None  # None if that is not known
    dense: float | None  # None if the query has no dense vector
    words: Sequence[WordContribution]  # largest contribution first
    coverage: float
    length: float  # |d|, the sum of the image's term frequencies
    average_length: float  # of all images
    n_images: int  # N, of the gallery
    text: tuple[TextPart, ...] = field(default=(), kw_only=True)  # what each of its words adds
    rest: float = field(default=0.0, kw_only=True)  # what all else adds beside a text

    def __repr__(self) -> str:
        return f"<Match {self.path}: BM25 {self.sparse:.2f}, coverage {self.coverage:.0%}>"

    @property
    def parts(self) -> tuple[ScorePart, ...]:
        """What the score is the sum of: the cosine and each word, or the terms of a text."""
        if self.text:
            rest = [ScorePart(None, "the rest of the query", self.rest)] if self.rest else []
            return (*(ScorePart(None, part.label, part.value) for part in self.text), *rest)
        parts = []
        if self.dense is not None and MODES[self.mode].cosine:
            parts.append(ScorePart(None, "cosine", self.dense))
        if self.sparse_factor:
            parts += (
                ScorePart(word.word, word.label, self.sparse_factor * word.contribution)
                for word in self.words
            )
        return tuple(parts)

    @property
    def by_words_alone(self) -> bool:
        """Whether BM25 is the whole score."""
        return MODES[self.mode].by_words_alone

    @property
    def digits(self) -> int:
        """How many decimals of the score are shown."""
        return 2 if self.by_words_alone else 3

    @property
    def formula(self) -> str:
        """How the score is made of its parts."""
        scoring, score = MODES[self.mode], f"{self.score:.{self.digits}f}"
        if self.text:
            return f"{score} = {' + '.join(f'{p.label} {p.value:.3f}' for p in self.parts)}"
        if scoring.is_sum:
            by_words = f"{self.sparse_factor:.3g} × {self.sparse:.2f} by words (BM25)"
            return f"{score} = similarity {self.dense:.3f} + {by_words}"
        did_nothing = "" if self.by_words_alone else ": words did not order the hits"
        return f"{score} by {scoring.order}{did_nothing}"

    def __fspath__(self) -> str:
        """Return the path, so that a hit is accepted wherever an image or a path is."""
        return self.path

    def _repr_html_(self) -> str:
        from bm25v.render.notebook import match_fragment

        return match_fragment(self)

    def to_dict(self, *, words: int | None = None) -> dict[str, Any]:
        """Return the match as plain values, with all words or the first ones."""
        values = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return {
            **values,
            "words": [word._asdict() for word in self.words[:words]],
            "text": [part._asdict() for part in self.text],
        }


@dataclass(frozen=True)
class Hit(Match):
    """One result; `first_rank` is its rank in the first stage, by BM25 over the index."""

    rank: int
    first_rank: int | None  # None if all images were ordered, without a first stage
    copies: tuple[str, ...] = field(default=(), kw_only=True)  # paths with the same content
    _search: OpenSearch | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        return f"<Hit {self.rank}: {self.path}, score {self.score:.3f}>"

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the open gallery when a hit is pickled or copied."""
        return vars(self) | {"_search": None}

    def explain(self, *, image: ImageInput | None = None) -> "Explanation":
        """Return why this hit matches the query of its search: which words, and where.

        Give its image if it was added from memory, or if its file is not here any more.
        """
        if self._search is None:
            raise InvalidQuery(
                f"{self!r} has no open gallery: use gallery.explain(query, hit), or "
                "client.explain(query, hit) if it is from a server"
            )
        return self._search.explain_hits([self.path], image=image).explanations[0]

    def to_dict(self, *, words: int | None = None) -> dict[str, Any]:
        """Return the hit as plain values, with all words or the first ones."""
        first = ("rank", "first_rank", "path", "score", "strength", "sparse", "dense", "coverage")
        values = super().to_dict(words=words)
        shown, _, _ = (values.pop(key) for key in ("words", "mode", "sparse_factor"))
        return {key: values.pop(key) for key in first} | values | {"words": shown}


@dataclass(frozen=True)
class Results:
    """The hits of one search, best first.

    `query` lists the words that were searched for, `ms` the time of each stage. `no_match` is the
    reason if there are no hits. In hybrid mode, a hit's score = dense + sparse_factor · sparse.
    `candidates` is how many images the second stage ordered.
    """

    mode: Mode
    hits: tuple[Hit, ...]
    ms: dict[str, float]
    query: tuple[QueryWord, ...] = ()
    no_match: str | None = None
    notes: tuple[str, ...] = ()
    sparse_factor: float | None = None
    candidates: int | None = None  # None if all images were ordered
    understood: tuple[str, ...] = ()  # of a text: words and phrases, dates, names in paths
    not_understood: tuple[str, ...] = ()  # its other words
    _search: OpenSearch | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        best = f", best {self.hits[0]!r}" if self.hits else f": {self.no_match}"
        return f"<Results: {count(len(self), 'hit')} ({self.mode}){best}>"

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    @property
    def order(self) -> str:
        """Which images were ordered, and by what."""
        n = self.candidates
        which = "all images" if n is None else f"the best {count(n, 'candidate')} of the index"
        return f"{which}, sorted by {MODES[self.mode].order}".format(factor=self.sparse_factor or 0)

    @property
    def is_weak(self) -> bool:
        """Whether even the best hit is a weak match, as far as that is known."""
        return any(hit.rank == 1 and hit.strength == "weak" for hit in self.hits[:1])

    def __len__(self) -> int:
        return len(self.hits)

    @overload
    def __getitem__(self, position: int) -> Hit: ...
    @overload
    def __getitem__(self, position: slice) -> "Results": ...
    def __getitem__(self, position: int | slice) -> "Hit | Results":
        if isinstance(position, slice):
            return replace(self, hits=self.hits[position])
        return self.hits[position]

    def _repr_html_(self) -> str:
        from bm25v.render.notebook import results_fragment

        return results_fragment(self)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the open gallery when results are pickled or copied."""
        return vars(self) | {"_search": None}

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        words: int | None = None,
        progress: Progress = no_progress,
    ) -> None:
        """Write a page (.html), a table (.csv) or JSON (.json), as the suffix says.

        `words` limits those of each hit in a table and in JSON.
        """
        from bm25v.render.results_page import write_results

        write_results(self, Path(path), words=words, progress=progress)

    def explain(self, *, progress: Progress = no_progress) -> "ExplainedHits":
        """Return why each hit matches; the query is not encoded again."""
        if self._search is None:
            raise InvalidOption(f"{self!r} has no open gallery: search again")
        return self._search.explain_hits([hit.path for hit in self.hits], progress=progress)

    def group_words(self) -> "GroupedWords":
        """Return the words that count for the hits, by names that fit the query."""
        if self._search is None:
            raise InvalidOption(f"{self!r} has no open gallery: search again")
        return self._search.group_words(self)

    def to_dict(self, *, words: int | None = None) -> dict[str, Any]:
        """Return the results as plain values; `words` is how many of the query and of each hit."""
        return {
            "mode": self.mode,
            "query": [word._asdict() for word in self.query[:words]],
            "hits": [hit.to_dict(words=words) for hit in self.hits],
            "no_match": self.no_match,
            "notes": list(self.notes),
            "sparse_factor": self.sparse_factor,
            "candidates": self.candidates,
            "understood": list(self.understood),
            "not_understood": list(self.not_understood),
            "ms": self.ms,
        }

    def to_pandas(self) -> "pandas.DataFrame":
        """Return one row per hit; `words` holds what each word adds to `sparse`, by its label."""
        rows = ({**vars(hit), "words": _sum_by_label(hit.words)} for hit in self.hits)
        return make_frame(rows, _COLUMNS)


def _sum_by_label(words: Iterable[WordContribution]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for word in words:  # several words may have the same name
        sums[word.label] = sums.get(word.label, 0.0) + word.contribution
    return sums
