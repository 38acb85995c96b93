"""Bags as rows of fixed width, as both stores keep them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bm25v.vocabulary.bag import Bag, FullBag, patch_bytes, word_bytes

RowArray = NDArray[Any]


def bag_layout(k: int, n_words: int) -> np.dtype[np.void]:
    return np.dtype([("words", f"<u{word_bytes(n_words)}", (k,)), ("tf", "<u2", (k,))])


def full_bag_layout(k: int, n_words: int, n_patches: int) -> np.dtype[np.void]:
    types = {
        "words": f"<u{word_bytes(n_words)}",
        "levels": "u1",
        "patches": f"<u{patch_bytes(n_patches)}",
    }
    return np.dtype([(name, kind, (k,)) for name, kind in types.items()])


def read_bag(row: np.void) -> Bag:
    used = row["tf"] > 0
    return Bag(row["words"][used].astype(np.int32), row["tf"][used])


def are_bags(
    words_nk: NDArray[np.unsignedinteger], tf_nk: NDArray[np.unsignedinteger], n_words: int
) -> NDArray[np.bool_]:
    """Return of which stored bags the words exist, also in empty slots (tf 0), and ascend.

    >>> words_nk = np.array([[1, 3, 0], [3, 1, 0], [1, 8, 0], [1, 3, 8]])
    >>> are_bags(words_nk, np.array([[5, 7, 0]] * 4), n_words=8).tolist()
    [True, False, False, False]
    """
    used_nk = tf_nk > 0
    ends_nk = np.where(used_nk, words_nk.astype(np.int64) + 1, 0)
    largest_nk = np.maximum.accumulate(ends_nk, axis=1)
    ascends_nk = ~used_nk[:, 1:] | (words_nk[:, 1:] >= largest_nk[:, :-1])
    return np.asarray(ascends_nk.all(axis=1) & (words_nk < n_words).all(axis=1))


def write_bag(row: np.void, bag: Bag) -> None:
    row["words"][: len(bag.words)] = bag.words
    row["tf"][: len(bag.tf)] = bag.tf


def read_full_bag(row: np.void) -> FullBag:
    used = row["levels"] > 0
    words, patches = row["words"][used].astype(np.int32), row["patches"][used].astype(np.uint16)
    return FullBag(words, row["levels"][used], patches)


def write_full_bag(row: np.void, full_bag: FullBag) -> None:
    """Fill one row with a full bag, or with as many of its strongest words as the row has."""
    k = len(row["words"])
    kept = np.sort(np.argsort(-full_bag.levels.astype(np.int64), kind="stable")[:k])
    for name in FullBag._fields:
        row[name][: len(kept)] = getattr(full_bag, name)[kept]
