"""Where the words of a text are in a hit.

A word of a text adds to the score by the visual words that carry it, and by the dense vector: by as
much as that vector changes with each patch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bm25v.backbones import Backbone
from bm25v.backbones.protocol import Floats
from bm25v.dense import normalise
from bm25v.display import word_label
from bm25v.explain.groups import Grid, Part
from bm25v.search.encode import EncodedQuery
from bm25v.search.results import Match, TextPart
from bm25v.search.text import TextTerm
from bm25v.vocabulary import Encoding

_WORDS = 5  # visual words that are listed for a word of a text
_STEP = 1e-3  # of a derivative: how far the mean of all patches moves towards one of them


class TermWord(NamedTuple):
    """What a visual word adds to a score for a word of a text."""

    word: int
    name: str | None
    value: float

    @property
    def label(self) -> str:
        """Its name, or its number if it has none."""
        return word_label(self.word, self.name)


@dataclass(frozen=True)
class TermMap:
    """A word or phrase of a text: what it adds to the score, and where it is in the hit.

    A patch has what its visual words add, and what the similarity would lose, in proportion, if the
    patch were like the mean of all patches: below 0 if that shows more of the term than the patch.
    """

    part: TextPart
    in_hit: Grid | None  # None if that is not known
    words: tuple[TermWord, ...]  # visual words that carry it: that add, or take away, most

    def __repr__(self) -> str:
        return f"<TermMap {self.part.label}: {self.part.value:.3f}>"

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.part._asdict(),
            "in_hit": None if self.in_hit is None else self.in_hit.tolist(),
            "words": [word._asdict() for word in self.words],
        }


def locate_terms(
    encoded: EncodedQuery,
    match: Match,
    parts: Sequence[Part],
    hit: Encoding | None,
    backbone: Backbone,
) -> Iterator[TermMap]:
    """Yield the terms of a query's text, each with where it is in the hit."""
    slopes_pe = None
    if encoded.terms and encoded.scoring.cosine and hit is not None and hit.patches_pd is not None:
        slopes_pe = differentiate(backbone, hit.patches_pd, hit.patches_pd.mean(axis=0))
    grids = {part.word.word: np.ravel(part.in_hit) for part in parts if part.in_hit is not None}
    for term, part in zip(encoded.terms, match.text, strict=True):
        values = find_carriers(term, match)
        sign = 1 if part.value >= 0 else -1
        carriers = [
            TermWord(word.word, word.name, values[word.word])
            for word in (p.word for p in parts)
            if sign * values.get(word.word, 0) > 0
        ]
        carriers.sort(key=lambda word: -sign * word.value)
        values_p = spread_term(term, values, slopes_pe, grids)
        in_hit = None if values_p is None else values_p.reshape(backbone.grid)
        yield TermMap(part, in_hit, tuple(carriers[:_WORDS]))


def find_carriers(term: TextTerm, match: Match) -> dict[int, float]:
    """Return what each visual word adds to the score for a word of a text."""
    weights = dict(zip(term.words.words.tolist(), term.words.weights.tolist(), strict=True))
    return {
        word.word: match.sparse_factor * word.contribution * weights[word.word] / word.weight
        for word in match.words
        if word.word in weights
    }


def spread_term(
    term: TextTerm,
    values: Mapping[int, float],
    slopes_pe: Floats | None,
    activations: Mapping[int, Floats],
) -> Floats | None:
    """Return what a word of a text adds in each patch; None if that is not known.

    `values` are those of the visual words that carry it.
    """
    spread = []
    if slopes_pe is not None and term.dense_e is not None:
        spread.append(slopes_pe[:, : len(term.dense_e)] @ term.dense_e)
    for word, value in values.items():
        active_p = activations.get(word)
        if active_p is not None and active_p.any():
            spread.append(value * active_p / active_p.sum())
    return np.asarray(np.sum(spread, axis=0), dtype=np.float32) if spread else None


def differentiate(backbone: Backbone, patches_pd: Floats, mean_d: Floats) -> Floats | None:
    """Return what each patch changes in the dense vector; None if that is not known.

    The vector is a function of the mean of all patches, so the changes sum to 0.
    """
    steps_pd = np.float32(_STEP) * (patches_pd - mean_d)
    moved = [backbone.pool_dense(mean_d + step_d) for step_d in (*steps_pd, *-steps_pd)]
    vectors = [vector_e for vector_e in moved if vector_e is not None]
    if not vectors:
        return None
    after_pe, before_pe = np.split(normalise(np.stack(vectors)), 2)
    return np.asarray((after_pe - before_pe) / np.float32(2 * _STEP * len(patches_pd)))
