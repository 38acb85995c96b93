"""The systems of the comparison: features in, rankings out.

`sparse` ranks by visual words, `vectors` by dense vectors, `fusion` by both, `classical` by k-means
words. All use the same features. Visual words are ranked by `bm25v.index` if the settings allow it.
"""

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from bm25v.errors import WrongUse
from bm25v.index.searcher import Ranked
from bm25v.progress import Progress, no_progress
from bm25v.research.bags import compute_codes, pool_bags
from bm25v.research.features import DatasetFeatures
from bm25v.research.settings import RankingSettings, format_setting
from bm25v.research.systems import classical, fusion, vectors
from bm25v.research.systems.sparse import WordRanker, import_scipy_sparse
from bm25v.vocabulary import Vocabulary

__all__ = ["SYSTEMS", "SystemOutput", "SystemRunner", "resolve_systems"]

SYSTEMS = (
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


class SystemOutput(NamedTuple):
    """A system's ranking for each query, and how the system was set up."""

    rankings: list[Ranked]
    description: str


def resolve_systems(names: Sequence[str], settings: RankingSettings) -> list[str]:
    """Return the full names of systems, without repetitions, or refuse what cannot be run.

    "two-stage" takes its number of candidates from the settings.

    >>> resolve_systems(["dense", "two-stage"], RankingSettings(candidates=50))
    ['dense', 'two-stage-50']
    """
    full = [f"two-stage-{settings.candidates}" if name == "two-stage" else name for name in names]
    choices = f"choose from {', '.join(SYSTEMS)} (two-stage with any number)"
    for name in full:
        if name not in SYSTEMS and not _TWO_STAGE.fullmatch(name):
            raise WrongUse(f"there is no system {name!r}; {choices}")
    if not full:
        raise WrongUse(f"no systems are given; {choices}")
    if "hybrid" in full:
        fusion.check_fusion(settings)
    if {"hnsw", "ivfpq", "bovw"} & set(full):
        vectors.import_faiss("comparing with faiss and k-means")
    if {"dot", "bovw"} & set(full) or not settings.fits_index:
        import_scipy_sparse()
    return list(dict.fromkeys(full))


class SystemRunner:
    """Runs any system on one data set, with one vocabulary and one set of settings.

    Each ranking has up to `depth` images besides the query itself.
    """

    def __init__(
        self,
        features: DatasetFeatures,
        vocabulary: Vocabulary,
        settings: RankingSettings,
        *,
        depth: int,
        progress: Progress = no_progress,
    ) -> None:
        self._features = features
        self._vocabulary = vocabulary
        self._settings = settings
        self._depth = depth
        self._progress = progress
        self._own_row_q = features.dataset.own_rows
        dense_ne = features.dense_ue[features.gallery_index_n]
        self.vectors = (  # half precision, as in galleries
            dense_ne.astype(np.float16),
            features.dense_ue[features.query_index_q],
        )
        self._first_stage: list[Ranked] = []
        self._first_stage_k = 0

    @cached_property
    def words(self) -> WordRanker:
        """The words of the gallery and of the queries."""
        codes_upk = compute_codes(self._features, self._vocabulary, self._progress)
        k_post = self._settings.k_post or self._vocabulary.k_post
        k_query = self._settings.k_query or k_post
        bags = {k: pool_bags(codes_upk, self._settings, k_post=k) for k in {k_post, k_query}}
        return WordRanker(
            bags[k_post].take(self._features.gallery_index_n),
            bags[k_query].take(self._features.query_index_q),
            n_words=self._vocabulary.n_words,
            settings=self._settings,
        )

    def run(self, name: str) -> SystemOutput:
        """Rank the gallery for all queries with one system."""
        two_stage = _TWO_STAGE.fullmatch(name)
        if two_stage:
            return self._two_stage(int(two_stage[1]))
        systems: dict[str, Callable[[], SystemOutput]] = {
            "dense": self._dense,
            "bm25v": self._bm25v,
            "hybrid": self._hybrid,
            "hnsw": self._hnsw,
            "ivfpq": self._ivfpq,
            "dot": self._dot,
            "bovw": self._bovw,
        }
        return systems[name]()

    def _rank_by_words(self, k: int) -> list[Ranked]:
        """Return the k best by words; systems share one search, the longest that is needed."""
        if k > self._first_stage_k:
            self._first_stage_k = max(k, self._depth + 1, self._settings.candidates + 1)
            self._first_stage = self.words.search(self._first_stage_k)
        return [Ranked(ranked.rows[:k], ranked.scores[:k]) for ranked in self._first_stage]

    def _candidates(self, k: int) -> list[Ranked]:
        """Return the k best by words besides the query itself."""
        candidates = []
        for own_row, (rows, scores) in zip(
            self._own_row_q, self._rank_by_words(k + 1), strict=True
        ):
            others = rows != own_row
            candidates.append(Ranked(rows[others][:k], scores[others][:k]))
        return candidates

    def _dense(self) -> SystemOutput:
        rankings = vectors.rank_dense(self.vectors, self._depth + 1)
        return SystemOutput(rankings, "cosine with all images")

    def _bm25v(self) -> SystemOutput:
        words, settings = self.words, self._settings
        k_query = f", {format_setting(settings.k_query)} per query" if settings.k_query else ""
        description = (
            f"{settings.scoring} of the "
            f"{format_setting(settings.k_post or self._vocabulary.k_post)} strongest words"
            f"{k_query}, {words.postings_per_query:,.0f} postings per query"
        )
        return SystemOutput(self._rank_by_words(self._depth + 1), description)

    def _two_stage(self, candidates: int) -> SystemOutput:
        rankings = vectors.rerank_dense(self.vectors, self._candidates(candidates))
        return SystemOutput(rankings, f"the best {candidates} by words, ordered by cosine")

    def _hybrid(self) -> SystemOutput:
        settings = self._settings
        candidates = self._candidates(settings.candidates)
        rankings = fusion.fuse(candidates, self.vectors, self.words.max_score_q, settings)
        weight = "" if settings.fusion == "rrf" else f", weight {settings.weight:g}"
        description = (
            f"the best {format_setting(settings.candidates)} by words, ordered by both "
            f"({settings.fusion}{weight})"
        )
        return SystemOutput(rankings, description)

    def _hnsw(self) -> SystemOutput:
        index = vectors.build_hnsw(vectors.to_unit_float32(self.vectors[0]))
        k = self._depth + 1
        rankings = vectors.search_faiss(index, self.vectors[1], k)
        ef, degree = index.hnsw.efSearch, index.hnsw.nb_neighbors(1)
        raised = f", raised to {k} to return {k} images" if k > ef else ""
        return SystemOutput(rankings, f"faiss HNSW, M {degree}, ef {ef}{raised}")

    def _ivfpq(self) -> SystemOutput:
        index = vectors.build_ivfpq(vectors.to_unit_float32(self.vectors[0]))
        rankings = vectors.search_faiss(index, self.vectors[1], self._depth + 1)
        pq, dim = index.pq, self.vectors[1].shape[1]
        padded = f", {dim} values padded to {index.d}" if index.d != dim else ""
        description = (
            f"faiss IVF-PQ, m {pq.M}, {pq.nbits} bits, {index.nlist} lists, {index.nprobe} probed"
        )
        return SystemOutput(rankings, description + padded)

    def _dot(self) -> SystemOutput:
        words = self.words.with_scoring("dot")
        return SystemOutput(words.search(self._depth + 1), "dot product of the same words")

    def _bovw(self) -> SystemOutput:
        rankings, n_words = classical.rank_bovw(self._features, self._depth + 1, self._progress)
        description = f"TF-IDF of {n_words:,} k-means words, trained on the gallery itself"
        return SystemOutput(rankings, description)
