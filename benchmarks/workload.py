"""What benchmarks share: synthetic images with the statistics of real ones, and a table."""

import hashlib
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.index.bm25 import WeightedWords
from bm25v.sae.model import Codes
from bm25v.store.bags import RowArray, full_bag_layout, read_bag, read_full_bag
from bm25v.store.files import FileState
from bm25v.store.local.writer import Writer
from bm25v.threads import available_cpus
from bm25v.vocabulary import Encoding
from bm25v.vocabulary.bag import FULL_WORDS, Bag, quantise, to_levels

N_WORDS = 18_432  # the paper's
K_POST = 16
N_PATCHES = 196

_BAG = np.dtype([("words", "<u2", (K_POST,)), ("tf", "<u2", (K_POST,))])
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
    full_bag: Bag


@dataclass(frozen=True)
class EncodedImages:
    """Encoded images, as rows of a gallery's files."""

    bags: RowArray
    dense_ne: NDArray[np.float16]
    n_words: int  # of the vocabulary
    full_bags: RowArray

    def __len__(self) -> int:
        return len(self.bags)

    @property
    def dim(self) -> int:
        return int(self.dense_ne.shape[1])

    def first(self, n: int) -> "EncodedImages":
        return EncodedImages(self.bags[:n], self.dense_ne[:n], self.n_words, self.full_bags[:n])

    def encoding(self, row: int) -> Encoding:
        """Return one image as an encoding without codes."""
        codes = Codes(np.empty((0, 1), np.int32), np.empty((0, 1), np.float32))
        return Encoding(
            read_bag(self.bags[row]),
            self.dense_ne[row].astype(np.float32),
            codes,
            read_full_bag(self.full_bags[row]),
        )

    def queries(self) -> list[BenchQuery]:
        return [
            BenchQuery(
                WeightedWords.from_bag(read_bag(bag)),
                dense_e.astype(np.float32),
                read_full_bag(full_bag).bag,
            )
            for bag, dense_e, full_bag in zip(self.bags, self.dense_ne, self.full_bags, strict=True)
        ]


def add_images(gallery: Path, images: EncodedImages, numbers: range) -> None:
    """Commit images to a gallery, under paths that do not exist, a different one per number."""
    with Writer(gallery) as writer:
        for number in numbers:
            writer.put(synthetic_file(number), images.encoding(number % len(images)))
        writer.commit()


def add_rows(gallery: Path, images: EncodedImages) -> None:
    """Commit all images to a gallery as `add_images` does, from their rows: in half the time."""
    dense_rows = images.dense_ne.view([("dense", "<f2", (images.dim,))])[:, 0]
    with Writer(gallery) as writer:
        for number, rows in enumerate(zip(images.bags, dense_rows, images.full_bags, strict=True)):
            writer.put_rows(synthetic_file(number), rows)
        writer.commit()


def synthetic_file(number: int) -> FileState:
    content = hashlib.blake2b(number.to_bytes(8, "little"), digest_size=16).digest()
    return FileState(f"/photos/{number // 1000}/{number}.jpg", content, 0, 0)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns: the first to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        first, *others = (
            text.rjust(width) if column else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join((first, *others)).rstrip())


class SyntheticImages:
    """Random bags and dense vectors with the statistics of real images; a seed fixes all of them.

    16 words per image; document frequencies that follow the paper's Zipf plots; words
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

    def __init__(self, dim: int, seed: int, n_words: int = N_WORDS) -> None:
        self._seed, self._n_words = seed, n_words
        rng = np.random.default_rng((seed, 0))
        self._word_ids = rng.permutation(n_words).astype(np.uint16)  # by popularity
        self._popularity = _cumulative(1 / (np.arange(n_words) + 1.8) ** 1.04)
        self._topic_popularity = _cumulative(1 / (np.arange(_TOPICS) + 20))
        shape = (_TOPICS, _TOPIC_WORDS)
        self._topic_words = np.searchsorted(self._popularity, rng.random(shape))
        self._centres_te = rng.standard_normal((_TOPICS, dim), dtype=np.float32)

    def draw_images(self, n: int) -> EncodedImages:
        """Return the first n images to search."""
        return self._draw(n, stream=1)

    def draw_queries(self, n: int) -> EncodedImages:
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

    def _draw(self, n: int, stream: int) -> EncodedImages:
        layout = np.dtype(full_bag_layout(FULL_WORDS, self._n_words, N_PATCHES))
        bags, full_bags = np.empty(n, dtype=_BAG), _make_file_rows(n, layout)
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
        return EncodedImages(bags, dense_ne, self._n_words, full_bags)

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
