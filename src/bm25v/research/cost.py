"""How many bytes and operations a search takes: the paper's table, from real counts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import EvaluationError
from bm25v.index.bm25 import WeightedWords
from bm25v.research.tables import Cells
from bm25v.search.encode import FIRST_WORDS
from bm25v.search.scoring import MODES
from bm25v.store.bags import RowArray
from bm25v.vocabulary.bag import Bag

# The paper's settings of the systems that it compares with.
HNSW_DEGREE, HNSW_EF = 32, 100
PQ_PARTS, PQ_BYTES, IVF_LISTS, IVF_PROBES = 48, 1, 100, 1
CANDIDATES = 200
_CANDIDATES = MODES["words"].candidates  # ours, of searches by full bags
ENTRY_BYTES = 6  # 4 bytes for the word id and 2 for its term frequency
POSTING_OPERATIONS = 5
"""The paper's C. It states no value; its (0.4-2.4) N with 3,240 to 527 active words implies 5."""

_CHUNK_ROWS = 4_096  # full bags that are sorted together


class FullBagUsage(NamedTuple):
    """What full bags add to the costs of a gallery; all numbers are means."""

    bytes_per_image: float  # as they are stored
    image_words: float  # of one full bag
    query_words: float  # that find candidates in the index
    postings: float  # that these words of one query read


@dataclass(frozen=True)
class WordUsage:
    """How many words a gallery and its queries use; numbers of one image or query are means."""

    n_images: int
    vocabulary: int  # number of words (the paper's D_s)
    active: float  # words in at least one image (V_active)
    image_words: float  # words of one image (L0)
    query_words: float  # words of one query
    postings: float  # postings that one query reads
    full_bags: FullBagUsage | None = None  # None if the gallery has none

    def expect_postings(self, query_words: float) -> float:
        """Return how many postings a query reads if all active words are equally frequent.

        Real queries read more, because frequent words occur in more queries than rare ones.
        """
        return query_words * self.image_words * self.n_images / self.active

    def project(self, images: int) -> "WordUsage":
        """Return the usage in a gallery of another size, if each word keeps its share of images."""
        growth, full_bags = images / self.n_images, self.full_bags
        if full_bags is not None:
            full_bags = full_bags._replace(postings=full_bags.postings * growth)
        return replace(
            self,
            n_images=images,
            active=float(expected_active_words(images, self.image_words, self.vocabulary)),
            postings=self.postings * growth,
            full_bags=full_bags,
        )

    def to_dict(self, dim: int) -> dict[str, Any]:
        """Return the numbers, and the costs of all systems with dense vectors of a width."""
        return {
            **vars(self),
            "expected_postings": self.expect_postings(self.query_words),
            "full_bags": None if self.full_bags is None else self.full_bags._asdict(),
            "systems": [system._asdict() for system in cost_table(self, dim=dim)],
        }

    def table(self, dim: int) -> Cells:
        header = ["system", "bytes per vector", "compression", "operations, expected", "counted"]
        rows = [
            [
                system.system,
                f"{system.bytes_per_image:,.0f}",
                f"{system.compression:.1f}×",
                f"{system.operations:,.0f}",
                "" if system.counted is None else f"{system.counted:,.0f}",
            ]
            for system in cost_table(self, dim=dim)
        ]
        return header, rows


class SystemCost(NamedTuple):
    system: str
    bytes_per_image: float
    compression: float  # compared with dense vectors
    operations: float  # per query, by the paper's formula
    counted: float | None  # per query, by the postings that queries read; None without postings


class Growth(NamedTuple):
    vocabulary: int
    sizes: list[int]  # numbers of images
    measured: list[float]
    expected: list[float]  # if each image drew its words uniformly


def count_usage(
    df_v: NDArray[np.integer],
    images: int,
    queries: Sequence[Bag | WeightedWords] | None = None,
    full_bags: FullBagUsage | None = None,
) -> WordUsage:
    """Count how a gallery and its queries use words; by default each image is a query.

    >>> usage = count_usage(np.array([3, 1, 0]), images=3)
    >>> usage.postings, usage.active, round(usage.query_words, 2)  # (3·3 + 1·1) / 3
    (3.3333333333333335, 2, 1.33)
    """
    active = int((df_v > 0).sum())
    if not active:
        raise EvaluationError(f"none of the {images:,} images has a word: nothing to count")
    image_words = float(df_v.sum() / images)
    if queries is None:  # a word is then in as many queries as images
        df = df_v.astype(np.float64)
        query_words, postings = image_words, float((df * df).sum() / images)
    else:
        query_words = float(np.mean([len(query.words) for query in queries]))
        postings = float(np.mean([df_v[query.words].sum() for query in queries]))
    return WordUsage(images, len(df_v), active, image_words, query_words, postings, full_bags)


def count_full_usage(
    rows: RowArray, df_v: NDArray[np.integer], queries: RowArray | None = None
) -> FullBagUsage:
    """Count what full bags cost, from stored rows; by default each image is a query.

    `df_v` are the document frequencies in the index, where a query's strongest words find
    candidates.
    """
    queries = rows if queries is None else queries
    query_words = postings = 0
    for start in range(0, len(queries), _CHUNK_ROWS):
        chunk = queries[start : start + _CHUNK_ROWS]
        strongest = np.argsort(-chunk["levels"].astype(np.int16), axis=1, kind="stable")
        strongest = strongest[:, :FIRST_WORDS]
        words = np.take_along_axis(chunk["words"], strongest, axis=1)
        words = words[np.take_along_axis(chunk["levels"], strongest, axis=1) > 0]
        query_words += len(words)
        postings += int(df_v[words].sum())
    return FullBagUsage(
        bytes_per_image=rows.dtype.itemsize,
        image_words=float(np.count_nonzero(rows["levels"]) / len(rows)),
        query_words=query_words / len(queries),
        postings=postings / len(queries),
    )


def cost_table(usage: WordUsage, *, dim: int) -> list[SystemCost]:
    """Return the paper's table, with dense vectors in float32; bm25v's own entries take 4 bytes.

    With full bags, two rows follow: searches by words and hybrid ones. Full bags have the bytes
    that they are stored with. Of each candidate all words are counted, five operations each, as if
    the query had them too.
    """
    dense = 4.0 * dim
    sparse = ENTRY_BYTES * usage.image_words
    expected = POSTING_OPERATIONS * usage.expect_postings(usage.query_words)
    counted = POSTING_OPERATIONS * usage.postings
    rerank = CANDIDATES * dim
    probed = IVF_PROBES / IVF_LISTS * PQ_PARTS * usage.n_images

    def row(
        system: str, size: float, operations: float, counted: float | None = None
    ) -> SystemCost:
        return SystemCost(system, size, dense / size, operations, counted)

    rows = [
        row("Dense", dense, 2.0 * dim * usage.n_images),
        row("HNSW", 4.0 * (dim + 2 * HNSW_DEGREE), 2.0 * dim * HNSW_EF),
        row("IVF+PQ", PQ_PARTS * PQ_BYTES, probed),
        row("BM25-V", sparse, expected, counted),
        row("Two-stage", dense + sparse, expected + rerank, counted + rerank),
    ]
    full = usage.full_bags
    if full is not None:
        expected = POSTING_OPERATIONS * usage.expect_postings(full.query_words)
        counted = POSTING_OPERATIONS * full.postings
        size, candidates = sparse + full.bytes_per_image, min(_CANDIDATES, usage.n_images)
        by_words = candidates * full.image_words * POSTING_OPERATIONS
        by_both = by_words + candidates * dim
        rows.append(row("Words", size, expected + by_words, counted + by_words))
        rows.append(row("Hybrid", dense + size, expected + by_both, counted + by_both))
    return rows


def expected_active_words(
    images: float | NDArray[np.integer], image_words: float, vocabulary: int
) -> NDArray[np.float64]:
    """Return how many words are active if each image draws its words uniformly (equation 11).

    Real galleries have fewer active words, because word frequencies follow a power law.

    >>> expected_active_words(np.array([0, 1, 5_994, 10**8]), 16, 18_432).round().tolist()
    [0.0, 16.0, 18331.0, 18432.0]
    """
    log_unused = np.asarray(images) * np.log1p(-image_words / vocabulary)
    return np.asarray(-vocabulary * np.expm1(log_unused), dtype=np.float64)


def mean_active_words(
    df_v: NDArray[np.integer], images: int, sizes: Sequence[int]
) -> NDArray[np.float64]:
    """Return how many words are active in samples of the gallery, for each sample size.

    It is the exact mean over all samples: a word is in none of n images out of N in C(N - df, n) of
    the C(N, n) samples.

    >>> mean_active_words(np.array([2, 1, 0]), images=2, sizes=[0, 1, 2]).round(9).tolist()
    [0.0, 1.5, 2.0]
    """
    frequencies, words = np.unique(df_v[df_v > 0], return_counts=True)
    means = []
    for size in sizes:
        unused = [_share_without_word(int(df), images, size) for df in frequencies]
        means.append(float(words @ (1 - np.array(unused))))
    return np.array(means)


def _share_without_word(df: int, images: int, size: int) -> float:
    others = images - df
    if size > others:
        return 0.0
    logarithm = math.lgamma(others + 1) - math.lgamma(others - size + 1)
    return math.exp(logarithm + math.lgamma(images - size + 1) - math.lgamma(images + 1))


def measure_growth(df_v: NDArray[np.integer], images: int) -> Growth:
    """Compare the number of active words with the expectation of the paper's equation 11.

    >>> measure_growth(np.array([30, 2]), images=30).sizes
    [1, 2, 5, 10, 20, 30]
    """
    steps = (digit * 10**power for power in range(len(str(images))) for digit in (1, 2, 5))
    sizes = [step for step in steps if step < images] + [images]
    image_words = float(df_v.sum() / images)
    return Growth(
        len(df_v),
        sizes,
        mean_active_words(df_v, images, sizes).tolist(),
        expected_active_words(np.array(sizes), image_words, len(df_v)).tolist(),
    )
