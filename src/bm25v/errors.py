"""Every error a user can meet.

Messages say what happened, with which value, and what to do. Catch the root to catch all:

>>> import bm25v
>>> try:
...     bm25v.Gallery.open("nowhere.bm25v")
... except bm25v.Bm25vError as error:
...     print(type(error).__name__)
GalleryNotFound
"""


class Bm25vError(Exception):
    """The parent of every error that bm25v raises on purpose."""


class InvalidOption(Bm25vError, ValueError):
    """An option of a call is impossible, or contradicts another one."""


class InvalidQuery(InvalidOption):
    """An option of a search is impossible, or contradicts another one."""


class MissingExtra(Bm25vError):
    """An optional part is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        from bm25v.extras import install_command

        super().__init__(f"{feature} needs an extra: {install_command(extra)}")


class ImageError(Bm25vError):
    """An image cannot be read; the message is the reason, without the path."""


class BackboneError(Bm25vError):
    """A backbone cannot be used."""


class UnknownBackbone(BackboneError):
    """No backbone of that name."""


class ModelUnavailable(BackboneError):
    """A backbone's weights are not on this machine and could not be downloaded."""


class VocabularyError(Bm25vError):
    """A vocabulary folder cannot be used."""


class UnknownVocabulary(VocabularyError):
    """No vocabulary of that name or path."""


class BagFileError(Bm25vError):
    """A file of bags cannot be used."""


class ClusterError(Bm25vError):
    """A Ray cluster cannot be used."""


class TookTooLong(Bm25vError):
    """Work for a request has reached its limit of time."""


class ServerError(Bm25vError):
    """A server does not answer, or not as expected."""


class EngineError(Bm25vError):
    """A distributed engine does not answer, or its collection cannot be used."""


class EvaluationError(Bm25vError):
    """A data set, a run or a measurement cannot be used."""


class GalleryError(Bm25vError):
    """A gallery cannot be used."""


class GalleryNotFound(GalleryError):
    """No gallery at that path."""


class ImageNotFound(GalleryError, LookupError):
    """No image of that path or id in the gallery."""


class GalleryLocked(GalleryError):
    """Another process is writing to the gallery."""


class GalleryTooNew(GalleryError):
    """The gallery was written by a newer bm25v."""


class GalleryDamaged(GalleryError):
    """The gallery's files contradict each other."""


class VocabularyMismatch(GalleryError):
    """The gallery's bags were made with another vocabulary."""


class StorageFull(GalleryError):
    """The disk is full; what was complete is kept."""
