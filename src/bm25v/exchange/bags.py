"""Bags on their way between files and galleries, as values."""

from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import VocabularyMismatch
from bm25v.store.files import FileState
from bm25v.store.meta import Meta
from bm25v.vocabulary.bag import Bag, FullBag


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
