"""What a search needs of whatever stores the images: the embedded gallery, or another engine.

A `SearchEngine` is an open collection. A `View` of it is one state, with the statistics of all
images; it finds candidates, and what people browse: pages of images, folders, images of words.
`Found` images are rows of an `Images`, which has their bags and compares their dense vectors: all
rows of a gallery, or the few that another engine returned. The second stage, contributions and
explanations read only these. Not this module's job: any of it.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from bm25v.backbones.text import TextTower
from bm25v.index.bm25 import Bm25Parameters, Statistics
from bm25v.search.query import Query
from bm25v.store.local.full_bags import FullBags
from bm25v.store.local.records import Calibration, ImageRecord, Meta
from bm25v.store.local.selection import ImageFilter
from bm25v.store.local.store import GalleryInfo
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.bag import Bag
from bm25v.vocabulary.phrases import PhraseIndex

if TYPE_CHECKING:
    from bm25v.search.concepts import ConceptTerm
    from bm25v.search.encode import EncodedQuery
    from bm25v.search.filters import RowFilter

Rows = NDArray[np.int64]
T = TypeVar("T")


class Vectors(Protocol):
    """Dense vectors of images in rows, to compare with."""

    def cosines(self, query_e: NDArray[np.float32], rows: Rows) -> NDArray[np.float32]:
        """Return the cosine of a vector and each of some rows; -1 for a damaged vector."""


class Images(Vectors, Protocol):
    """Images of a collection in rows; of equal scores, that of the lower row comes first."""

    @property
    def full_bags(self) -> FullBags:
        """Their full bags, with the statistics of the whole collection."""

    @property
    def is_compiled(self) -> bool:
        """Whether compiled loops are used: numba is imported already."""

    def bag(self, row: int) -> Bag:
        """Return the bag that the index has of a row."""

    def index_bags(self, rows: Rows) -> tuple[NDArray[np.unsignedinteger], NDArray[np.uint16]]:
        """Return the words and stored tf of the bags of some rows; a slot with tf 0 is empty."""

    def dense_vectors(self, rows: Rows) -> NDArray[np.float32]:
        """Return the dense vectors of some rows."""

    def term_scores(self, terms: "Sequence[ConceptTerm]", rows: Rows) -> NDArray[np.float64]:
        """Return the logarithm of the probability of all terms in each of some rows."""

    def paths_of(self, rows: Rows) -> list[str]:
        """Return the paths or ids of some rows."""

    def keys_of(self, rows: Rows) -> Sequence[Hashable]:
        """Return what identifies the images in some rows, also in another `Images`."""

    def records_of(self, rows: Rows) -> dict[int, ImageRecord]:
        """Return what is known about the images in some rows; without those removed meanwhile."""


class Found(NamedTuple):
    """Some rows, best first if they have scores."""

    images: Images
    rows: Rows
    scores: NDArray[np.float64] | None = None


class FoundByWord(NamedTuple):
    """For each of some words the rows that have it, those with most of it first."""

    images: Images
    rows: dict[int, Rows]


class ImagePage(NamedTuple):
    """A part of the images that a filter selects, and how many it selects."""

    records: list[ImageRecord]
    total: int


class Coverage(NamedTuple):
    """The largest share of a query's IDF mass that an image matches, and the image's path."""

    share: float
    path: str


class View(Protocol):
    """One state of a collection, as one search sees it."""

    @property
    def parameters(self) -> Bm25Parameters:
        """k1 and b."""

    @property
    def statistics(self) -> Statistics:
        """The statistics of the bags of the index."""

    @property
    def full_statistics(self) -> Statistics:
        """The statistics of full bags."""

    @property
    def k_full(self) -> int:
        """How many words a full bag has at most."""

    @property
    def calibration(self) -> Calibration | None:
        """Which scores are weak and strong, if that is known."""

    @property
    def largest_ranking(self) -> int:
        """How many images are ordered at most to find the rank of one."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user of a search should know about this state."""

    def plan_filter(
        self, query: Query, must: tuple[int, ...], without: tuple[int, ...]
    ) -> "RowFilter":
        """Return what a query rules out."""

    def find_candidates(self, encoded: "EncodedQuery") -> Found:
        """Return the images that the second stage orders; with scores if a first stage chose them.

        Without scores, the best hits are among them.
        """

    def find_nearest(
        self,
        n: int,
        row_filter: "RowFilter",
        *,
        dense_e: NDArray[np.float32] | None = None,
        terms: "Sequence[ConceptTerm]" = (),
    ) -> Found:
        """Return the n best of all allowed images by the cosine, or by the terms, best first."""

    def find_image(self, path: str) -> Found:
        """Return one image by its path or id; raise `InvalidQuery` if there is none."""

    def count_images(self, row_filter: "RowFilter") -> int:
        """Return how many images a filter allows."""

    def find_best_coverage(self, encoded: "EncodedQuery") -> Coverage:
        """Return the allowed image that matches most of a query; there is at least one."""

    def page_images(self, image_filter: ImageFilter, offset: int, limit: int) -> ImagePage:
        """Return a part of the images that a filter selects, in an order that stays the same."""

    def count_folders(self, row_filter: "RowFilter") -> Mapping[str, int]:
        """Return how many allowed images are in each folder and below it; "" is the root."""

    def find_with_words(self, words: Sequence[int], n: int, at_least: int) -> FoundByWord:
        """Return for each word up to n images that have it in the index, best first.

        If there are fewer than `at_least`, others follow that have it only in their full bags.
        """


class SearchEngine(Protocol):
    """An open collection that can be searched."""

    @property
    def location(self) -> str:
        """Its path or address, for people."""

    @property
    def meta(self) -> Meta:
        """Facts that never change."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary that its bags were made with."""

    @property
    def word_names(self) -> Mapping[int, str]:
        """The names of words."""

    @property
    def own_names(self) -> Mapping[int, str]:
        """Those of them that people gave in this collection."""

    @property
    def vocabulary_names(self) -> PhraseIndex:
        """The names that the vocabulary gives to words, to be found in texts."""

    @property
    def text_tower(self) -> TextTower | None:
        """The model that turns texts into vectors; None if there is none."""

    def find_record(self, path: str) -> ImageRecord | None:
        """Return what is known about an image, by its path or id; None if there is none."""

    def has_changed(self, path: str) -> bool:
        """Return whether an image's file has other content than when it was indexed."""

    def info(self) -> GalleryInfo:
        """Return facts about the collection; what is not known is NaN."""

    def prepare_for(self, n_searches: int) -> None:
        """Prepare for many searches, if that pays."""

    def read(self, function: Callable[[View], T]) -> T:
        """Return a function's value for the newest state."""
