"""bm25v: an image search engine that can say why.

Importing it is cheap: numpy, the backbones and the compiler are loaded when first used. It switches
off the telemetry of the libraries that it uses.

>>> import bm25v
>>> bm25v.Vocabulary.load("toy").n_words
192
"""

import importlib
import logging
from typing import TYPE_CHECKING, Any

from bm25v.errors import (
    BackboneError,
    BagFileError,
    Bm25vError,
    ClusterError,
    EngineError,
    EvaluationError,
    GalleryDamaged,
    GalleryError,
    GalleryLocked,
    GalleryNotFound,
    GalleryTooNew,
    ImageError,
    MissingExtra,
    ModelUnavailable,
    ServerError,
    StorageFull,
    UnknownBackbone,
    UnknownVocabulary,
    VocabularyError,
    VocabularyMismatch,
    WrongUse,
)
from bm25v.privacy import silence_libraries

if TYPE_CHECKING:
    from bm25v.api import Gallery, explain
    from bm25v.backbones.protocol import Backbone, Features
    from bm25v.client import Client
    from bm25v.duplicates.groups import Duplicate, DuplicateGroup
    from bm25v.duplicates.similarity import Similarity
    from bm25v.engine_gallery import EngineGallery
    from bm25v.explanations.explanation import Explanation, Part
    from bm25v.explanations.samples import PatchBox
    from bm25v.explanations.word_examples import WordExample
    from bm25v.explanations.word_statistics import (
        FolderWithWord,
        ImageWithWord,
        WordInGallery,
        WordList,
        WordUse,
    )
    from bm25v.gallery.indexing import Failure, IndexReport
    from bm25v.gallery.selection import GalleryImage
    from bm25v.gallery.store import GalleryInfo
    from bm25v.images.metadata import Metadata
    from bm25v.index.bm25 import Bm25Parameters
    from bm25v.sae.model import Codes, SparseAutoEncoder
    from bm25v.search.engine import Standing
    from bm25v.search.query import Query, QueryOptions, StoredImage
    from bm25v.search.results import (
        ConceptPart,
        Hit,
        Match,
        QueryWord,
        Results,
        ScorePart,
        WordContribution,
    )
    from bm25v.search.text import SharedWord
    from bm25v.training.recipe import Recipe
    from bm25v.training.train import train
    from bm25v.vocabulary.bag import Bag, FullBag
    from bm25v.vocabulary.concepts import Concept, Concepts, ConceptTable
    from bm25v.vocabulary.vocabulary import Encoding, Vocabulary

__version__ = "0.1.0"

logging.getLogger(__name__).addHandler(logging.NullHandler())  # else warnings go to stderr
silence_libraries()  # before any of them is imported

__all__ = [
    "Backbone",
    "BackboneError",
    "Bag",
    "BagFileError",
    "Bm25Parameters",
    "Bm25vError",
    "Client",
    "ClusterError",
    "Codes",
    "Concept",
    "ConceptPart",
    "ConceptTable",
    "Concepts",
    "Duplicate",
    "DuplicateGroup",
    "Encoding",
    "EngineError",
    "EngineGallery",
    "EvaluationError",
    "Explanation",
    "Failure",
    "Features",
    "FolderWithWord",
    "FullBag",
    "Gallery",
    "GalleryDamaged",
    "GalleryError",
    "GalleryImage",
    "GalleryInfo",
    "GalleryLocked",
    "GalleryNotFound",
    "GalleryTooNew",
    "Hit",
    "ImageError",
    "ImageWithWord",
    "IndexReport",
    "Match",
    "Metadata",
    "MissingExtra",
    "ModelUnavailable",
    "Part",
    "PatchBox",
    "Query",
    "QueryOptions",
    "QueryWord",
    "Recipe",
    "Results",
    "ScorePart",
    "ServerError",
    "SharedWord",
    "Similarity",
    "SparseAutoEncoder",
    "Standing",
    "StorageFull",
    "StoredImage",
    "UnknownBackbone",
    "UnknownVocabulary",
    "Vocabulary",
    "VocabularyError",
    "VocabularyMismatch",
    "WordContribution",
    "WordExample",
    "WordInGallery",
    "WordList",
    "WordUse",
    "WrongUse",
    "explain",
    "train",
]

# Where each name is imported from when it is first used.
_HOMES = {
    "Backbone": "bm25v.backbones.protocol",
    "Bag": "bm25v.vocabulary.bag",
    "FullBag": "bm25v.vocabulary.bag",
    "Bm25Parameters": "bm25v.index.bm25",
    "Client": "bm25v.client",
    "Codes": "bm25v.sae.model",
    "Concept": "bm25v.vocabulary.concepts",
    "ConceptPart": "bm25v.search.results",
    "ConceptTable": "bm25v.vocabulary.concepts",
    "Concepts": "bm25v.vocabulary.concepts",
    "Duplicate": "bm25v.duplicates.groups",
    "DuplicateGroup": "bm25v.duplicates.groups",
    "Encoding": "bm25v.vocabulary.vocabulary",
    "EngineGallery": "bm25v.engine_gallery",
    "Explanation": "bm25v.explanations.explanation",
    "Failure": "bm25v.gallery.indexing",
    "Features": "bm25v.backbones.protocol",
    "FolderWithWord": "bm25v.explanations.word_statistics",
    "Gallery": "bm25v.api",
    "GalleryImage": "bm25v.gallery.selection",
    "GalleryInfo": "bm25v.gallery.store",
    "Hit": "bm25v.search.results",
    "ImageWithWord": "bm25v.explanations.word_statistics",
    "IndexReport": "bm25v.gallery.indexing",
    "Match": "bm25v.search.results",
    "Metadata": "bm25v.images.metadata",
    "Part": "bm25v.explanations.explanation",
    "PatchBox": "bm25v.explanations.samples",
    "Query": "bm25v.search.query",
    "QueryOptions": "bm25v.search.query",
    "QueryWord": "bm25v.search.results",
    "Recipe": "bm25v.training.recipe",
    "Results": "bm25v.search.results",
    "ScorePart": "bm25v.search.results",
    "SharedWord": "bm25v.search.text",
    "Similarity": "bm25v.duplicates.similarity",
    "SparseAutoEncoder": "bm25v.sae.model",
    "Standing": "bm25v.search.engine",
    "StoredImage": "bm25v.search.query",
    "Vocabulary": "bm25v.vocabulary.vocabulary",
    "WordContribution": "bm25v.search.results",
    "WordExample": "bm25v.explanations.word_examples",
    "WordInGallery": "bm25v.explanations.word_statistics",
    "WordList": "bm25v.explanations.word_statistics",
    "WordUse": "bm25v.explanations.word_statistics",
    "explain": "bm25v.api",
    "train": "bm25v.training.train",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bm25v' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
