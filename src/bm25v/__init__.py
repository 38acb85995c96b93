"""bm25v: an image search engine that can say why.

Importing it is cheap and has no side effects: numpy, the backbones and the compiler are loaded when
they are first used. Other errors than these, and the classes of what methods return, are where the
Python reference names them.

>>> import bm25v
>>> bm25v.Vocabulary.load("toy").n_words
192
"""

import importlib
import logging
from typing import TYPE_CHECKING, Any

from bm25v.errors import (
    BackboneError,
    Bm25vError,
    GalleryError,
    GalleryLocked,
    GalleryNotFound,
    ImageError,
    ImageNotFound,
    InvalidOption,
    InvalidQuery,
    MissingExtra,
    ServerError,
    VocabularyError,
)

if TYPE_CHECKING:
    from bm25v.backbones.protocol import Backbone, Features
    from bm25v.client import Client
    from bm25v.explain.explanation import Explanation
    from bm25v.gallery import Gallery
    from bm25v.research.evaluate import evaluate
    from bm25v.search.query import Query, StoredImage
    from bm25v.search.results import Hit, Match, Results
    from bm25v.store.base import IndexReport
    from bm25v.training import train
    from bm25v.training.recipe import Recipe
    from bm25v.vocabulary.bag import Bag
    from bm25v.vocabulary.vocabulary import Encoding, Vocabulary

__version__ = "0.1.0"

logging.getLogger(__name__).addHandler(logging.NullHandler())  # else warnings go to stderr

__all__ = [
    "Backbone",
    "BackboneError",
    "Bag",
    "Bm25vError",
    "Client",
    "Encoding",
    "Explanation",
    "Features",
    "Gallery",
    "GalleryError",
    "GalleryLocked",
    "GalleryNotFound",
    "Hit",
    "ImageError",
    "ImageNotFound",
    "IndexReport",
    "InvalidOption",
    "InvalidQuery",
    "Match",
    "MissingExtra",
    "Query",
    "Recipe",
    "Results",
    "ServerError",
    "StoredImage",
    "Vocabulary",
    "VocabularyError",
    "evaluate",
    "train",
]

_MODULES = {
    "Backbone": "bm25v.backbones.protocol",
    "Bag": "bm25v.vocabulary.bag",
    "Client": "bm25v.client",
    "Encoding": "bm25v.vocabulary.vocabulary",
    "Explanation": "bm25v.explain.explanation",
    "Features": "bm25v.backbones.protocol",
    "Gallery": "bm25v.gallery",
    "Hit": "bm25v.search.results",
    "IndexReport": "bm25v.store.base",
    "Match": "bm25v.search.results",
    "Query": "bm25v.search.query",
    "Recipe": "bm25v.training.recipe",
    "Results": "bm25v.search.results",
    "StoredImage": "bm25v.search.query",
    "Vocabulary": "bm25v.vocabulary.vocabulary",
    "evaluate": "bm25v.research.evaluate",
    "train": "bm25v.training",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'bm25v' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
