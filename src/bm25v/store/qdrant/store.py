"""A collection in Qdrant, opened for searching; its state is read again when it has changed."""

import math
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bm25v.backbones.text import TextTower, has_text_tower, load_text_tower
from bm25v.errors import EngineError
from bm25v.search.contract import T, View
from bm25v.store.local.file_state import check_path, has_changed
from bm25v.store.local.records import ImageRecord, Meta
from bm25v.store.local.store import GalleryInfo, load_vocabulary
from bm25v.store.qdrant.address import Address
from bm25v.store.qdrant.calls import Calls, connect
from bm25v.store.qdrant.fetched import read_records
from bm25v.store.qdrant.points import point_id
from bm25v.store.qdrant.state import CollectionState, read_revision, read_state
from bm25v.store.qdrant.view import QdrantView
from bm25v.threads import locked_cached_property
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.phrases import PhraseIndex

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
        self.calls.close()

    @property
    def location(self) -> str:
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
        return self._state.meta

    @locked_cached_property
    def vocabulary(self) -> Vocabulary:
        return load_vocabulary(
            self.meta,
            self.address.vocabulary,
            location=self.location,
            remedy="?vocabulary=PATH in the address",
        )

    @property
    def own_names(self) -> Mapping[int, str]:
        return self._state.names

    @property
    def word_names(self) -> Mapping[int, str]:
        """The names that people gave; for other words those of the gallery or the vocabulary."""
        others, own = self._state.other_names, self._state.names
        return {**(self.vocabulary.word_names if others is None else others), **own}

    @locked_cached_property
    def vocabulary_names(self) -> PhraseIndex:
        return PhraseIndex((name, word) for word, name in self.vocabulary.word_names.items())

    @locked_cached_property
    def text_tower(self) -> TextTower | None:
        if not has_text_tower(self.vocabulary.backbone_name):
            return None
        return load_text_tower(self.vocabulary.backbone_name)

    def find_record(self, path: str) -> ImageRecord | None:
        given = check_path(path)
        keys = [point_id(given), point_id(os.path.abspath(given))]
        return next(iter(read_records(self.calls, keys).values()), None)

    def has_changed(self, path: str) -> bool:
        return has_changed(path, self.find_record(path))

    def info(self) -> GalleryInfo:
        """Return facts about the collection; how many bytes it has is known to Qdrant alone."""
        state = self.refresh()
        meta = state.meta
        return GalleryInfo(
            path=self.location,
            n_images=state.statistics.n,
            removed_rows=0,
            vocabulary=meta.vocabulary,
            vocabulary_fingerprint=meta.vocabulary_fingerprint,
            backbone=meta.backbone,
            words=meta.n_words,
            words_in_use=int(np.count_nonzero(state.full_statistics.df_v)),
            average_length=state.statistics.average_length,
            k1=meta.k1,
            b=meta.b,
            bag_bytes_per_image=math.nan,
            full_bag_bytes_per_image=math.nan,
            dense_bytes_per_image=math.nan,
            catalog_bytes_per_image=math.nan,
        )

    def prepare_for(self, n_searches: int) -> None:
        """Use compiled loops from now on if this many searches justify it."""
        self._n_searches += n_searches

    def read(self, function: Callable[[View], T]) -> T:
        with self._mutex:
            self._n_searches += 1
        is_compiled = self._n_searches > _SEARCHES_BEFORE_NUMBA
        return function(QdrantView(self, self.calls, self.refresh(), is_compiled=is_compiled))
