"""Bags on their way between files and galleries, as values."""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import VocabularyMismatch
from bm25v.schema import Rule, check_values, number, text, whole
from bm25v.store.local.file_state import FileState
from bm25v.store.local.records import Meta
from bm25v.vocabulary.bag import Bag, FullBag

FORMAT = 1

_LARGEST = 2**31 - 1
_RULES: Mapping[str, Rule] = {
    "vocabulary": text(),
    "vocabulary_fingerprint": text(),
    "backbone": text(),
    "backbone_fingerprint": text(),
    "n_words": whole(1, _LARGEST),
    "k_post": whole(1, _LARGEST),
    "k_full": whole(1, _LARGEST),
    "n_patches": whole(1, 1 << 16),
    "dense_dim": whole(1, _LARGEST),
    "k1": number(0, 1e6),
    "b": number(0, 1),
}


@dataclass(frozen=True)
class ImageBags:
    """One image: its file, its bags as they are stored, its dense vector."""

    file: FileState  # its path is the key: a path, or the id of an image from memory
    bag: Bag
    full_bag: FullBag
    dense_e: NDArray[np.float16]


class FailedImage(NamedTuple):
    """A file that could not be read, its size and time at that moment, and the reason."""

    path: str
    size: int | None  # None, as the time, if there was no file
    mtime_ns: int | None
    error: str


class Batch(NamedTuple):
    """Some images of a folder of bags, in its order."""

    images: list[ImageBags]
    failed: list[FailedImage]


def parse_meta(values: Mapping[str, Any]) -> Meta:
    """Return what bags were made with, from plain values; wrong ones raise `SchemaError`."""
    check_values(values, _RULES)
    own = {name: values[name] for name in _RULES}
    return Meta(**{**own, "k1": float(own["k1"]), "b": float(own["b"])})


def check_same_bags(own: Meta, other: Meta, name: str, other_name: str) -> None:
    """Raise `VocabularyMismatch` unless bags of both can be in one gallery."""
    if own.vocabulary_fingerprint != other.vocabulary_fingerprint:
        raise VocabularyMismatch(
            f"{name} has bags of vocabulary {own.vocabulary} ({own.vocabulary_fingerprint}), "
            f"{other_name} those of {other.vocabulary} ({other.vocabulary_fingerprint}): "
            "choose another folder or gallery, or encode the images again"
        )
    if own.backbone_fingerprint != other.backbone_fingerprint:
        raise VocabularyMismatch(
            f"{name} has dense vectors of {own.backbone} ({own.backbone_fingerprint}), "
            f"{other_name} those of {other.backbone} ({other.backbone_fingerprint}): "
            "choose another folder or gallery, or encode the images again"
        )
    sizes = attrgetter("n_words", "k_post", "k_full", "n_patches", "dense_dim")
    if sizes(own) != sizes(other):
        raise VocabularyMismatch(
            f"{name} and {other_name} store bags of the same vocabulary in different ways: "
            "use one version of bm25v for both"
        )
