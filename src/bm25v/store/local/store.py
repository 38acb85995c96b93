"""An open gallery in a folder: its catalogue, the names of its words and the newest snapshot."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar, Unpack

from bm25v.errors import GalleryDamaged, GalleryError
from bm25v.files import replacing_folder
from bm25v.images import ImageInput
from bm25v.index.bm25 import Bm25Parameters, Statistics
from bm25v.progress import Progress, no_progress
from bm25v.store.bags import are_bags
from bm25v.store.base import AddOptions, GalleryInfo, IndexReport, resolve_names
from bm25v.store.encoding import check_options
from bm25v.store.files import check_path
from bm25v.store.filters import Called
from bm25v.store.local.catalog import FILE_NAME, Catalog, RowsRenumbered
from bm25v.store.local.database import disk_errors
from bm25v.store.local.indexing import index_images
from bm25v.store.local.names import ImageNames, WordNames, find_name_problems
from bm25v.store.local.rows import RowFiles
from bm25v.store.local.snapshot import Snapshot, map_rows
from bm25v.store.local.writer import Writer, row_checksum
from bm25v.store.meta import Meta, describe_vocabulary
from bm25v.store.records import Calibration
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.bag import LEVELS

_ATTEMPTS = 10  # compactions in a row, until a reader gives up
_ROWS_AT_ONCE = 4_096  # that are checked together

T = TypeVar("T")


class FolderStore:
    """A gallery in a folder, opened for reading; methods that write take its lock."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.abspath(check_path(path)))
        self.catalog = Catalog(self.path / FILE_NAME)
        self.names = WordNames(self.path, self.meta)
        self._image_names = ImageNames(self.path)
        self._snapshot: Snapshot | None = None
        self._mutex = threading.RLock()

    @staticmethod
    def create(path: Path, vocabulary: Vocabulary, parameters: Bm25Parameters) -> None:
        """Make an empty gallery: complete, or not at all."""
        check_new(path)
        meta = describe_vocabulary(vocabulary, parameters)
        with disk_errors(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with replacing_folder(path) as folder:
                    for file in RowFiles.of(folder, meta, generation=0):
                        file.create()
                    Catalog.create(folder / FILE_NAME, meta)
            except FileExistsError as error:
                raise GalleryError(f"{path} was created by another process: open it") from error

    @property
    def location(self) -> str:
        return str(self.path)

    @property
    def meta(self) -> Meta:
        return self.catalog.meta

    @property
    def image_names(self) -> Mapping[str, Called]:
        return self._image_names.by_key

    def name_images(self, name: str, contents: Iterable[bytes], *, add: bool) -> Called:
        """Give a name to images; see `ImageNames.update`."""
        return self._image_names.update(name, contents, add=add)

    def close(self) -> None:
        self.catalog.close()

    def snapshot(self) -> Snapshot:
        """Return the gallery as it is now; files are read only if something was committed."""
        with self._mutex:
            if self._snapshot is None or self._snapshot.version != self.catalog.version():
                previous = self._snapshot
                self._snapshot = self.retry(
                    lambda: Snapshot.load(self.path, self.catalog, previous)
                )
            return self._snapshot

    def read(self, function: Callable[[Snapshot], T], *, searches: int = 1) -> T:
        """Return a function's value for the newest snapshot; the index is built if it pays."""

        def read_newest() -> T:
            snapshot = self.snapshot()
            if searches > 1:
                snapshot.searcher.prepare_for(searches)
            return function(snapshot)

        return self.retry(read_newest)

    def retry(self, function: Callable[[], T]) -> T:
        """Return a function's value; call it again if the gallery was compacted meanwhile.

        Compaction renumbers rows, so a function that looks up rows of an older snapshot in the
        catalogue must start again.
        """
        for _ in range(_ATTEMPTS):
            try:
                return function()
            except RowsRenumbered:
                continue
        raise GalleryError(
            f"{self.path} was compacted {_ATTEMPTS} times while it was read: try again"
        )

    def add(
        self,
        images: list[str] | Iterator[tuple[str, ImageInput]],
        vocabulary: Vocabulary,
        *,
        timeout: float,
        **options: Unpack[AddOptions],
    ) -> IndexReport:
        check_options(images, options)
        with Writer(self.path, timeout=timeout) as writer:
            if vocabulary.source != writer.catalog.meta.vocabulary:
                writer.catalog.set_vocabulary(vocabulary.source)
                writer.n_pending += 1
            return index_images(writer, vocabulary, images, **options)

    def remove(self, paths: Iterable[str], *, recursive: bool, timeout: float) -> int:
        names = list(paths)
        given = self.read(lambda snapshot: resolve_names(snapshot, names))
        with Writer(self.path, timeout=timeout) as writer:
            rows = {
                record.row
                for path in given
                for record in writer.catalog.below(path)
                if recursive or record.path == path
            }
            for row in rows:
                writer.remove(row)
            writer.commit()
        return len(rows)

    def set_calibration(self, calibration: Calibration, *, timeout: float = 0.0) -> None:
        with Writer(self.path, timeout=timeout) as writer:
            writer.catalog.set_calibration(calibration)
            writer.n_pending += 1
            writer.commit()

    def compact(self, *, timeout: float = 0.0, progress: Progress = no_progress) -> int:
        """Free the disk space of removed images; return how many bytes that was."""
        with Writer(self.path, timeout=timeout) as writer:
            return writer.compact(progress)

    def find_problems(self) -> list[str]:
        """Check every row and return what is wrong, one line per problem."""
        return self.retry(lambda: _find_problems(self.path, self.catalog))

    def info(self) -> GalleryInfo:
        snapshot = self.snapshot()
        n = max(snapshot.statistics.n, 1)
        catalog_bytes = sum(p.stat().st_size for p in self.path.glob(f"{FILE_NAME}*"))
        return GalleryInfo.of(
            self.location,
            snapshot,
            removed_rows=snapshot.state.n_rows - snapshot.statistics.n,
            bag_bytes_per_image=snapshot.bags.nbytes / n,
            full_bag_bytes_per_image=snapshot.full_bags.nbytes / n,
            dense_bytes_per_image=snapshot.dense_ne.nbytes / n,
            catalog_bytes_per_image=catalog_bytes / n,
            image_names=len(self.image_names),
        )


def check_new(path: Path) -> None:
    """Raise an error if no gallery can be created at a path, because something else is there."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise GalleryError(f"{path} already exists: choose another path, or open it")


def _find_problems(folder: Path, catalog: Catalog) -> list[str]:
    """Return what is wrong with a gallery, one line per problem; an intact one has none."""
    problems = [f"catalogue: {text}" for text in catalog.problems()]
    problems += find_name_problems(folder, catalog.meta)
    with catalog.transaction():
        state = catalog.state()
        records = list(catalog.records())
        statistics = None
        try:
            statistics = catalog.full_statistics()
        except GalleryDamaged:
            problems.append("catalogue: it has no valid statistics of full bags")
    files = [rows[: state.n_rows] for rows in map_rows(folder, catalog, state)]
    if [record.row for record in records] != list(range(state.n_rows)):
        return [*problems, "catalogue: there are rows that it does not name"]
    n_words = catalog.meta.n_words
    counted = Statistics.empty(n_words)
    for start in range(0, state.n_rows, _ROWS_AT_ONCE):
        block = slice(start, start + _ROWS_AT_ONCE)
        bags, dense, full_bags = (rows[block] for rows in files)
        is_bag = are_bags(bags["words"], bags["tf"], n_words)
        is_full_bag = are_bags(full_bags["words"], full_bags["levels"], n_words)
        for i, record in enumerate(records[block]):
            if row_checksum(bags[i], dense[i], full_bags[i]) != record.checksum:
                problem = "its bytes have changed"
            elif not is_bag[i]:
                problem = "it is not a bag of this vocabulary"
            elif not is_full_bag[i]:
                problem = "it is not a full bag of this vocabulary"
            else:
                continue
            problems.append(f"row {record.row} ({record.path}): {problem}")
        if not problems:
            live = full_bags[[record.live for record in records[block]]]
            counted += Statistics.count(live["words"], LEVELS[live["levels"]], n_words)
    if not problems and statistics is not None:
        difference = counted - statistics
        if difference.n or difference.total_length or difference.df_v.any():
            problems.append("catalogue: its statistics are not those of the full bags")
    return problems
