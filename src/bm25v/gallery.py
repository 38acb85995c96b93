"""`Gallery`, the class that people use; it composes storage, search, words and duplicates."""

import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from bm25v.duplicates import DuplicateGroup, find_duplicates
from bm25v.errors import InvalidOption
from bm25v.exchange.galleries import create_gallery, export_bags, load_bags
from bm25v.exchange.parquet import BagFolder
from bm25v.explain.word_statistics import WordList, WordOrder, WordStatistics, WordUse
from bm25v.index.bm25 import Bm25Parameters
from bm25v.index.searcher import Ranked, Searcher, SearchRequest
from bm25v.progress import Progress, no_progress
from bm25v.search import embedded
from bm25v.search.calibration import calibrate, has_changed, needs_calibration
from bm25v.search.embedded import EmbeddedEngine, search_together
from bm25v.search.query import Query, QueryImage, QueryOptions, list_paths
from bm25v.search.results import Results
from bm25v.search.word_naming import name_by_concepts
from bm25v.searchable import NamedImages, PathInput, Searchable, as_queries
from bm25v.store.local.catalog_schema import FILE_NAME
from bm25v.store.local.file_state import check_path
from bm25v.store.local.indexing import IndexReport, index_files, index_images, parse_images
from bm25v.store.local.selection import GalleryImage, ImageFilter, Period, Size, to_gallery_image
from bm25v.store.local.store import GalleryStore
from bm25v.store.local.verify import find_problems
from bm25v.store.local.writer import Writer
from bm25v.vocabulary import DEFAULT, Vocabulary

if TYPE_CHECKING:
    from bm25v.device import DeviceSearcher


class Gallery(Searchable):
    """An indexed collection in a folder.

    Any number of threads and processes may search it while one process writes to it.

    >>> import tempfile, numpy as np
    >>> from PIL import Image
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name, colour in [("red", (200, 30, 30)), ("blue", (30, 30, 200))]:
    ...     Image.new("RGB", (64, 64), colour).save(folder / f"{name}.png")
    >>> gallery = Gallery.create(folder / "g", vocabulary="toy")
    >>> gallery.add(folder).added
    2
    >>> hit = gallery.search(np.full((32, 32, 3), (210, 20, 20), dtype=np.uint8))[0]
    >>> Path(hit.path).name, abs(hit.score - sum(part.value for part in hit.parts)) < 1e-5
    ('red.png', True)
    """

    def __init__(self, store: GalleryStore) -> None:
        super().__init__(EmbeddedEngine(store))
        self.store = store
        self._word_statistics = WordStatistics(store)
        self._devices: dict[str, DeviceSearcher] = {}

    @classmethod
    def create(
        cls,
        path: PathInput,
        *,
        vocabulary: PathInput = DEFAULT,
        dense: str | None = None,
        k1: float = Bm25Parameters.k1,
        b: float = Bm25Parameters.b,
    ) -> "Gallery":
        """Make an empty gallery for the bags of one vocabulary; k1 and b are those of BM25.

        `dense` is a second, built-in backbone: dense vectors are then those of both.

        >>> import tempfile
        >>> gallery = Gallery.create(tempfile.mkdtemp(), vocabulary="toy", k1=2)
        >>> gallery.info().k1, gallery.info().b
        (2.0, 0.75)
        """
        folder = Path(os.path.realpath(check_path(path)))
        parameters = Bm25Parameters(k1=k1, b=b)
        GalleryStore.create(folder, Vocabulary.load(vocabulary).with_dense(dense), parameters)
        return cls(GalleryStore(folder))

    @classmethod
    def open(cls, path: PathInput, *, vocabulary: PathInput | None = None) -> "Gallery":
        """Open a gallery. Give its vocabulary only if that has moved to another path."""
        return cls(GalleryStore(path, vocabulary))

    @classmethod
    def open_or_create(
        cls,
        path: PathInput,
        *,
        vocabulary: PathInput | None = None,
        dense: str | None = None,
        **parameters: float,
    ) -> "Gallery":
        """Open a gallery, or create it if there is none; `parameters` are those of `create`."""
        if Path(check_path(path), FILE_NAME).is_file():
            return cls(GalleryStore(path, vocabulary, dense))
        return cls.create(
            path,
            vocabulary=DEFAULT if vocabulary is None else vocabulary,
            dense=dense,
            **parameters,
        )

    def close(self) -> None:
        """Release the files; the gallery cannot be used afterwards."""
        self.store.close()

    def __len__(self) -> int:
        return self.store.catalog.n_live()

    def __contains__(self, image: PathInput) -> bool:
        return self.store.catalog.at_path(self.store.resolve_path(image)) is not None

    def __iter__(self) -> Iterator[GalleryImage]:
        return self.images()

    def __repr__(self) -> str:
        return f"<Gallery {self.path}>"

    @property
    def path(self) -> Path:
        """The gallery's folder."""
        return self.store.path

    def images(
        self,
        *,
        folder: PathInput | Iterable[PathInput] | None = None,
        date: Period | None = None,
        min_size: Size | None = None,
        max_size: Size | None = None,
    ) -> Iterator[GalleryImage]:
        """Return the images with their dates and sizes; the filters are those of `Query`.

        >>> import tempfile, numpy as np
        >>> gallery = Gallery.create(tempfile.mkdtemp(), vocabulary="toy")
        >>> gallery.add({"red": np.full((40, 60, 3), (200, 30, 30), dtype=np.uint8)}).added
        1
        >>> [(image.path, image.width, image.height) for image in gallery.images(min_size=40)]
        [('red', 60, 40)]
        """
        images = ImageFilter.of(folder=folder, date=date, min_size=min_size, max_size=max_size)
        return map(to_gallery_image, self.store.list_images(images))

    def add(
        self,
        images: PathInput | Iterable[PathInput] | NamedImages,
        *,
        exclude: str | Iterable[str] = (),
        remove_missing: bool = False,
        workers: int | None = None,
        timeout: float = 0.0,
        progress: Progress = no_progress,
    ) -> IndexReport:
        """Add new, update changed and follow moved images; folders are searched for images.

        Images from memory come with ids, as a mapping or as pairs: `add({"cat-7": image})`. An id
        is any text that is not an absolute path; it stands in place of the path in all results.

        What matches a pattern of `exclude` is left out: a name (`"raw"`, `"*.png"`), or a path from
        the folder on (`"2023/raw"`). With `remove_missing`, images under these paths whose files no
        longer exist or are excluded are removed.
        `workers` is the number of threads. `timeout` is how many seconds to wait for another
        process that writes to this gallery.
        """
        exclude = (exclude,) if isinstance(exclude, str) else tuple(exclude)
        parsed = parse_images(images)
        if not isinstance(parsed, list) and (exclude or remove_missing):
            raise InvalidOption(
                "exclude and remove_missing are for files, not for images from memory"
            )
        with Writer(self.path, timeout=timeout) as writer:
            if self.vocabulary.source != writer.catalog.meta.vocabulary:
                writer.catalog.set_vocabulary(self.vocabulary.source)
                writer.n_pending += 1
            if isinstance(parsed, list):
                report = index_files(
                    writer,
                    self.vocabulary,
                    parsed,
                    exclude=exclude,
                    remove_missing=remove_missing,
                    workers=workers,
                    progress=progress,
                )
            else:
                report = index_images(
                    writer,
                    self.vocabulary,
                    parsed,
                    total=operator.length_hint(images),
                    workers=workers,
                    progress=progress,
                )
            self._renew_names()
            self._calibrate(writer)
        return report

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
        known_paths = [self.store.resolve_path(path) for path in list_paths(paths)]
        with Writer(self.path, timeout=timeout) as writer:
            records = [
                record
                for path in known_paths
                for record in writer.catalog.below(path)
                if recursive or record.path == path
            ]
            rows = {record.row for record in records}
            for row in rows:
                writer.remove(row)
            writer.commit()
            self._calibrate(writer)
        return len(rows)

    def _renew_names(self) -> None:
        """If the gallery has changed much since `_calibrate`, renew what its images confirm."""
        snapshot, names = self.store.snapshot(), self.store.names
        if has_changed(snapshot) or not names.has_automatic:
            names.replace_automatic(*name_by_concepts(self.vocabulary, snapshot))

    def _calibrate(self, writer: Writer) -> None:
        """If the gallery has changed much, renew what a weak and a strong hit is."""
        snapshot = self.store.snapshot()
        if needs_calibration(snapshot):
            writer.catalog.set_calibration(calibrate(self.store, snapshot))
            writer.n_pending += 1
            writer.commit()

    def compact(self, *, timeout: float = 0.0, progress: Progress = no_progress) -> int:
        """Free the disk space of removed images; return how many bytes that was."""
        with Writer(self.path, timeout=timeout) as writer:
            return writer.compact(progress)

    @classmethod
    def create_for_bags(
        cls, path: PathInput, folder: PathInput, *, vocabulary: PathInput | None = None
    ) -> "Gallery":
        """Make an empty gallery for a folder of bags, with the vocabulary, k1 and b of those.

        Give the vocabulary if it is not where the folder says.
        """
        gallery_path = Path(os.path.realpath(check_path(path)))
        create_gallery(gallery_path, BagFolder(folder), vocabulary)
        return cls(GalleryStore(gallery_path))

    def load_bags(
        self, folder: PathInput, *, timeout: float = 0.0, progress: Progress = no_progress
    ) -> IndexReport:
        """Add the images of a folder of bags, as if their files were indexed; nothing is encoded.

        >>> import tempfile, numpy as np
        >>> folder = Path(tempfile.mkdtemp())
        >>> gallery = Gallery.create(folder / "g", vocabulary="toy")
        >>> gallery.add({"red": np.full((40, 60, 3), (200, 30, 30), dtype=np.uint8)}).added
        1
        >>> gallery.export_bags(folder / "bags")
        1
        >>> other = Gallery.create_for_bags(folder / "other", folder / "bags")
        >>> other.load_bags(folder / "bags").added, other.load_bags(folder / "bags").unchanged
        (1, 1)
        """
        bags = BagFolder(folder)
        with Writer(self.path, timeout=timeout) as writer:
            report = load_bags(writer, self.path, bags, progress)
            self._renew_names()
            self._calibrate(writer)
        return report

    def export_bags(self, folder: PathInput, *, progress: Progress = no_progress) -> int:
        """Write all images with their bags and dense vectors to a new folder; return how many."""
        return export_bags(self.store, Path(check_path(folder)), progress)

    def search_many(
        self,
        queries: Iterable[Query | QueryImage],
        *,
        device: str | None = None,
        **options: Unpack[QueryOptions],
    ) -> list[Results]:
        """Search with many images or queries on all CPUs; each result is that of `search`.

        The options are those of the images; a `Query` has its own. With a `device` of torch, such
        as "cuda", candidates are found there, for many queries at once; the hits are the same.
        """
        if device is None:
            return super().search_many(queries, **options)
        checked = as_queries(queries, options)
        results = search_together(EmbeddedEngine(self.store), checked, self._find_on(device))
        return self._let_explain_all(checked, results)

    def _find_on(self, device: str) -> embedded.FindMany:
        from bm25v.device import DeviceSearcher

        def find(searcher: Searcher, requests: Sequence[SearchRequest]) -> list[Ranked]:
            on_device = self._devices.get(device)
            if on_device is None or on_device.searcher is not searcher:
                self._devices.pop(device, None)  # free the memory of the device first
                on_device = self._devices[device] = DeviceSearcher(searcher, device)
            return on_device.search_many(requests)

        return find

    def words(
        self,
        *,
        best: int = 3,
        sort: WordOrder = "word",
        offset: int = 0,
        limit: int | None = None,
    ) -> WordList:
        """Return the words in use, or some of them, each with the images where it is strongest.

        They are in the order of their numbers, or of how many images have them: `sort` is "df" for
        most images first, "idf" for fewest.
        """
        words = self._word_statistics.all_words(best=best, sort=sort)
        return words[offset : None if limit is None else offset + limit]

    def word(self, word: int) -> WordUse:
        """Return everything that the gallery knows about one word."""
        return self._word_statistics.word(word)

    def name_words(self, names: Mapping[int, str | None]) -> None:
        """Name words, or clear their names with None; if one change is wrong, none is made."""
        self.store.names.update(names)

    def duplicates(
        self, *, near: bool = True, progress: Progress = no_progress
    ) -> list[DuplicateGroup]:
        """Return groups of the same and, with `near`, nearly the same images."""
        return find_duplicates(self.store, near=near, progress=progress)

    def problems(self) -> list[str]:
        """Check every row and return what is wrong, one line per problem."""
        return self.store.retry(lambda: find_problems(self.path, self.store.catalog))
