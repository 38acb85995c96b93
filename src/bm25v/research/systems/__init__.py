"""The systems of the comparison: features in, rankings out, all from one extraction.

`sparse` ranks by words, `vectors` by dense vectors, `fusion` by both, `classical` by k-means words.
Words go through the product's own index wherever the settings allow.
"""

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from bm25v.errors import WrongUse
from bm25v.index.searcher import Ranked
from bm25v.research.features import Extracted, Progress
from bm25v.research.settings import Settings, typed
from bm25v.research.systems import classical, fusion, vectors
from bm25v.research.systems.sparse import Words, scipy_sparse
from bm25v.research.words import bags_of, codes_of
from bm25v.vocabulary import Vocabulary

__all__ = ["NAMES", "Contest", "Ranking", "resolve"]

NAMES = (
    "dense",
    "bm25v",
    "two-stage-100",
    "two-stage-200",
    "hybrid",
    "hnsw",
    "ivfpq",
    "dot",
    "bovw",
)
_TWO_STAGE = re.compile(r"two-stage-([1-9]\d*)")


class Ranking(NamedTuple):
    """A system's answers to every query, best first, and how it was set up."""

    answers: list[Ranked]
    about: str


def resolve(names: Sequence[str], settings: Settings) -> list[str]:
    """Return systems by their full names, each once; "two-stage" takes the settings' candidates.

    >>> resolve(["dense", "two-stage"], Settings(candidates=50))
    ['dense', 'two-stage-50']
    """
    full = [f"two-stage-{settings.candidates}" if name == "two-stage" else name for name in names]
    for name in full:
        if name not in NAMES and not _TWO_STAGE.fullmatch(name):
            raise WrongUse(
                f"no system {name!r}; there are: {', '.join(NAMES)} (two-stage with any number)"
            )
    if not full:
        raise WrongUse(f"there are no systems to compare; there are: {', '.join(NAMES)}")
    if "hybrid" in full:
        fusion.check(settings)
    if {"hnsw", "ivfpq", "bovw"} & set(full):
        vectors.import_faiss("comparing with faiss and k-means")
    if {"dot", "bovw"} & set(full) or not settings.suits_the_engine:
        scipy_sparse()
    return list(dict.fromkeys(full))


class Contest:
    """One data set, one vocabulary and some settings, to be ranked by any system.

    Each ranking has up to `depth` answers besides the query itself.
    """

    def __init__(
        self,
        pictures: Extracted,
        vocabulary: Vocabulary,
        settings: Settings,
        *,
        depth: int,
        progress: Progress = lambda what, done, total: None,
    ) -> None:
        self._pictures = pictures
        self._vocabulary = vocabulary
        self._settings = settings
        self._depth = depth
        self._progress = progress
        self._own_q = pictures.dataset.own_rows
        dense_ne = pictures.dense_ue[pictures.gallery_n].astype(np.float16)  # as galleries do
        self._vectors = (dense_ne, pictures.dense_ue[pictures.queries_q])
        self._first: list[Ranked] = []
        self._asked = 0

    @cached_property
    def words(self) -> Words:
        """The words of the gallery and of the queries."""
        codes_upk = codes_of(self._pictures, self._vocabulary, self._progress)
        k_post = self._settings.k_post or self._vocabulary.k_post
        k_query = self._settings.k_query or k_post
        bags = {k: bags_of(codes_upk, self._settings, k_post=k) for k in {k_post, k_query}}
        return Words(
            bags[k_post].take(self._pictures.gallery_n),
            bags[k_query].take(self._pictures.queries_q),
            n_words=self._vocabulary.n_words,
            settings=self._settings,
        )

    def rank(self, name: str) -> Ranking:
        """Let a system answer all queries."""
        two_stage = _TWO_STAGE.fullmatch(name)
        if two_stage:
            return self._two_stage(int(two_stage[1]))
        systems: dict[str, Callable[[], Ranking]] = {
            "dense": self._dense,
            "bm25v": self._bm25v,
            "hybrid": self._hybrid,
            "hnsw": self._hnsw,
            "ivfpq": self._ivfpq,
            "dot": self._dot,
            "bovw": self._bovw,
        }
        return systems[name]()

    def _by_words(self, k: int) -> list[Ranked]:
        """Return the k best by words; a shorter list is the beginning of a longer one."""
        if k > self._asked:
            self._asked = max(k, self._depth + 1, self._settings.candidates + 1)
            self._first = self.words.search(self._asked)
        return [Ranked(found.rows[:k], found.scores[:k]) for found in self._first]

    def _candidates(self, k: int) -> list[Ranked]:
        """Return the k best by words besides the query itself."""
        found = []
        for own, (rows, scores) in zip(self._own_q, self._by_words(k + 1), strict=True):
            others = rows != own
            found.append(Ranked(rows[others][:k], scores[others][:k]))
        return found

    def _dense(self) -> Ranking:
        return Ranking(vectors.dense(self._vectors, self._depth + 1), "cosine with all pictures")

    def _bm25v(self) -> Ranking:
        words, settings = self.words, self._settings
        asked = f", {typed(settings.k_query)} of a query" if settings.k_query else ""
        about = (
            f"{settings.scoring} of the {typed(settings.k_post or self._vocabulary.k_post)} "
            f"strongest words{asked}, {words.postings_a_query:,.0f} postings a query"
        )
        return Ranking(self._by_words(self._depth + 1), about)

    def _two_stage(self, candidates: int) -> Ranking:
        answers = vectors.rerank(self._vectors, self._candidates(candidates))
        return Ranking(answers, f"the best {candidates} by words, ordered by cosine")

    def _hybrid(self) -> Ranking:
        settings = self._settings
        first = self._candidates(settings.candidates)
        answers = fusion.fuse(first, self._vectors, self.words.most_q, settings)
        weight = "" if settings.fusion == "rrf" else f", weight {settings.weight:g}"
        how = f"{settings.fusion}{weight}"
        first_stage = f"the best {typed(settings.candidates)} by words"
        return Ranking(answers, f"{first_stage}, ordered by both ({how})")

    def _hnsw(self) -> Ranking:
        index = vectors.hnsw(vectors.unit(self._vectors[0]))
        wanted = self._depth + 1
        answers = vectors.search(index, self._vectors[1], wanted)
        ef, degree = index.hnsw.efSearch, index.hnsw.nb_neighbors(1)
        wider = f", {wanted} here as so many are asked for" if wanted > ef else ""
        return Ranking(answers, f"faiss HNSW, M {degree}, ef {ef}{wider}")

    def _ivfpq(self) -> Ranking:
        index = vectors.ivfpq(vectors.unit(self._vectors[0]))
        answers = vectors.search(index, self._vectors[1], self._depth + 1)
        pq, dim = index.pq, self._vectors[1].shape[1]
        wider = f", {dim} values spread over {index.d}" if index.d != dim else ""
        about = (
            f"faiss IVF-PQ, m {pq.M}, {pq.nbits} bits, {index.nlist} lists, {index.nprobe} probed"
        )
        return Ranking(answers, about + wider)

    def _dot(self) -> Ranking:
        words = self.words.scored_by("dot")
        return Ranking(words.search(self._depth + 1), "dot product of the same words")

    def _bovw(self) -> Ranking:
        answers, n_words = classical.bovw(self._pictures, self._depth + 1, self._progress)
        about = f"TF-IDF of {n_words:,} k-means words, learnt from the gallery itself"
        return Ranking(answers, about)
