"""The facts of a collection that never change, and the vocabulary that they name."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from bm25v.backbones import split_pair
from bm25v.errors import UnknownVocabulary, VocabularyMismatch
from bm25v.index.bm25 import DEFAULT_PARAMETERS, Bm25Parameters
from bm25v.schema import Rule, check_values, number, text, whole
from bm25v.vocabulary import Vocabulary

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
class Meta:
    """Facts that never change after a collection was created."""

    vocabulary: str  # the name or path it was created with
    vocabulary_fingerprint: str
    backbone: str
    backbone_fingerprint: str
    n_words: int
    k_post: int  # words of a bag, at most
    k_full: int  # words of a full bag, at most
    n_patches: int  # of an image
    dense_dim: int
    k1: float
    b: float

    @property
    def parameters(self) -> Bm25Parameters:
        return Bm25Parameters(k1=self.k1, b=self.b)


def parse_meta(values: Mapping[str, Any]) -> Meta:
    """Return the facts that were stored; raise `SchemaError` for what cannot be one."""
    check_values(values, _RULES)
    facts = {name: values[name] for name in _RULES}
    return Meta(**facts | {"k1": float(values["k1"]), "b": float(values["b"])})


def describe_vocabulary(
    vocabulary: Vocabulary, parameters: Bm25Parameters = DEFAULT_PARAMETERS
) -> Meta:
    """Return the facts of a new gallery for the bags of a vocabulary."""
    return Meta(
        vocabulary=vocabulary.source,
        vocabulary_fingerprint=vocabulary.fingerprint,
        backbone=vocabulary.backbone.name,
        backbone_fingerprint=vocabulary.backbone.fingerprint,
        n_words=vocabulary.n_words,
        k_post=vocabulary.k_post,
        k_full=vocabulary.full_bag_words,
        n_patches=math.prod(vocabulary.backbone.grid),
        dense_dim=vocabulary.backbone.dense_dim,
        k1=float(parameters.k1),  # the catalogue refuses an int
        b=float(parameters.b),
    )


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


def load_vocabulary(
    meta: Meta,
    source: str | os.PathLike[str] | None,
    *,
    location: str,
    remedy: str = "--vocabulary PATH",
) -> Vocabulary:
    """Return the vocabulary that bags were made with, with the same backbone.

    `source` is where it is, if not where the facts say; a name in the facts is not downloaded.
    Errors name the bags by their `location`, and say how to give another source.
    """
    is_given = source is not None
    source = meta.vocabulary if source is None else source
    try:
        vocabulary = Vocabulary.load(source, download=is_given)
    except UnknownVocabulary as error:
        raise UnknownVocabulary(
            f"{location}: {error}; if it has moved, give its new path: {remedy}"
        ) from error
    if vocabulary.fingerprint != meta.vocabulary_fingerprint:
        raise VocabularyMismatch(
            f"{location} was made with vocabulary {meta.vocabulary} "
            f"({meta.vocabulary_fingerprint}), not with {source} ({vocabulary.fingerprint}): "
            f"give that vocabulary ({remedy}), or index the images into a new gallery"
        )
    if meta.backbone != vocabulary.backbone_name:
        vocabulary = vocabulary.with_dense(split_pair(meta.backbone)[1])
    if vocabulary.features_fingerprint != meta.backbone_fingerprint:
        raise VocabularyMismatch(
            f"{location} has dense vectors of another {meta.backbone} "
            f"({meta.backbone_fingerprint}) than this bm25v has "
            f"({vocabulary.features_fingerprint}): "
            "use the bm25v that made it, or index the images into a new gallery"
        )
    return vocabulary
