"""An open gallery: its files, its vocabulary, and the snapshot that is read now."""

import os
import threading
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Self

from bm25v.backbones import text
from bm25v.backbones.text import TextTower
from bm25v.errors import UnknownVocabulary, VocabularyMismatch
from bm25v.gallery import catalog as catalogs
from bm25v.gallery.catalog import Catalog
from bm25v.gallery.naming import Names
from bm25v.gallery.snapshot import Snapshot
from bm25v.vocabulary import Vocabulary


class Reader:
    """What searching and writing both need of a gallery."""

    def __init__(self, path: Path, vocabulary: str | os.PathLike[str] | None) -> None:
        self.path = Path(os.path.abspath(path))
        self._catalog = Catalog(self.path / catalogs.FILE_NAME)
        self._vocabulary_source = vocabulary or self._catalog.meta.vocabulary
        self._vocabulary: Vocabulary | None = None
        self.names = Names(self.path, self._catalog.meta)
        self._snapshot: Snapshot | None = None
        self._mutex = threading.RLock()
        if vocabulary is not None:
            try:
                self.vocabulary  # noqa: B018 - refuse a wrong one at once
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Release the files; the gallery cannot be used after."""
        self._catalog.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self._catalog.n_live()

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary its bags were made with, loaded on first use."""
        with self._mutex:
            if self._vocabulary is None:
                loaded = self._load_vocabulary()
                expected = self._catalog.meta.vocabulary_fingerprint
                if loaded.fingerprint != expected:
                    raise VocabularyMismatch(
                        f"{self.path} was made with vocabulary {self._catalog.meta.vocabulary} "
                        f"({expected}), not with {self._vocabulary_source} ({loaded.fingerprint}): "
                        "give that vocabulary, or index the pictures into a new gallery"
                    )
                self._vocabulary = loaded
            return self._vocabulary

    @property
    def word_names(self) -> Mapping[int, str]:
        """What words are called: as people named them here, else as the vocabulary does."""
        return self.names.above(self.vocabulary.word_names)

    @cached_property
    def text_tower(self) -> TextTower | None:
        """What makes vectors of texts, loaded on first use; None if the backbone has no such."""
        if not text.has_text_tower(self.vocabulary.backbone_name):
            return None
        return text.load_text_tower(self.vocabulary.backbone.name)

    def _load_vocabulary(self) -> Vocabulary:
        try:
            return Vocabulary.load(self._vocabulary_source)
        except UnknownVocabulary as error:
            raise UnknownVocabulary(
                f"{self.path}: {error}; if it has moved: bm25v index FOLDER --vocabulary NEW_PLACE"
            ) from error

    def snapshot(self) -> Snapshot:
        """Return the pictures as they are now; read anew only if something was committed."""
        with self._mutex:
            if self._snapshot is None or self._snapshot.version != self._catalog.version():
                self._snapshot = Snapshot.load(self.path, self._catalog, self._snapshot)
            return self._snapshot
