"""What a search knows of whatever stores the images: a folder of this machine, or Qdrant.

A `Store` is an open collection, a `View` one state of it, and `Candidates` some of its images.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypedDict, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from bm25v.display import count
from bm25v.errors import GalleryDamaged
from bm25v.images import ImageInput
from bm25v.index.bm25 import Statistics
from bm25v.progress import Progress
from bm25v.store.bags import RowArray, are_bags, read_full_bag
from bm25v.store.filters import Called, ImageFilter
from bm25v.store.meta import Meta
from bm25v.store.records import Calibration, ImageRecord
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.bag import LEVELS, Bag, FullBag

if TYPE_CHECKING:
    from bm25v.search.encode import EncodedQuery

Rows = NDArray[np.int64]
Grouping = Literal["folder", "month"]
T = TypeVar("T")


@dataclass(frozen=True)
class Filter:
    """What a query rules out, whatever the scores; statistics are those of all images."""

    images: ImageFilter = field(default_factory=ImageFilter)  # folder, name, date and size
    must: tuple[tuple[int, ...], ...] = ()  # words: at least one of each group
    without: tuple[int, ...] = ()
    own_paths: tuple[str, ...] = ()  # of the query's own images
    own_contents: tuple[bytes, ...] = ()  # of their files, so that copies are left out too

    def __bool__(self) -> bool:
        return self != Filter()


class Candidates(ABC):
    """Images as rows of arrays: those of a whole folder, or the few that Qdrant returned.

    Of equal scores, the lower row comes first.
    """

    rows: Rows  # the candidates
    first_scores: NDArray[np.float64] | None = None  # by BM25 over the index, best first
    bags: RowArray  # of the index: words, tf
    full_bags: RowArray  # words, levels of tf, patches
    n_words: int  # of the vocabulary
    is_compiled: bool  # whether compiled loops are used: numba is imported already

    def read_bags(
        self, rows: Rows, *, full: bool
    ) -> tuple[NDArray[np.unsignedinteger], NDArray[np.uint16]]:
        """Return the words and stored tf of full bags, or of those of the index.

        A slot with tf 0 is empty. Raises `GalleryDamaged` for bags that are none.
        """
        stored = (self.full_bags if full else self.bags)[rows]
        words_nk, tf_nk = stored["words"], LEVELS[stored["levels"]] if full else stored["tf"]
        if not are_bags(words_nk, tf_nk, self.n_words).all():
            raise GalleryDamaged("an image has no valid bag: run bm25v verify")
        return words_nk, tf_nk

    def read_bag(self, row: int, *, full: bool) -> Bag:
        words_nk, tf_nk = self.read_bags(np.array([row]), full=full)
        is_used = tf_nk[0] > 0
        return Bag(words_nk[0][is_used].astype(np.int32), tf_nk[0][is_used])

    def read_full_bag(self, row: int) -> FullBag:
        self.read_bags(np.array([row]), full=True)
        return read_full_bag(self.full_bags[row])

    @abstractmethod
    def cosines(self, query_e: NDArray[np.float32], rows: Rows) -> NDArray[np.float32]:
        """Return the cosine of a vector and each of some rows; -1 for a damaged vector."""

    @abstractmethod
    def dense_vectors(self, rows: Rows) -> NDArray[np.float32]:
        """Return the dense vectors of some rows."""

    @abstractmethod
    def paths(self, rows: Rows) -> list[str]:
        """Return the paths or ids of some rows."""

    @abstractmethod
    def keys(self, rows: Rows) -> Sequence[Hashable]:
        """Return what identifies the images in some rows, also among other candidates."""

    @abstractmethod
    def records(self, rows: Rows) -> dict[int, ImageRecord]:
        """Return what is known about the images in some rows; without those removed meanwhile."""


class WordImages(NamedTuple):
    """For each of some words the rows that have it, best first."""

    images: Candidates
    rows: dict[int, Rows]


class Coverage(NamedTuple):
    """The largest share of a query's IDF mass that an image matches, and the image's path."""

    share: float
    path: str


class View(Protocol):
    """One state of a collection, as one search sees it."""

    @property
    def meta(self) -> Meta:
        """Facts that never change: k1, b, the sizes of bags and of the vocabulary."""

    @property
    def statistics(self) -> Statistics:
        """The statistics of the bags of the index."""

    @property
    def full_statistics(self) -> Statistics:
        """The statistics of full bags."""

    @property
    def calibration(self) -> Calibration | None:
        """Which scores are weak and strong, if that is known."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user of a search should know about this state."""

    def find(self, paths: Sequence[str]) -> dict[str, ImageRecord]:
        """Return what is known about those of some images that exist, by the path or id given."""

    def fetch(self, records: Sequence[ImageRecord]) -> Candidates:
        """Return some images of `find`, in their order."""

    def candidates(self, encoded: "EncodedQuery") -> Candidates:
        """Return the images that are ordered; with `first_scores` if the index chose them.

        Without, the best hits are among them.
        """

    def best_coverage(self, encoded: "EncodedQuery") -> Coverage:
        """Return the allowed image that matches most of a query; there is at least one."""

    def count(self, condition: Filter) -> int:
        """Return how many images a filter allows."""

    def page(
        self, images: ImageFilter, offset: int, limit: int, *, newest_first: bool = False
    ) -> list[ImageRecord]:
        """Return a part of the images that a filter selects, in an order that stays the same.

        With `newest_first` that is by date; Qdrant has one order only.
        """

    def count_by(self, grouping: Grouping, condition: Filter) -> Mapping[str, int]:
        """Return how many allowed images are in each folder and below it; "" is the root.

        Or in each month, such as "2023-06", newest first; of Qdrant, months are not known.
        """

    def find_examples(self, words: Sequence[int], n: int, at_least: int) -> WordImages:
        """Return for each word up to n images that have it in the index, best first.

        If there are fewer than `at_least`, others follow that have it only in their full bags.
        """

    def find_strongest(self, words: Sequence[int], n: int | None) -> WordImages:
        """Return for each word the n images with most of it, or all; of Qdrant, the first ones."""


def find_by_name(
    names: Sequence[str], find: Callable[[list[str]], Mapping[str, ImageRecord]]
) -> dict[str, ImageRecord]:
    """Return images by path or id; paths of files are absolute, so a relative one is an id.

    What is no id is a path from the current folder. `find` returns images by what is stored.
    """
    absolute = {name: os.path.abspath(name) for name in names}
    known = find([*absolute, *absolute.values()])
    records = {name: known.get(name) or known.get(path) for name, path in absolute.items()}
    return {name: record for name, record in records.items() if record is not None}


def resolve_names(view: View, names: Sequence[str]) -> list[str]:
    """Return the paths or ids of images as they are stored, and the paths of folders."""
    known = view.find(names)
    return [known[name].path if name in known else os.path.abspath(name) for name in names]


class Names(Protocol):
    """The names of a collection's words."""

    @property
    def own(self) -> Mapping[int, str]:
        """Those that people gave in this collection."""

    def merge(self, vocabulary: Mapping[int, str]) -> Mapping[int, str]:
        """Return the name of each word that has one, also those of the vocabulary."""

    def update(self, changes: Mapping[int, str | None]) -> None:
        """Name words, or clear names with None; if one change is wrong, none is made."""


@dataclass(frozen=True, kw_only=True)
class GalleryInfo:
    """Facts about a gallery; what only a folder has is NaN in Qdrant."""

    path: str
    n_images: int
    removed_rows: int = 0  # rows on disk whose image was removed
    vocabulary: str
    vocabulary_fingerprint: str
    backbone: str
    words: int
    words_in_use: int
    average_length: float
    k1: float
    b: float
    bag_bytes_per_image: float = float("nan")
    full_bag_bytes_per_image: float = float("nan")
    dense_bytes_per_image: float = float("nan")
    catalog_bytes_per_image: float = float("nan")
    image_names: int = 0  # names that people gave to images

    @classmethod
    def of(cls, location: str, view: View, **others: Any) -> "GalleryInfo":
        """Return what a view says about a collection, with the other facts that are given."""
        meta, statistics = view.meta, view.statistics
        return cls(
            path=location,
            n_images=statistics.n,
            vocabulary=meta.vocabulary,
            vocabulary_fingerprint=meta.vocabulary_fingerprint,
            backbone=meta.backbone,
            words=meta.n_words,
            words_in_use=int(np.count_nonzero(view.full_statistics.df_v)),
            average_length=statistics.average_length,
            k1=meta.k1,
            b=meta.b,
            **others,
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Failure(NamedTuple):
    """An image that could not be indexed, and why; `known` if that was so the last time too."""

    path: str
    error: str
    known: bool = False


@dataclass
class IndexReport:
    """What happened to the images that were given."""

    added: int = 0
    updated: int = 0
    moved: int = 0
    unchanged: int = 0
    removed: int = 0
    failed: list[Failure] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)  # by reason; RAW files by suffix
    seconds: float = 0.0

    @property
    def notes(self) -> list[str]:
        """What was skipped, in words: a line for RAW files, and one for all else."""
        raw = {name: n for name, n in self.skipped.items() if name.startswith(".")}
        others = {name: n for name, n in self.skipped.items() if name not in raw}
        notes = []
        for counts, what, verb in ((raw, "RAW file", "not read"), (others, "path", "skipped")):
            most_first = sorted(counts, key=lambda name: (-counts[name], name))
            listed = ", ".join(f"{name} {counts[name]:,}" for name in most_first)
            n = sum(counts.values())
            if n:
                notes.append(f"{count(n, what)} {'is' if n == 1 else 'are'} {verb} ({listed})")
        return notes

    @property
    def n_indexed(self) -> int:
        """How many of the images are in the gallery now."""
        return self.added + self.updated + self.moved + self.unchanged

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {**asdict(self), "failed": [failure._asdict() for failure in self.failed]}


class AddOptions(TypedDict):
    """How images are added; those of `Gallery.add`, and how many images are given."""

    total: int
    exclude: tuple[str, ...]
    remove_missing: bool
    workers: int | None
    progress: Progress


class Store(Protocol):
    """An open collection."""

    @property
    def location(self) -> str:
        """Its path or address, for people."""

    @property
    def meta(self) -> Meta:
        """Facts that never change."""

    @property
    def names(self) -> Names:
        """The names of words."""

    @property
    def image_names(self) -> Mapping[str, Called]:
        """The names that people gave to images, by their keys; only a folder has some."""

    def read(self, function: Callable[[View], T], *, searches: int = 1) -> T:
        """Return a function's value for a view of the newest state.

        `searches` is how many are expected, so that preparing for them may pay.
        """

    def add(
        self,
        images: list[str] | Iterator[tuple[str, ImageInput]],
        vocabulary: Vocabulary,
        *,
        timeout: float,
        **options: Unpack[AddOptions],
    ) -> IndexReport:
        """Add or update the images at some paths, or images from memory with ids."""

    def remove(self, paths: Iterable[str], *, recursive: bool, timeout: float) -> int:
        """Remove images, by path or id, or all images in a folder; return how many there were."""

    def info(self) -> GalleryInfo:
        """Return facts about the collection."""

    def close(self) -> None:
        """Release what is open; the store cannot be used afterwards."""
