"""Bags on their way between files and galleries, as values.

In: nothing. Out: `ImageBags`, what is known about one image; `FailedImage`, one that could not be
read; `BagSettings`, what all images of a folder have in common. Not this module's job: files.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import VocabularyMismatch
from bm25v.gallery.file_state import FileState
from bm25v.gallery.full_bags import plan_full_bags
from bm25v.gallery.records import FullBagState, Meta
from bm25v.gallery.store import describe_vocabulary
from bm25v.index.bm25 import DEFAULT_PARAMETERS
from bm25v.schema import Rule, check_values, number, text, whole
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.bag import FULL_WORDS, Bag, FullBag

FORMAT = 1

_LARGEST = 2**31 - 1
_RULES: Mapping[str, Rule] = {
    "vocabulary": text(),
    "vocabulary_fingerprint": text(),
    "backbone": text(),
    "n_words": whole(1, _LARGEST),
    "k_post": whole(1, _LARGEST),
    "dense_dim": whole(1, _LARGEST),
    "k1": number(0, 1e6),
    "b": number(0, 1),
    "second_backbone": text(),
    "second_fingerprint": text(),
    "full_words": whole(0, FULL_WORDS),
    "patches": whole(0, 1 << 16),
}


@dataclass(frozen=True)
class ImageBags:
    """One image: its file, its bags as they are stored, its dense vector."""

    file: FileState  # its path is the key: a path, or the id of an image from memory
    bag: Bag
    full_bag: FullBag | None  # None if the vocabulary has no full bags
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


@dataclass(frozen=True)
class BagSettings:
    """What bags were made with: the facts of a gallery, and how it stores full bags."""

    meta: Meta
    full_bags: FullBagState | None

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> "BagSettings":
        """Return the settings of a vocabulary, with BM25's default parameters.

        >>> settings = BagSettings.of(Vocabulary.load("toy"))
        >>> settings.meta.n_words, settings.full_bags
        (192, FullBagState(k=256, n_patches=49, n_rows=0))
        """
        meta = describe_vocabulary(vocabulary, DEFAULT_PARAMETERS)
        return cls(meta, plan_full_bags(vocabulary))

    @property
    def width(self) -> int:
        """How many words a full bag has at most; 0 if there are none."""
        return 0 if self.full_bags is None else self.full_bags.k

    @property
    def n_patches(self) -> int:
        """How many patches the words of a full bag can be in; 0 if there are none."""
        return 0 if self.full_bags is None else self.full_bags.n_patches

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain values."""
        return {**vars(self.meta), "full_words": self.width, "patches": self.n_patches}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "BagSettings":
        """Return the settings of `to_dict`; others raise `SchemaError`."""
        check_values(values, _RULES)
        own = {name: values[name] for name in Meta.__annotations__}
        meta = Meta(**{**own, "k1": float(own["k1"]), "b": float(own["b"])})
        if not values["full_words"]:
            return cls(meta, None)
        return cls(meta, FullBagState(values["full_words"], values["patches"], 0))

    def check_equal(self, other: "BagSettings", name: str, other_name: str) -> None:
        """Raise `VocabularyMismatch` unless bags of both can be in one gallery."""
        own, others = self.meta, other.meta
        if own.vocabulary_fingerprint != others.vocabulary_fingerprint:
            raise VocabularyMismatch(
                f"{name} has bags of vocabulary {own.vocabulary} ({own.vocabulary_fingerprint}), "
                f"{other_name} those of {others.vocabulary} ({others.vocabulary_fingerprint}): "
                "choose another folder or gallery, or encode the images again"
            )
        if own.second_fingerprint != others.second_fingerprint:
            raise VocabularyMismatch(
                f"{name} has dense vectors of {_name_backbones(own)}, {other_name} those of "
                f"{_name_backbones(others)}: choose another folder or gallery, or encode the "
                "images again"
            )
        layout = (own.n_words, own.k_post, own.dense_dim, self.full_bags and self.full_bags[:2])
        if layout != (
            others.n_words,
            others.k_post,
            others.dense_dim,
            other.full_bags and other.full_bags[:2],
        ):
            raise VocabularyMismatch(
                f"{name} and {other_name} store bags of the same vocabulary in different ways: "
                "use one version of bm25v for both"
            )


def _name_backbones(meta: Meta) -> str:
    second = f"{meta.second_backbone} ({meta.second_fingerprint})" if meta.second_backbone else ""
    return " and ".join(filter(None, (meta.backbone, second)))
