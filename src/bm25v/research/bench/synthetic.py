"""Made-up pictures with the statistics of real ones, as many as wanted, the same for each seed.

What they aim at: 16 words a picture of 18,432; few words in most pictures and most in few, as in
the paper's Zipf plots; words that come together because pictures share topics; log-normal term
frequencies; dense vectors that lie near those of the same topics. A picture used as a query then
touches 1.7 N postings on average, and nine in ten touch 0.4 to 2.4 N, which is the paper's range.
"""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from bm25v.research.bench.pictures import Pictures
from bm25v.vocabulary.bag import quantise

N_WORDS = 18_432
K_POST = 16

_BAG = np.dtype([("words", "<u2", (K_POST,)), ("tf", "<u2", (K_POST,))])
_BLOCK_ROWS = 1_024  # drawn at once, always whole: so the first pictures are the same for any n
_TOPICS = 3_000
_TOPIC_WORDS = 48
_DRAWS = 40  # of words for a picture, of which the first 16 different ones count
_ANY_WORD = 0.35  # share of the draws that follow no topic
_FIRST_TOPIC = 0.65  # share of the others that follow the first of a picture's two topics

Words = NDArray[np.uint16]


class World:
    """Where pictures come from: words of different popularity, and topics made of them.

    >>> world = World(dim=4, seed=0)
    >>> few, many = world.pictures(2), world.pictures(3)
    >>> bool((few.bags == many.bags[:2]).all()), few.dense_ne.shape
    (True, (2, 4))
    """

    def __init__(self, dim: int, seed: int) -> None:
        self._seed = seed
        rng = np.random.default_rng((seed, 0))
        self._numbers = rng.permutation(N_WORDS).astype(np.uint16)  # of the words by popularity
        self._popularity = _cumulated(1 / (np.arange(N_WORDS) + 1.8) ** 1.04)
        self._topic_popularity = _cumulated(1 / (np.arange(_TOPICS) + 20))
        shape = (_TOPICS, _TOPIC_WORDS)
        self._topic_words = np.searchsorted(self._popularity, rng.random(shape))
        self._centres_te = rng.standard_normal((_TOPICS, dim), dtype=np.float32)

    def pictures(self, n: int) -> Pictures:
        """Return the first n pictures."""
        return self._drawn(n, stream=1)

    def queries(self, n: int) -> Pictures:
        """Return other pictures of the same topics."""
        return self._drawn(n, stream=2)

    def _drawn(self, n: int, stream: int) -> Pictures:
        bags = np.empty(n, dtype=_BAG)
        dense_ne = np.empty((n, self._centres_te.shape[1]), dtype=np.float16)

        def fill(number: int) -> None:
            rng = np.random.default_rng((self._seed, stream, number))
            topics_b2 = np.searchsorted(self._topic_popularity, rng.random((_BLOCK_ROWS, 2)))
            block = slice(number * _BLOCK_ROWS, (number + 1) * _BLOCK_ROWS)
            n_used = len(bags[block])
            words_bk, tf_bk = self._bags(rng, topics_b2)
            bags["words"][block], bags["tf"][block] = words_bk[:n_used], tf_bk[:n_used]
            dense_ne[block] = self._dense(rng, topics_b2)[:n_used]

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(fill, range(-(-n // _BLOCK_ROWS))))
        return Pictures(bags, dense_ne, N_WORDS)

    def _bags(
        self, rng: np.random.Generator, topics_b2: NDArray[np.intp]
    ) -> tuple[Words, NDArray[np.uint16]]:
        shape = (len(topics_b2), _DRAWS)
        is_first = rng.random(shape) < _FIRST_TOPIC
        topics = np.where(is_first, topics_b2[:, :1], topics_b2[:, 1:])
        places = (rng.random(shape) ** 1.5 * _TOPIC_WORDS).astype(np.intp)
        anything = np.searchsorted(self._popularity, rng.random(shape))
        is_any = rng.random(shape) < _ANY_WORD
        drawn = self._numbers[np.where(is_any, anything, self._topic_words[topics, places])]
        words_bk = np.sort(_first_different(drawn), axis=1)
        return words_bk, quantise(rng.lognormal(0.9, 0.7, words_bk.shape)).clip(1)

    def _dense(self, rng: np.random.Generator, topics_b2: NDArray[np.intp]) -> NDArray[np.float32]:
        dense_be = rng.standard_normal((len(topics_b2), self._centres_te.shape[1]), np.float32)
        dense_be += self._centres_te[topics_b2[:, 0]]
        dense_be += 0.5 * self._centres_te[topics_b2[:, 1]]
        dense_be /= np.linalg.norm(dense_be, axis=1, keepdims=True)
        return dense_be


def _cumulated(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    sums = np.cumsum(weights)
    return np.asarray(sums / sums[-1], dtype=np.float64)


def _first_different(words_bd: Words) -> Words:
    """Return the first 16 different words of each row, in any order.

    >>> row = np.array([[5, 3, 5, *range(20, 57)]], dtype=np.uint16)
    >>> sorted(_first_different(row)[0].tolist())[:4], _first_different(row).shape
    ([3, 5, 20, 21], (1, 16))
    """
    order = np.argsort(words_bd, axis=1, kind="stable")
    ordered = np.take_along_axis(words_bd, order, axis=1)
    is_again = np.zeros(words_bd.shape, dtype=bool)
    np.put_along_axis(is_again, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], axis=1)
    first = np.argsort(is_again, axis=1, kind="stable")[:, :K_POST]
    return np.take_along_axis(words_bd, first, axis=1)
