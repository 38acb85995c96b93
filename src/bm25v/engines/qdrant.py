"""A collection in Qdrant, opened for searching.

In: an address, or a client. Out: a `SearchEngine` of `bm25v.search.contract`. The state of the
collection is read again when its revision has changed. Not this module's job: candidates (`view`),
and writing (`writer`).
"""

import math
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bm25v.backbones.text import TextTower, has_text_tower, load_text_tower
from bm25v.engines.address import Address
from bm25v.engines.calls import Calls, connect
from bm25v.engines.points import RECORD, point_id, reading_points, to_record
from bm25v.engines.state import CollectionState, read_revision, read_state
from bm25v.engines.view import QdrantView
from bm25v.errors import EngineError, VocabularyMismatch
from bm25v.gallery.file_state import check_path, has_changed
from bm25v.gallery.records import ImageRecord, Meta
from bm25v.gallery.store import GalleryInfo
from bm25v.search.contract import T, View
from bm25v.threads import locked_cached_property
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.phrases import PhraseIndex
from bm25v.vocabulary.vocabulary import find_shipped

_SEARCHES_BEFORE_NUMBA = 50  # importing numba takes as long as these save


class QdrantEngine:
    """A collection in Qdrant to search; `client` is for tests and for servers in the process."""

    def __init__(self, address: Address, *, client: Any = None) -> None:
        self.address = address
        self.calls = Calls(client or connect(address), address.collection, str(address))
        self._state = read_state(self.calls)
        self._mutex = threading.Lock()
        self._n_searches = 0

    def close(self) -> None:
        """Close the connection."""
        self.calls.close()

    @property
    def location(self) -> str:
        """The address of the collection."""
        return str(self.address)

    def refresh(self) -> CollectionState:
        """Return what is known about the collection, read again if it has changed."""
        if read_revision(self.calls) != self._state.revision:
            state = read_state(self.calls)
            if state.meta != self._state.meta:
                raise EngineError(
                    f"{self.address} was replaced by another collection: open it again"
                )
            self._state = state
        return self._state

    @property
    def meta(self) -> Meta:
        """Facts that never change."""
        return self._state.meta

    @locked_cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary that its bags were made with, loaded on first use."""
        meta = self._state.meta
        source = self.address.vocabulary or meta.vocabulary
        vocabulary = Vocabulary.load(source)
        is_own = self.address.vocabulary is None
        if vocabulary.fingerprint != meta.vocabulary_fingerprint and is_own:
            vocabulary = find_shipped(meta.vocabulary_fingerprint) or vocabulary
        paired = vocabulary.with_dense(meta.second_backbone or None)
        found = (paired.fingerprint, paired.second_fingerprint or "")
        expected = (meta.vocabulary_fingerprint, meta.second_fingerprint)
        if found != expected:
            raise VocabularyMismatch(
                f"{self.address} was made with vocabulary {meta.vocabulary} "
                f"({' '.join(expected).strip()}), not with {source} "
                f"({' '.join(found).strip()}): give its folder as ?vocabulary=PATH in the address"
            )
        return paired

    @property
    def own_names(self) -> Mapping[int, str]:
        """The names that people gave to words, in the gallery or in this collection."""
        return self._state.names

    @property
    def word_names(self) -> Mapping[int, str]:
        """The names that people gave; for other words those of the gallery or the vocabulary."""
        others, own = self._state.other_names, self._state.names
        return {**(self.vocabulary.word_names if others is None else others), **own}

    @locked_cached_property
    def vocabulary_names(self) -> PhraseIndex:
        """The names that the vocabulary gives to words, to be found in texts."""
        return PhraseIndex((name, word) for word, name in self.vocabulary.word_names.items())

    @locked_cached_property
    def text_tower(self) -> TextTower | None:
        """The model that turns texts into vectors, loaded on first use; None if there is none."""
        if not has_text_tower(self.vocabulary.backbone_name):
            return None
        return load_text_tower(self.vocabulary.backbone.name)

    def find_record(self, path: str) -> ImageRecord | None:
        """Return what is known about an image, by its path or id."""
        given = check_path(path)
        keys = [point_id(given), point_id(os.path.abspath(given))]
        records = {r.id: r for r in self.calls.retrieve(keys, RECORD)}
        with reading_points(self.calls.where):
            return next((to_record(records[key].payload) for key in keys if key in records), None)

    def has_changed(self, path: str) -> bool:
        """Return whether an image's file has other content than when it was indexed."""
        return has_changed(path, self.find_record(path))

    def info(self) -> GalleryInfo:
        """Return facts about the collection; how many bytes it has is known to Qdrant alone."""
        state = self.refresh()
        meta, words = state.meta, state.word_statistics
        return GalleryInfo(
            path=self.location,
            n_images=state.statistics.n,
            removed_rows=0,
            vocabulary=meta.vocabulary,
            vocabulary_fingerprint=meta.vocabulary_fingerprint,
            backbone=meta.backbone,
            second_backbone=meta.second_backbone or None,
            words=meta.n_words,
            words_in_use=int(np.count_nonzero(words.df_v)),
            average_length=state.statistics.average_length,
            k1=meta.k1,
            b=meta.b,
            has_full_bags=state.full_bags is not None,
            bag_bytes_per_image=math.nan,
            full_bag_bytes_per_image=math.nan,
            dense_bytes_per_image=math.nan,
            catalog_bytes_per_image=math.nan,
        )

    def prepare_for(self, n_searches: int) -> None:
        """Use compiled loops from now on if this many searches justify it."""
        self._n_searches += n_searches

    def read(self, function: Callable[[View], T]) -> T:
        """Return a function's value for the newest state."""
        with self._mutex:
            self._n_searches += 1
        is_compiled = self._n_searches > _SEARCHES_BEFORE_NUMBA
        return function(QdrantView(self, self.calls, self.refresh(), is_compiled=is_compiled))
