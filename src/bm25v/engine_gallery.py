"""`EngineGallery`: a collection in another engine, with the methods of `Gallery`.

What needs the extra `[qdrant]` is imported when a collection is opened.
"""

import operator
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from bm25v.errors import InvalidOption
from bm25v.progress import Progress, no_progress
from bm25v.search.query import list_paths
from bm25v.searchable import NamedImages, PathInput, Searchable
from bm25v.store.local.indexing import IndexReport, parse_images

if TYPE_CHECKING:
    from bm25v.store.qdrant.store import QdrantEngine
    from bm25v.store.qdrant.writer import QdrantWriter

_NAMING_SECONDS = 5.0  # to wait for another writer


class EngineGallery(Searchable):
    """A collection in another engine: `EngineGallery.open("qdrant://host:6334/images")`.

    It is searched and explained like a gallery. Needs the extra `[qdrant]`. `bm25v bags load
    --engine` fills it; any number of processes may search while one writes.
    """

    def __init__(self, engine: "QdrantEngine") -> None:
        super().__init__(engine)
        self._engine = engine

    @classmethod
    def open(cls, address: str) -> "EngineGallery":
        """Open a collection by its address."""
        from bm25v.store.qdrant import require_engine

        parsed = require_engine(address)
        from bm25v.store.qdrant.store import QdrantEngine

        return cls(QdrantEngine(parsed))

    def __repr__(self) -> str:
        return f"<EngineGallery {self.engine.location}>"

    def close(self) -> None:
        """Close the connection."""
        self._engine.close()

    def add(
        self,
        images: NamedImages,
        *,
        workers: int | None = None,
        timeout: float = 0.0,
        progress: Progress = no_progress,
    ) -> IndexReport:
        """Add images from memory with ids, or replace those that have these ids.

        Files are indexed into a gallery, which `bm25v bags load --engine` loads. `workers` is the
        number of threads, `timeout` how many seconds to wait for another process that writes.
        """
        from bm25v.store.qdrant.loading import add_images

        named = parse_images(images)
        if isinstance(named, list):
            raise InvalidOption(
                "paths in place of images with ids: index files into a gallery, and load it with "
                "`bm25v bags load --engine`"
            )
        return add_images(
            self._writer(timeout),
            self._engine,
            named,
            total=operator.length_hint(images),
            workers=workers,
            progress=progress,
        )

    def remove(
        self,
        paths: PathInput | Iterable[PathInput],
        *,
        recursive: bool = True,
        timeout: float = 0.0,
    ) -> int:
        """Remove images, by path or id, or all images in a folder; return how many there were.

        If not `recursive`, a path stands for one image and never for a folder.
        """
        with self._writer(timeout) as writer:
            return writer.remove(list_paths(paths), recursive=recursive)

    def name_words(self, names: Mapping[int, str | None]) -> None:
        """Name words, or clear their names with None; if one change is wrong, none is made."""
        with self._writer(_NAMING_SECONDS) as writer:
            writer.name_words(names)
        self._engine.refresh()

    def _writer(self, timeout: float) -> "QdrantWriter":
        from bm25v.store.qdrant.writer import QdrantWriter

        return QdrantWriter(self._engine.calls, timeout=timeout)
