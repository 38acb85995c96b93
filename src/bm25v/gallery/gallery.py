"""The class people use: create or open a gallery, add, remove, search."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from bm25v.errors import GalleryError
from bm25v.gallery import catalog as catalogs
from bm25v.gallery import compaction, indexing, usage, verify
from bm25v.gallery import rows as row_files
from bm25v.gallery.catalog import Catalog, Meta
from bm25v.gallery.duplicates import Group, find
from bm25v.gallery.failures import disk_errors
from bm25v.gallery.reading import is_same_file, read_state
from bm25v.gallery.results import IndexReport, Info
from bm25v.gallery.searches import Searches
from bm25v.gallery.searching import Mode, Settings
from bm25v.gallery.wishes import absolute
from bm25v.gallery.writer import Writer, sync_folder
from bm25v.vocabulary import DEFAULT, Vocabulary
from bm25v.vocabulary import names as tables

__all__ = ["Gallery", "Mode", "Settings"]


class Gallery(Searches):
    """An indexed collection in a folder.

    >>> import tempfile, numpy as np
    >>> from PIL import Image
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name, colour in [("red", (200, 30, 30)), ("blue", (30, 30, 200))]:
    ...     Image.new("RGB", (64, 64), colour).save(folder / f"{name}.png")
    >>> gallery = Gallery.create(folder / "g", vocabulary="toy")
    >>> gallery.add([folder]).added
    2
    >>> hit = gallery.search(np.full((32, 32, 3), (210, 20, 20), dtype=np.uint8))[0]
    >>> Path(hit.path).name, round(hit.sparse - sum(w.contribution for w in hit.words), 9)
    ('red.png', 0.0)
    """

    _listing: usage.Listing | None = None

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], *, vocabulary: str | os.PathLike[str] = DEFAULT
    ) -> "Gallery":
        """Make an empty gallery for the bags of one vocabulary."""
        path = Path(os.path.realpath(path))
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise GalleryError(f"{path} exists already: give a path that is free")
        words = Vocabulary.load(vocabulary)
        meta = Meta(
            vocabulary=words.source,
            vocabulary_fingerprint=words.fingerprint,
            backbone=words.backbone_name,
            n_words=words.n_words,
            k_post=words.k_post,
            dense_dim=words.backbone.dense_dim,
        )
        with disk_errors(path.parent):
            _make_folder(path, meta)
        return cls(path, None)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        vocabulary: str | os.PathLike[str] | None = None,
    ) -> "Gallery":
        """Open a gallery; its vocabulary is found by itself unless it has moved."""
        return cls(Path(path), vocabulary)

    def add(
        self,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        remove_missing: bool = False,
        progress: indexing.Progress = lambda done, total: None,
    ) -> IndexReport:
        """Add new, renew changed and follow moved pictures; folders are walked.

        With `remove_missing`, pictures under these paths whose files are gone are removed.
        """
        with Writer(self.path) as writer:
            if self.vocabulary.source != writer.catalog.meta.vocabulary:
                writer.catalog.set_vocabulary(self.vocabulary.source)
                writer.n_pending += 1
            return indexing.index(
                writer,
                self.vocabulary,
                absolute(paths),
                remove_missing=remove_missing,
                progress=progress,
            )

    def remove(self, paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> int:
        """Remove pictures, or all pictures in a folder; return how many there were."""
        with Writer(self.path) as writer:
            rows = {p.row for path in absolute(paths) for p in writer.catalog.below(path)}
            for row in rows:
                writer.remove(row)
            writer.commit()
        return len(rows)

    def compact(self, *, progress: compaction.Progress = lambda done, total: None) -> int:
        """Give back the space of removed pictures; return how many bytes of rows that was."""
        with Writer(self.path) as writer:
            return compaction.compact(self.path, writer, progress)

    def words(self, *, best: int = 3) -> list[usage.WordFacts]:
        """Return the words in use, by number, each with the pictures that have most of it."""
        snapshot, names, kept = self.snapshot(), self.word_names, self._listing
        is_same = kept is not None and kept.snapshot is snapshot and kept.names is names
        if kept is None or not is_same or kept.best != best:
            found = usage.listed(snapshot, self._catalog, names, best=best)
            if found is None:  # compacted meanwhile
                return self.words(best=best)
            self._listing = kept = usage.Listing(snapshot, names, best, found)
        return list(kept.words)

    def uses(self, word: int) -> usage.WordUses:
        """Return all that the gallery knows of one word."""
        tables.check_word(word, self._catalog.meta.n_words)
        found = usage.of_word(self.snapshot(), self._catalog, self.word_names, word)
        return self.uses(word) if found is None else found

    def duplicates(
        self, *, near: bool = True, progress: compaction.Progress = lambda done, total: None
    ) -> list[Group]:
        """Return groups of the same and, with `near`, of nearly the same pictures."""
        found = find(self.snapshot(), self._catalog, near=near, progress=progress)
        return self.duplicates(near=near, progress=progress) if found is None else found

    def info(self) -> Info:
        """Return the gallery's facts."""
        meta = self._catalog.meta
        snapshot = self.snapshot()
        statistics = snapshot.searcher.statistics
        n = max(statistics.n, 1)
        catalog = sum(p.stat().st_size for p in self.path.glob(f"{catalogs.FILE_NAME}*"))
        return Info(
            path=str(self.path.absolute()),
            pictures=statistics.n,
            removed_rows=snapshot.state.n_rows - statistics.n,
            vocabulary=meta.vocabulary,
            vocabulary_fingerprint=meta.vocabulary_fingerprint,
            backbone=meta.backbone,
            words=meta.n_words,
            words_in_use=int(np.count_nonzero(statistics.df_v)),
            average_length=statistics.average_length,
            bag_bytes_per_picture=snapshot.bags.nbytes / n,
            dense_bytes_per_picture=snapshot.dense_ne.nbytes / n,
            catalog_bytes_per_picture=catalog / n,
        )

    def has_changed(self, path: str) -> bool:
        """Say whether the file of an indexed image has another content than when it was indexed.

        As for indexing, the same size and time mean the same content. A file that cannot be read
        raises `ImageError`.
        """
        record = self._catalog.at_path(path)
        if record is None or is_same_file(path, record.size, record.mtime_ns):
            return False
        return read_state(path).content != record.content

    def problems(self) -> list[str]:
        """Check every row and return what is wrong, a line each."""
        return verify.problems(self.path, self._catalog)


def _make_folder(path: Path, meta: Meta) -> None:
    """Make the files elsewhere and rename them into place: a gallery is whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as scratch:
        whole = Path(scratch) / "gallery"
        whole.mkdir()
        row_files.bag_file(whole, meta, 0).create()
        row_files.dense_file(whole, meta, 0).create()
        Catalog.create(whole / catalogs.FILE_NAME, meta)
        sync_folder(whole)
        try:
            if path.exists():
                path.rmdir()
            whole.rename(path)
        except OSError as error:
            raise GalleryError(f"{path} was made meanwhile by somebody else") from error
        sync_folder(path.parent)
