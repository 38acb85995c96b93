"""The systems of the comparison: features in, rankings out.

`sparse` ranks by the words of the index and by k-means words, `full_bags` by all words of an image,
alone or with dense vectors, `vectors` by dense vectors. All use the same features.
"""

import re
from collections.abc import Sequence
from functools import cached_property, partial
from typing import NamedTuple, cast

import numpy as np

from bm25v.errors import InvalidOption
from bm25v.index.searcher import Ranked
from bm25v.progress import Progress, no_progress
from bm25v.research.bags import compute_codes, pool_bags, pool_full_bags, pool_images
from bm25v.research.features import DatasetFeatures
from bm25v.research.settings import ALL, RankingSettings, format_setting
from bm25v.research.systems import vectors
from bm25v.research.systems.full_bags import FullBagRanker, MemoryView
from bm25v.research.systems.sparse import WordRanker, import_scipy_sparse, rank_clusters
from bm25v.sae.model import Codes
from bm25v.search.encode import FIRST_WORDS
from bm25v.search.scoring import Mode
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.bag import Bag, quantise

__all__ = ["SYSTEMS", "SystemOutput", "SystemRunner", "default_systems", "resolve_systems"]

SYSTEMS = (
    "dense",
    "bm25v",
    "two-stage-100",
    "two-stage-200",
    "words",
    "hybrid",
    "hnsw",
    "ivfpq",
    "dot",
    "bovw",
)
FULL_BAG_SYSTEMS = ("words", "hybrid")
_STAGED = re.compile(r"(two-stage|words|hybrid)(?:-([1-9]\d*|all))?")  # with their candidates


class SystemOutput(NamedTuple):
    rankings: list[Ranked]  # of each query
    description: str  # how the system was set up


def default_systems(settings: RankingSettings) -> list[str]:
    return [name for name in SYSTEMS if settings.full_bags or name not in FULL_BAG_SYSTEMS]


def resolve_systems(names: Sequence[str], settings: RankingSettings) -> list[str]:
    """Return the full names of systems, without repetitions, or refuse what cannot be run.

    "two-stage", "words" and "hybrid" take their number of candidates from their name, as in
    "words-500" or "words-all", else from the settings.

    >>> resolve_systems(["dense", "two-stage", "words"], RankingSettings(candidates=50))
    ['dense', 'two-stage-50', 'words']
    """
    two_stage = f"two-stage-{format_setting(settings.candidates_for('two-stage'))}"
    full = [two_stage if name == "two-stage" else name for name in names]
    choices = f"choose from {', '.join(SYSTEMS)} (two-stage, words and hybrid with any number)"
    for name in full:
        if name not in SYSTEMS and not _STAGED.fullmatch(name):
            raise InvalidOption(f"there is no system {name!r}; {choices}")
        if not settings.full_bags and name.startswith(FULL_BAG_SYSTEMS):
            raise InvalidOption(
                f"{name} orders by full bags, which these settings have not: leave it out, or set "
                "full_bags=on"
            )
    if not full:
        raise InvalidOption(f"no systems are given; {choices}")
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
        self._bag_sizes = settings.bag_sizes(vocabulary)
        self._depth = depth
        self._progress = progress
        self._own_row_q = features.dataset.own_rows
        dense_ne = features.dense_ue[features.gallery_index_n].astype(np.float16)  # as in galleries
        self.vectors = dense_ne, features.dense_ue[features.query_index_q]
        self._first_stage: list[Ranked] = []
        self._first_stage_k = 0

    @cached_property
    def _codes(self) -> Codes:
        stop_words = self._settings.stop_words
        return compute_codes(
            self._features, self._vocabulary, self._progress, stop_words=stop_words
        )

    @cached_property
    def words(self) -> WordRanker:
        k_post = self._bag_sizes["k_post"]
        k_query = self._settings.k_query or k_post
        bags = {k: pool_bags(self._codes, self._settings, k_post=k) for k in {k_post, k_query}}
        return WordRanker(
            bags[k_post].take(self._features.gallery_index_n),
            bags[k_query].take(self._features.query_index_q),
            n_words=self._vocabulary.n_words,
            settings=self._settings,
        )

    @cached_property
    def full_bags(self) -> FullBagRanker:
        k_full, n_words = self._bag_sizes["k_full"], self._vocabulary.n_words
        rows = pool_full_bags(self._codes, self._settings, k_full=k_full, n_words=n_words)
        queries_q = self._features.query_index_q
        codes_q = Codes(self._codes.words_pk[queries_q], self._codes.activations_pk[queries_q])
        pooled = pool_images(codes_q, self._settings, self._settings.k_query or ALL)
        queries = [Bag(words.astype(np.int32), quantise(tf)) for words, tf in pooled]
        dense_ne, dense_qe = self.vectors
        gallery_rows = rows[self._features.gallery_index_n]
        gallery = MemoryView.of(self.words.prepare_searcher(), gallery_rows, dense_ne)
        return FullBagRanker(gallery, queries, rows[queries_q], dense_qe, self._settings)

    def run(self, name: str) -> SystemOutput:
        if staged := _STAGED.fullmatch(name):
            mode, number = cast(Mode, staged[1]), staged[2]
            candidates = self._settings.candidates_for(mode)
            if number:
                candidates = ALL if number == "all" else int(number)
            rank = self._two_stage if mode == "two-stage" else partial(self._full, mode)
            return rank(candidates)
        k = self._depth + 1  # with the query itself
        if name == "dense":
            return SystemOutput(vectors.rank_dense(self.vectors, k), "cosine with all images")
        if name == "dot":
            rankings = self.words.with_scoring("dot").search(k)
            return SystemOutput(rankings, "dot product of the same words")
        if name == "bovw":
            rankings, n_words = rank_clusters(self._features, k, self._progress)
            trained = f"TF-IDF of {n_words:,} k-means words, trained on the gallery itself"
            return SystemOutput(rankings, trained)
        return {"bm25v": self._bm25v, "hnsw": self._hnsw, "ivfpq": self._ivfpq}[name](k)

    def _bm25v(self, k: int) -> SystemOutput:
        settings = self._settings
        k_query = f", {format_setting(settings.k_query)} per query" if settings.k_query else ""
        description = (
            f"{settings.scoring} of the {format_setting(self._bag_sizes['k_post'])} strongest words"
            f"{k_query}, {self.words.postings_per_query:,.0f} postings per query"
        )
        return SystemOutput(self._rank_by_words(k), description)

    def _hnsw(self, k: int) -> SystemOutput:
        index = vectors.build_hnsw(vectors.to_unit_float32(self.vectors[0]))
        rankings = vectors.search_faiss(index, self.vectors[1], k)
        ef, degree = index.hnsw.efSearch, index.hnsw.nb_neighbors(1)
        raised = f", raised to {k} to return {k} images" if k > ef else ""
        return SystemOutput(rankings, f"faiss HNSW, M {degree}, ef {ef}{raised}")

    def _ivfpq(self, k: int) -> SystemOutput:
        index = vectors.build_ivfpq(vectors.to_unit_float32(self.vectors[0]))
        rankings = vectors.search_faiss(index, self.vectors[1], k)
        pq, dim = index.pq, self.vectors[1].shape[1]
        padded = f", {dim} values padded to {index.d}" if index.d != dim else ""
        description = (
            f"faiss IVF-PQ, m {pq.M}, {pq.nbits} bits, {index.nlist} lists, {index.nprobe} probed"
        )
        return SystemOutput(rankings, description + padded)

    def _two_stage(self, n: int) -> SystemOutput:
        candidates = []
        for own_row, ranked in zip(self._own_row_q, self._rank_by_words(n + 1), strict=True):
            others = ranked.rows != own_row
            candidates.append(Ranked(ranked.rows[others][:n], ranked.scores[others][:n]))
        rankings = vectors.rerank_dense(self.vectors, candidates)
        return SystemOutput(rankings, f"the best {format_setting(n)} by words, ordered by cosine")

    def _full(self, mode: Mode, candidates: int) -> SystemOutput:
        """Rank by full bags: mode "words" or "hybrid"."""
        full_bags, settings = self.full_bags, self._settings
        k = min(self._depth, candidates)
        rankings = full_bags.search(mode, k, candidates, self._own_row_q)
        candidates_text = f"the best {candidates:,} by {FIRST_WORDS} words"
        if candidates >= len(full_bags.rows):
            candidates_text = "all images"
        by_words = f"BM25 of full bags ({full_bags.words_per_image:,.0f} words)"
        if mode == "hybrid":
            by_words = f"cosine + {settings.weight:g} × the share of {by_words}"
        weighting = f"query words by {settings.full_weighting}"
        return SystemOutput(rankings, f"{candidates_text}, ordered by {by_words}, {weighting}")

    def _rank_by_words(self, k: int) -> list[Ranked]:
        """Return the k best by words; systems share one search, the longest that is needed."""
        if k > self._first_stage_k:
            self._first_stage_k = max(k, self._depth + 1)
            self._first_stage = self.words.search(self._first_stage_k)
        return [Ranked(ranked.rows[:k], ranked.scores[:k]) for ranked in self._first_stage]
