"""bm25v: an image search engine that can say why.

Importing it is cheap: numpy, the backbones and the compiler are loaded when first used.

>>> import bm25v
>>> bm25v.Vocabulary.load("toy").n_words
192
"""

import importlib
from typing import TYPE_CHECKING, Any

from bm25v.errors import (
    BackboneError,
    Bm25vError,
    EvaluationError,
    GalleryDamaged,
    GalleryError,
    GalleryLocked,
    GalleryNotFound,
    GalleryTooNew,
    ImageError,
    MissingExtra,
    ModelUnavailable,
    StorageFull,
    UnknownBackbone,
    UnknownVocabulary,
    VocabularyError,
    VocabularyMismatch,
    WrongUse,
)

if TYPE_CHECKING:
    from bm25v.api import Gallery, explain
    from bm25v.explanations import Explanation
    from bm25v.gallery.selection import GalleryImage
    from bm25v.search import Hit, Query, Results
    from bm25v.vocabulary import Vocabulary
    from bm25v.vocabulary.bag import Bag

__version__ = "0.1.0"

__all__ = [
    "BackboneError",
    "Bag",
    "Bm25vError",
    "EvaluationError",
    "Explanation",
    "Gallery",
    "GalleryDamaged",
    "GalleryError",
    "GalleryImage",
    "GalleryLocked",
    "GalleryNotFound",
    "GalleryTooNew",
    "Hit",
    "ImageError",
    "MissingExtra",
    "ModelUnavailable",
    "Query",
    "Results",
    "StorageFull",
    "UnknownBackbone",
    "UnknownVocabulary",
    "Vocabulary",
    "VocabularyError",
    "VocabularyMismatch",
    "WrongUse",
    "explain",
]

_HOMES = {
    "Bag": "bm25v.vocabulary.bag",
    "Explanation": "bm25v.explanations",
    "Gallery": "bm25v.api",
    "GalleryImage": "bm25v.gallery.selection",
    "Hit": "bm25v.search",
    "Query": "bm25v.search",
    "Results": "bm25v.search",
    "Vocabulary": "bm25v.vocabulary",
    "explain": "bm25v.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bm25v' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
