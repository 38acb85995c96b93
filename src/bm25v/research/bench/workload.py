"""The data of a benchmark: images to search and queries, from a gallery or synthetic.

In: a gallery, or a seed. Out: bags and dense vectors in the form of a gallery's row files. Not this
module's job: measuring.
"""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.api import Gallery
from bm25v.errors import WrongUse
from bm25v.gallery import rows as row_files
from bm25v.gallery.catalog import Catalog
from bm25v.gallery.catalog_schema import FILE_NAME
from bm25v.gallery.file_state import FileState
from bm25v.gallery.records import Meta
from bm25v.gallery.rows import RowArray, read_bag
from bm25v.index.bm25 import DEFAULT_PARAMETERS, WeightedWords
from bm25v.threads import available_cpus
from bm25v.vocabulary.bag import Bag, quantise

# Synthetic images have the paper's number of words.
N_WORDS = 18_432
K_POST = 16

_BAG = np.dtype([("words", "<u2", (K_POST,)), ("tf", "<u2", (K_POST,))])
_BLOCK_ROWS = 1_024  # always drawn whole, so that the first images are the same for any n
_TOPICS = 3_000
_TOPIC_WORDS = 48
_DRAWS = 40  # words drawn per image; the first 16 distinct ones are kept
_ANY_WORD = 0.35  # share of the draws that ignore the image's topics
_FIRST_TOPIC = 0.65  # share of the other draws that come from the first of an image's two topics

_WordIds = NDArray[np.uint16]


class BenchQuery(NamedTuple):
    """An encoded image to search with."""

    words: WeightedWords
    dense_e: NDArray[np.float32]


@dataclass(frozen=True)
class Collection:
    """Encoded images, as rows of a gallery's files."""

    bags: RowArray
    dense_ne: NDArray[np.float16]
    n_words: int  # of the vocabulary

    def __len__(self) -> int:
        return len(self.bags)

    @property
    def dim(self) -> int:
        """The width of a dense vector."""
        return int(self.dense_ne.shape[1])

    def first(self, n: int) -> "Collection":
        """Return the first n images."""
        return Collection(self.bags[:n], self.dense_ne[:n], self.n_words)

    def bag(self, row: int) -> Bag:
        """Return the bag of one image."""
        return read_bag(self.bags[row])

    def queries(self) -> list[BenchQuery]:
        """Return each image as a query."""
        dense_ne = self.dense_ne.astype(np.float32)
        return [
            BenchQuery(WeightedWords.from_bag(self.bag(row)), dense_ne[row])
            for row in range(len(self))
        ]


def read_gallery(path: Path, n_queries: int, seed: int) -> tuple[Collection, Collection]:
    """Return all images of a gallery, and random ones of them as queries."""
    with Gallery.open(path) as gallery:
        snapshot = gallery.store.snapshot()
        rows, n_words = snapshot.rows, snapshot.searcher.statistics.n_words
        rows_with_words = rows[snapshot.bags["tf"][rows].any(axis=1)]
        if len(rows_with_words) == 0:
            raise WrongUse(f"the gallery {path} has no images with words: index some first")
        query_rows = np.random.default_rng(seed).choice(rows_with_words, n_queries)
        images, queries = (
            Collection(snapshot.bags[selected], snapshot.dense_ne[selected], n_words)
            for selected in (rows, query_rows)
        )
    return images, queries


def write_gallery(
    folder: Path, images: Collection, *, vocabulary: str = "none", fingerprint: str = "none"
) -> None:
    """Write images as a gallery; its file of dense vectors is sparse, as no benchmark reads it."""
    k_post = images.bags.dtype["words"].shape[0]
    meta = Meta(
        vocabulary=vocabulary,
        vocabulary_fingerprint=fingerprint,
        backbone="none",
        n_words=images.n_words,
        k_post=k_post,
        dense_dim=images.dim,
        k1=DEFAULT_PARAMETERS.k1,
        b=DEFAULT_PARAMETERS.b,
    )
    bags, dense = row_files.bag_file(folder, meta, 0), row_files.dense_file(folder, meta, 0)
    bags.create()
    dense.create()
    with bags.path.open("ab") as appended:
        images.bags.tofile(appended)
    os.truncate(dense.path, row_files.HEADER_BYTES + len(images) * dense.dtype.itemsize)
    Catalog.create(folder / FILE_NAME, meta)
    with closing(Catalog(folder / FILE_NAME, write=True)) as catalog:
        catalog.begin()
        for row in range(len(images)):
            catalog.insert(synthetic_file(row).to_record(row, checksum=0))
        catalog.commit()


def synthetic_file(number: int) -> FileState:
    """Return the catalogue entry of a file that does not exist, a different one per number."""
    content = hashlib.blake2b(number.to_bytes(8, "little"), digest_size=16).digest()
    return FileState(f"/pictures/{number // 1000}/{number}.jpg", content, 0, 0)


class SyntheticImages:
    """Random bags and dense vectors with the statistics of real images; a seed fixes all of them.

    16 words per image out of 18,432; document frequencies that follow the paper's Zipf plots; words
    that co-occur because images share topics; log-normal term frequencies; dense vectors that are
    close if topics are. A query reads 1.7 N postings on average, and nine in ten read 0.4 to 2.4 N,
    the range of the paper.

    >>> synthetic = SyntheticImages(dim=4, seed=0)
    >>> few, many = synthetic.draw_images(2), synthetic.draw_images(3)
    >>> bool((few.bags == many.bags[:2]).all()), few.dense_ne.shape
    (True, (2, 4))
    """

    def __init__(self, dim: int, seed: int) -> None:
        self._seed = seed
        rng = np.random.default_rng((seed, 0))
        self._word_ids = rng.permutation(N_WORDS).astype(np.uint16)  # by popularity
        self._popularity = _cumulative(1 / (np.arange(N_WORDS) + 1.8) ** 1.04)
        self._topic_popularity = _cumulative(1 / (np.arange(_TOPICS) + 20))
        shape = (_TOPICS, _TOPIC_WORDS)
        self._topic_words = np.searchsorted(self._popularity, rng.random(shape))
        self._centres_te = rng.standard_normal((_TOPICS, dim), dtype=np.float32)

    def draw_images(self, n: int) -> Collection:
        """Return the first n images to search."""
        return self._draw(n, stream=1)

    def draw_queries(self, n: int) -> Collection:
        """Return the first n queries: other images of the same topics."""
        return self._draw(n, stream=2)

    def _draw(self, n: int, stream: int) -> Collection:
        bags = np.empty(n, dtype=_BAG)
        dense_ne = np.empty((n, self._centres_te.shape[1]), dtype=np.float16)

        def fill_block(number: int) -> None:
            rng = np.random.default_rng((self._seed, stream, number))
            topics_b2 = np.searchsorted(self._topic_popularity, rng.random((_BLOCK_ROWS, 2)))
            block = slice(number * _BLOCK_ROWS, (number + 1) * _BLOCK_ROWS)
            n_used = len(bags[block])
            words_bk, tf_bk = self._draw_bags(rng, topics_b2)
            bags["words"][block], bags["tf"][block] = words_bk[:n_used], tf_bk[:n_used]
            dense_ne[block] = self._draw_dense(rng, topics_b2)[:n_used]

        with ThreadPoolExecutor(available_cpus()) as pool:
            list(pool.map(fill_block, range(-(-n // _BLOCK_ROWS))))
        return Collection(bags, dense_ne, N_WORDS)

    def _draw_bags(
        self, rng: np.random.Generator, topics_b2: NDArray[np.intp]
    ) -> tuple[_WordIds, NDArray[np.uint16]]:
        shape = (len(topics_b2), _DRAWS)
        is_first = rng.random(shape) < _FIRST_TOPIC
        topics = np.where(is_first, topics_b2[:, :1], topics_b2[:, 1:])
        positions = (rng.random(shape) ** 1.5 * _TOPIC_WORDS).astype(np.intp)
        any_word = np.searchsorted(self._popularity, rng.random(shape))
        is_any = rng.random(shape) < _ANY_WORD
        drawn = self._word_ids[np.where(is_any, any_word, self._topic_words[topics, positions])]
        words_bk = np.sort(_first_distinct(drawn), axis=1)
        return words_bk, quantise(rng.lognormal(0.9, 0.7, words_bk.shape)).clip(1)

    def _draw_dense(
        self, rng: np.random.Generator, topics_b2: NDArray[np.intp]
    ) -> NDArray[np.float32]:
        dense_be = rng.standard_normal((len(topics_b2), self._centres_te.shape[1]), np.float32)
        dense_be += self._centres_te[topics_b2[:, 0]]
        dense_be += 0.5 * self._centres_te[topics_b2[:, 1]]
        dense_be /= np.linalg.norm(dense_be, axis=1, keepdims=True)
        return dense_be


def _cumulative(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    sums = np.cumsum(weights)
    return np.asarray(sums / sums[-1], dtype=np.float64)


def _first_distinct(words_bd: _WordIds) -> _WordIds:
    """Return the first 16 distinct words of each row, in any order.

    >>> row = np.array([[5, 3, 5, *range(20, 57)]], dtype=np.uint16)
    >>> sorted(_first_distinct(row)[0].tolist())[:4], _first_distinct(row).shape
    ([3, 5, 20, 21], (1, 16))
    """
    order = np.argsort(words_bd, axis=1, kind="stable")
    ordered = np.take_along_axis(words_bd, order, axis=1)
    is_repeated = np.zeros(words_bd.shape, dtype=bool)
    np.put_along_axis(is_repeated, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], axis=1)
    first = np.argsort(is_repeated, axis=1, kind="stable")[:, :K_POST]
    return np.take_along_axis(words_bd, first, axis=1)
