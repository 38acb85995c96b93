"""The data of a benchmark: images to search and queries, from a gallery or synthetic.

In: a gallery, or a seed. Out: bags, full bags and dense vectors in the form of a gallery's row
files. Not this module's job: measuring.
"""

import hashlib
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
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
from bm25v.gallery.records import FullBagState, Meta, State
from bm25v.gallery.rows import RowArray, full_bag_layout, read_bag, read_full_bag
from bm25v.index.bm25 import DEFAULT_PARAMETERS, WeightedWords
from bm25v.research.bags import count_full_bags
from bm25v.sae.model import Codes
from bm25v.threads import available_cpus
from bm25v.vocabulary import Encoding
from bm25v.vocabulary.bag import FULL_WORDS, Bag, quantise, to_levels

# Synthetic images have the paper's number of words.
N_WORDS = 18_432
K_POST = 16

_PATCHES = 196  # of a synthetic image
_BAG = np.dtype([("words", "<u2", (K_POST,)), ("tf", "<u2", (K_POST,))])
_FULL_BAG = np.dtype(full_bag_layout(FULL_WORDS, N_WORDS, _PATCHES))
_BLOCK_ROWS = 1_024  # always drawn whole, so that the first images are the same for any n
_TOPICS = 3_000
_TOPIC_WORDS = 48
_DRAWS = 40  # words drawn per image; the first 16 distinct ones are kept
_ANY_WORD = 0.35  # share of the draws that ignore the image's topics
_FIRST_TOPIC = 0.65  # share of the other draws that come from the first of an image's two topics

_POOL_ROWS = 1_024  # different sets of the weaker words of full bags
_WEAKER_WORDS = FULL_WORDS - K_POST
_WEAKER_DRAWS = 1_000  # the first 240 distinct ones are kept
_WEAKER_ANY_WORD = 0.6

_WordIds = NDArray[np.uint16]


class BenchQuery(NamedTuple):
    """An encoded image to search with."""

    words: WeightedWords  # for the bags of the index
    dense_e: NDArray[np.float32]
    full_bag: Bag | None = None  # all its words


@dataclass(frozen=True)
class Collection:
    """Encoded images, as rows of a gallery's files."""

    bags: RowArray
    dense_ne: NDArray[np.float16]
    n_words: int  # of the vocabulary
    full_bags: RowArray | None  # None in a gallery that has none

    def __len__(self) -> int:
        return len(self.bags)

    @property
    def dim(self) -> int:
        """The width of a dense vector."""
        return int(self.dense_ne.shape[1])

    def first(self, n: int) -> "Collection":
        """Return the first n images."""
        full_bags = None if self.full_bags is None else self.full_bags[:n]
        return Collection(self.bags[:n], self.dense_ne[:n], self.n_words, full_bags)

    def bag(self, row: int) -> Bag:
        """Return the bag of one image."""
        return read_bag(self.bags[row])

    def encoding(self, row: int) -> Encoding:
        """Return one image as an encoding without codes."""
        codes = Codes(np.empty((0, 1), np.int32), np.empty((0, 1), np.float32))
        full_bag = None if self.full_bags is None else read_full_bag(self.full_bags[row])
        dense_e = self.dense_ne[row].astype(np.float32)
        return Encoding(self.bag(row), dense_e, codes, full_bag=full_bag)

    def queries(self) -> list[BenchQuery]:
        """Return each image as a query."""
        encodings = map(self.encoding, range(len(self)))
        return [
            BenchQuery(
                WeightedWords.from_bag(encoding.bag),
                encoding.dense_e,
                None if encoding.full_bag is None else encoding.full_bag.bag,
            )
            for encoding in encodings
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
        full_bags = snapshot.full_bags
        images, queries = (
            Collection(
                snapshot.bags[selected],
                snapshot.dense_ne[selected],
                n_words,
                None if full_bags is None else full_bags.rows[selected],
            )
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
    full_bags, n = None, len(images)
    if images.full_bags is not None:
        full_bags = FullBagState(images.full_bags.dtype["words"].shape[0], _PATCHES, n)
    files = row_files.RowFiles.of(folder, meta, State(0, 0, 0, full_bags=full_bags))
    for file, rows in ((files.bags, images.bags), (files.full_bags, images.full_bags)):
        if file is not None and rows is not None:
            file.create()
            with file.path.open("ab") as appended:
                rows.tofile(appended)
    files.dense.create()
    os.truncate(files.dense.path, row_files.HEADER_BYTES + n * files.dense.dtype.itemsize)
    Catalog.create(folder / FILE_NAME, meta, full_bags=full_bags)
    with closing(Catalog(folder / FILE_NAME, write=True)) as catalog:
        catalog.begin()
        for row in range(n):
            catalog.insert(synthetic_file(row).to_record(row, checksum=0))
        if full_bags is not None and images.full_bags is not None:
            statistics = count_full_bags(images.full_bags, images.n_words)
            catalog.set_full_bags(full_bags, statistics)
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

    A full bag has these 16 words and up to 240 weaker ones. Drawing those for each image would take
    minutes, so each image takes one of 1,024 sets of them, by its first topic. Full bags take 1 KB
    each, in a temporary file that is mapped into memory.

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

    @cached_property
    def _weaker_words(self) -> tuple[_WordIds, NDArray[np.uint8]]:
        """Sets of words that full bags have beside those of the index, and their levels."""
        rng = np.random.default_rng((self._seed, 3))
        shape = (_POOL_ROWS, _WEAKER_DRAWS)
        positions = rng.integers(0, _TOPIC_WORDS, shape)
        drawn = self._topic_words[np.arange(_POOL_ROWS)[:, np.newaxis], positions]
        is_any = rng.random(shape) < _WEAKER_ANY_WORD
        drawn[is_any] = np.searchsorted(self._popularity, rng.random(np.count_nonzero(is_any)))
        words_pk = _first_distinct(self._word_ids[drawn], _WEAKER_WORDS)
        return words_pk, to_levels(quantise(rng.lognormal(-0.9, 0.6, words_pk.shape)).clip(1))

    def _draw(self, n: int, stream: int) -> Collection:
        bags, full_bags = np.empty(n, dtype=_BAG), _make_file_rows(n, _FULL_BAG)
        weaker_words, weaker_levels = self._weaker_words
        dense_ne = np.empty((n, self._centres_te.shape[1]), dtype=np.float16)

        def fill_block(number: int) -> None:
            rng = np.random.default_rng((self._seed, stream, number))
            topics_b2 = np.searchsorted(self._topic_popularity, rng.random((_BLOCK_ROWS, 2)))
            block = slice(number * _BLOCK_ROWS, (number + 1) * _BLOCK_ROWS)
            n_used = len(bags[block])
            words_bk, tf_bk = self._draw_bags(rng, topics_b2)
            bags["words"][block], bags["tf"][block] = words_bk[:n_used], tf_bk[:n_used]
            dense_ne[block] = self._draw_dense(rng, topics_b2)[:n_used]
            sets = topics_b2[:n_used, 0] % _POOL_ROWS
            words = np.hstack([bags["words"][block], weaker_words[sets]])
            levels = np.hstack([to_levels(bags["tf"][block]), weaker_levels[sets]])
            full_bags["words"][block], full_bags["levels"][block] = _sort_words(words, levels)

        with ThreadPoolExecutor(available_cpus()) as pool:
            list(pool.map(fill_block, range(-(-n // _BLOCK_ROWS))))
        return Collection(bags, dense_ne, N_WORDS, full_bags)

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
        words_bk = np.sort(_first_distinct(drawn, K_POST), axis=1)
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


def _make_file_rows(n: int, layout: np.dtype[np.void]) -> RowArray:
    """Return rows in a temporary file, which memory need not hold; it goes with the array."""
    with tempfile.TemporaryFile() as file:
        return np.asarray(np.memmap(file, dtype=layout, mode="w+", shape=(n,)))


def _sort_words(
    words_bk: _WordIds, levels_bk: NDArray[np.uint8]
) -> tuple[_WordIds, NDArray[np.uint8]]:
    """Sort the words of each row; of a word that is there twice, the stronger one counts.

    >>> words, levels = np.array([[9, 4, 9]], np.uint16), np.array([[20, 30, 10]], np.uint8)
    >>> _sort_words(words, levels)
    (array([[4, 9, 9]], dtype=uint16), array([[30,  0, 20]], dtype=uint8))
    """
    keys_bk = np.sort(words_bk.astype(np.uint32) << 8 | levels_bk, axis=1)
    words_bk, levels_bk = (keys_bk >> 8).astype(np.uint16), keys_bk.astype(np.uint8)
    levels_bk[:, :-1][words_bk[:, 1:] == words_bk[:, :-1]] = 0  # an empty slot
    return words_bk, levels_bk


def _first_distinct(words_bd: _WordIds, k: int) -> _WordIds:
    """Return the first k distinct words of each row, in any order.

    >>> row = np.array([[5, 3, 5, *range(20, 57)]], dtype=np.uint16)
    >>> sorted(_first_distinct(row, 16)[0].tolist())[:4], _first_distinct(row, 16).shape
    ([3, 5, 20, 21], (1, 16))
    """
    order = np.argsort(words_bd, axis=1, kind="stable")
    ordered = np.take_along_axis(words_bd, order, axis=1)
    is_repeated = np.zeros(words_bd.shape, dtype=bool)
    np.put_along_axis(is_repeated, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], axis=1)
    first = np.argsort(is_repeated, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(words_bd, first, axis=1)
