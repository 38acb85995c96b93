"""Pairs of a query and one of its hits, drawn from a data set by a seed."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import EvaluationError
from bm25v.index.bm25 import WeightedWords
from bm25v.index.contributions import Contribution, contributions
from bm25v.index.searcher import Searcher
from bm25v.index.statistics import Statistics
from bm25v.research.features import Extracted, Progress
from bm25v.research.settings import Settings
from bm25v.research.words import bags_of, codes_of
from bm25v.sae.model import Codes
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.bag import Bag, quantise

HITS = 10  # a hit is one of so many best ones


@dataclass(frozen=True)
class Pair:
    """A query, one of its hits as it was found, and what the hit's score is made of."""

    query: WeightedWords
    dense_e: NDArray[np.float32]  # of the query
    mean_d: NDArray[np.float32]  # the mean of its patches
    hit: Path
    codes: Codes  # of the hit
    patches_pd: NDArray[np.float32]
    parts: tuple[Contribution, ...]


def draw(
    pictures: Extracted,
    vocabulary: Vocabulary,
    n: int,
    *,
    seed: int = 0,
    progress: Progress = lambda what, done, total: None,
) -> tuple[list[Pair], Statistics]:
    """Draw queries, each once, and for each one of its best hits by BM25; also return the counts.

    A picture with the same content as the query is no hit.
    """
    rng = np.random.default_rng(seed)
    codes_upk = codes_of(pictures, vocabulary, progress)
    bags = bags_of(codes_upk, Settings(), k_post=vocabulary.k_post)
    gallery = bags.take(pictures.gallery_n)
    small = np.uint16 if vocabulary.n_words <= 2**16 else np.uint32  # as in galleries
    searcher = Searcher(
        gallery.words_nk.astype(small), quantise(gallery.tf_nk), n_words=vocabulary.n_words
    )
    means_ud = _means(pictures)

    def pairs() -> Iterator[Pair]:
        for number in rng.permutation(len(pictures.queries_q)):
            own = pictures.queries_q[number]
            words, tf = bags.row(own)
            query = WeightedWords.from_bag(Bag(words.astype(np.int32), quantise(tf)))
            same = int(np.count_nonzero(pictures.gallery_n == own))
            rows = searcher.search(query, HITS + same).rows
            rows = rows[pictures.gallery_n[rows] != own][:HITS]
            if not len(rows):
                continue
            hit = pictures.dataset.gallery[rng.choice(rows)].path
            features = vocabulary.backbone.forward(vocabulary.prepare(hit))
            (encoding,) = vocabulary.encode_features([features])
            parts = contributions(query, encoding.bag, searcher.statistics)
            if parts:  # features are kept in half precision: the only shared word may be lost
                yield Pair(
                    query,
                    pictures.dense_ue[own],
                    means_ud[own],
                    hit,
                    encoding.codes,
                    features.patches_pd,
                    tuple(parts),
                )

    found: list[Pair] = []
    for pair in pairs():
        found.append(pair)
        progress("pairs", len(found), n)
        if len(found) == n:
            return found, searcher.statistics
    raise EvaluationError(
        f"{pictures.dataset.folder} makes {len(found):,} pairs of a query and a hit, not {n:,}: "
        f"give it more pictures, or ask for fewer pairs"
    )


def _means(pictures: Extracted) -> NDArray[np.float32]:
    """Return the mean patch of each picture."""
    means: dict[int, NDArray[np.float32]] = {}
    for rows, patches_npd in pictures.patches():
        found = patches_npd.mean(axis=1, dtype=np.float32)
        means.update(zip(rows.tolist(), found, strict=True))
    return np.stack([means[row] for row in range(len(pictures))])
