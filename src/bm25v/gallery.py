"""`Gallery`, the class that people use: a collection in a folder, or in Qdrant."""

import logging
import operator
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar, Unpack

from bm25v.display import count
from bm25v.errors import InvalidOption
from bm25v.images import ImageInput, NamedImages
from bm25v.index.bm25 import Bm25Parameters
from bm25v.progress import Progress, no_progress
from bm25v.search.calibrate import calibrate, is_outdated, needs_calibration
from bm25v.search.encode import EncodedQuery, encode, load_models
from bm25v.search.matching import Matcher, explain_no_match
from bm25v.search.naming import GroupedWords, confirm_names, group_words, list_topics
from bm25v.search.query import Query, QueryImage, QueryOptions, as_query, list_paths
from bm25v.search.query_images import encode_batch, require_records
from bm25v.search.rank import rank
from bm25v.search.results import Match, Results
from bm25v.search.text import NamedVocabulary
from bm25v.store.base import Candidates, Filter, GalleryInfo, IndexReport, Store, View
from bm25v.store.encoding import parse_images
from bm25v.store.files import check_path
from bm25v.store.filters import Called, ImageFilter, Period, Size
from bm25v.store.local.catalog import FILE_NAME
from bm25v.store.local.snapshot import Snapshot
from bm25v.store.local.store import FolderStore
from bm25v.store.meta import load_vocabulary
from bm25v.store.records import Calibration, GalleryImage, to_gallery_image
from bm25v.threads import available_cpus, locked_cached_property
from bm25v.vocabulary import DEFAULT, Encoding, Vocabulary

if TYPE_CHECKING:
    from bm25v.device import DeviceSearcher
    from bm25v.duplicates import DuplicateGroup
    from bm25v.explain.explanation import ExplainedHits, Explanation
    from bm25v.explain.words import WordList, WordOrder, WordUse

PathInput = str | os.PathLike[str]
_log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")


class Gallery:
    """An indexed collection: a folder, or a collection in Qdrant (`qdrant://host:6334/images`).

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

    def __init__(self, store: Store, vocabulary: PathInput | None = None) -> None:
        self.store = store
        self._vocabulary_source = vocabulary  # None: where the store says
        self._calibration: Calibration | None = None  # of a folder that has none, or an old one
        self._calibrating = threading.Lock()
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
        FolderStore.create(folder, Vocabulary.load(vocabulary).with_dense(dense), parameters)
        return cls(FolderStore(folder))

    @classmethod
    def open(cls, path: PathInput, *, vocabulary: PathInput | None = None) -> "Gallery":
        """Open a gallery by its folder, or a collection in Qdrant by its address.

        Give its vocabulary only if that has moved to another path. A collection in Qdrant needs the
        extra `[qdrant]`; `qdrant://:memory:/name` is one in this process, for trying.
        """
        if is_address(path):
            from bm25v.store.qdrant import open_store

            store, moved_to = open_store(os.fspath(path))
            return cls(store, vocabulary or moved_to)
        gallery = cls(FolderStore(path), vocabulary)
        if vocabulary is not None:
            try:
                gallery.vocabulary  # noqa: B018 - raises an error for a wrong one
            except BaseException:
                gallery.close()
                raise
        return gallery

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
        if not Path(check_path(path), FILE_NAME).is_file():
            chosen = DEFAULT if vocabulary is None else vocabulary
            return cls.create(path, vocabulary=chosen, dense=dense, **parameters)
        gallery = cls.open(path, vocabulary=vocabulary)
        backbone = gallery.store.meta.backbone
        if dense is not None and not backbone.endswith(f"+{dense}"):
            gallery.close()
            raise InvalidOption(
                f"{gallery.location} has dense vectors of {backbone}, not of {dense}: a second "
                "backbone is chosen when a gallery is created; index the images into a new one"
            )
        return gallery

    def close(self) -> None:
        """Release what is open; the gallery cannot be used afterwards."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.store.read(lambda view: int(view.statistics.n))

    def __contains__(self, image: PathInput) -> bool:
        path = check_path(image)
        return self.store.read(lambda view: bool(view.find([path])))

    def __iter__(self) -> Iterator[GalleryImage]:
        return self.images()

    def __repr__(self) -> str:
        return f"<Gallery {self.location}>"

    @property
    def location(self) -> str:
        """The path of its folder, or its address."""
        return self.store.location

    @property
    def local(self) -> FolderStore:
        """The store of a gallery in a folder; a collection in Qdrant has none."""
        if not isinstance(self.store, FolderStore):
            raise InvalidOption(f"{self.location} is not a folder: this needs a gallery in one")
        return self.store

    @property
    def path(self) -> Path:
        """The gallery's folder."""
        return self.local.path

    @locked_cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary that its bags were made with, loaded on first use."""
        remedy = "?vocabulary=PATH in the address" if is_address(self.location) else None
        return load_vocabulary(
            self.store.meta,
            self._vocabulary_source,
            location=self.location,
            remedy=remedy or "--vocabulary PATH",
        )

    @property
    def word_names(self) -> Mapping[int, str]:
        """The names of words: those given in this collection, else those of the vocabulary."""
        return self.store.names.merge(self.vocabulary.word_names)

    def info(self) -> GalleryInfo:
        """Return facts about the collection."""
        return self.store.info()

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
        records = self.store.read(lambda view: view.page(images, 0, view.statistics.n))
        return map(to_gallery_image, records)

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
        A collection in Qdrant takes images from memory only: index files into a folder, and load
        that with `bm25v bags load --engine`.

        What matches a pattern of `exclude` is left out: a name (`"raw"`, `"*.png"`), or a path from
        the folder on (`"2023/raw"`). With `remove_missing`, images under these paths whose files no
        longer exist or are excluded are removed.
        `workers` is the number of threads. `timeout` is how many seconds to wait for another
        process that writes to this gallery.
        """
        return self.store.add(
            parse_images(images),
            self.vocabulary,
            total=operator.length_hint(images),
            exclude=(exclude,) if isinstance(exclude, str) else tuple(exclude),
            remove_missing=remove_missing,
            workers=workers,
            timeout=timeout,
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
        return self.store.remove(list_paths(paths), recursive=recursive, timeout=timeout)

    def refresh(self, *, timeout: float = 0.0) -> None:
        """Renew what depends on all images, if many have changed: names, and what is a strong hit.

        `bm25v index` does so after `add`. Otherwise words have the names of the vocabulary, and the
        first search finds out what is a strong hit, for this process.
        """
        snapshot, names = self.local.snapshot(), self.local.names
        if is_outdated(snapshot.calibration, snapshot) or not names.has_automatic:
            names.replace_automatic(*confirm_names(self.vocabulary, snapshot))
        calibration = self.local.read(
            lambda newest: calibrate(newest) if needs_calibration(newest) else None
        )
        if calibration is not None:
            self.local.set_calibration(calibration, timeout=timeout)

    def search(
        self,
        query: Query | QueryImage | Iterable[QueryImage] | None = None,
        **options: Unpack[QueryOptions],
    ) -> Results:
        """Return the images most similar to an image, or to several; `Query` has all options.

        >>> import tempfile
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> for colour in ("red", "blue"):
        ...     Image.new("RGB", (64, 64), colour).save(folder / f"{colour}.png")
        >>> gallery = Gallery.create(folder / "g", vocabulary="toy")
        >>> gallery.add(folder).added
        2
        >>> red = gallery.search(folder / "red.png", region=(0, 0, 0.5, 1), include_query=True)
        >>> word = red[0].words[0].word
        >>> [Path(hit.path).name for hit in gallery.search(must=word)]
        ['red.png']
        >>> gallery.search(folder / "red.png", without=word, mode="words").no_match
        '0 of 7 words shared with any image that does not have word 163'
        """
        return self._search(as_query(query, options))

    def _search(self, query: Query, encodings: Sequence[Encoding] | None = None) -> Results:
        start = time.perf_counter()
        load_models(query, self.vocabulary)

        def search_view(view: View) -> Results:
            load_ms, named = _ms_since(start), self._named_vocabulary
            start_encoding = time.perf_counter()
            encoded = encode(query, view, named, encodings)
            ms = {"load": load_ms, "encode": _ms_since(start_encoding)}
            start_finding = time.perf_counter()
            images = view.candidates(encoded)
            ms["sparse"] = _ms_since(start_finding)
            return self._rank(query, encoded, images, view, named, ms)

        return self.store.read(search_view)

    def _rank(
        self,
        query: Query,
        encoded: EncodedQuery,
        images: Candidates,
        view: View,
        named: NamedVocabulary,
        ms: dict[str, float],
    ) -> Results:
        """Return the results of a query whose candidates are known."""
        ranked = rank(encoded, images, view)
        calibration = self._find_calibration(encoded, view) if len(ranked.rows) else None
        matcher = Matcher(encoded, view, named.names, calibration)
        search = _Search(self, query, encoded)
        hits = matcher.make_hits(ranked, search)
        return Results(
            mode=encoded.mode,
            hits=hits,
            ms=ms | {"rerank": ranked.ms},
            query=matcher.query_words(),
            no_match=None if hits else explain_no_match(encoded, view, named.names),
            notes=(*matcher.notes(), *self._suggest_topics(encoded, view)),
            sparse_factor=matcher.sparse_factor if encoded.scoring.is_sum else None,
            candidates=ranked.n_candidates,
            understood=encoded.understood,
            not_understood=encoded.not_understood,
            _search=search,
        )

    def _suggest_topics(self, encoded: EncodedQuery, view: View) -> list[str]:
        """Return a note with what can be searched for, if nothing of a text is understood."""
        if encoded.understood or not encoded.not_understood:
            return []
        topics = [topic.name for topic in list_topics(self.vocabulary, view, 8)]
        return [f"images here show, for example: {', '.join(topics)}"] if topics else []

    @property
    def _named_vocabulary(self) -> NamedVocabulary:
        """The vocabulary with the names of its words in this collection."""
        own, image_names = self.store.names.own, self.store.image_names
        return NamedVocabulary(self.vocabulary, self.word_names, own, image_names)

    def _find_calibration(self, encoded: EncodedQuery, view: View) -> Calibration | None:
        """Return what a strong hit is; it is computed if a folder has none, or an old one."""
        if not encoded.is_plain or not isinstance(view, Snapshot):
            return view.calibration
        with self._calibrating:
            if not needs_calibration(view):
                return view.calibration
            if is_outdated(self._calibration, view):
                self._calibration = calibrate(view)
            return self._calibration

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
        checked = [q if isinstance(q, Query) else Query.of(q, **options) for q in queries]
        if not checked:
            return []
        size = self.vocabulary.backbone.batch_size

        def encode_chunk(chunk: Sequence[Query]) -> list[Sequence[Encoding] | None]:
            return self.store.read(lambda view: encode_batch(chunk, self.vocabulary, view))

        def search_chunk(chunk: Sequence[Query]) -> list[Results]:
            return [self._search(*pair) for pair in zip(chunk, encode_chunk(chunk), strict=True)]

        if device is None:
            self.store.read(lambda view: None, searches=len(checked))
            return _in_threads(search_chunk, checked, size)
        start = time.perf_counter()
        encodings = _in_threads(encode_chunk, checked, size)
        return self.local.read(
            lambda view: self._search_on(device, view, checked, encodings, start)
        )

    def _search_on(
        self,
        device: str,
        view: Snapshot,
        queries: Sequence[Query],
        encodings: Sequence[Sequence[Encoding] | None],
        start: float,
    ) -> list[Results]:
        """Search with many queries, whose candidates a device finds together."""
        from bm25v.device import DeviceSearcher

        named = self._named_vocabulary
        encoded = _in_threads(
            lambda pairs: [encode(query, view, named, given) for query, given in pairs],
            list(zip(queries, encodings, strict=True)),
        )
        encode_ms, start_finding = _ms_since(start), time.perf_counter()
        searcher = self._devices.get(device)
        if searcher is None or searcher.searcher is not view.searcher:
            self._devices.pop(device, None)  # free the memory of the device first
            searcher = self._devices[device] = DeviceSearcher(view.searcher, device)
        images = searcher.find_candidates(view, encoded)
        ms = {"encode": encode_ms, "sparse": _ms_since(start_finding)}
        ms = {stage: value / len(queries) for stage, value in ms.items()}
        return _in_threads(
            lambda parts: [self._rank(*part, view, named, ms) for part in parts],
            list(zip(queries, encoded, images, strict=True)),
        )

    def match(
        self,
        query: Query | QueryImage | Iterable[QueryImage] | None,
        path: PathInput,
        **options: Unpack[QueryOptions],
    ) -> Match:
        """Return how one image compares with a query."""
        checked, known_path = as_query(query, options), check_path(path)

        def match_view(view: View) -> Match:
            encoded = encode(checked, view, self._named_vocabulary)
            calibration = self._find_calibration(encoded, view)
            matcher = Matcher(encoded, view, self.word_names, calibration)
            images = view.fetch(require_records(view.find([known_path]), [known_path]))
            (match,) = matcher.match(images, images.rows)
            return match

        return self.store.read(match_view)

    def explain(
        self,
        query: Query | QueryImage | Iterable[QueryImage] | None,
        hit: PathInput,
        *,
        encoding: Encoding | None = None,
        image: ImageInput | None = None,
        **options: Unpack[QueryOptions],
    ) -> "Explanation":
        """Return why an image matches a query: which words, and where.

        `encoding` saves encoding the query's image again. `image` is that of the hit, if it was
        added from memory, or if its file is not here any more.
        """
        from bm25v.explain.explanation import explain_hits

        checked, hits = as_query(query, options), [check_path(hit)]
        if encoding is not None and len(checked.images) != 1:
            n = len(checked.images)
            raise InvalidOption(f"encoding= needs a query with exactly one image, got {n}")
        encodings = None if encoding is None else [encoding]
        explained = explain_hits(self, checked, hits, encodings=encodings, image=image)
        return explained.explanations[0]

    def words(
        self,
        *,
        best: int = 3,
        sort: "WordOrder" = "word",
        offset: int = 0,
        limit: int | None = None,
    ) -> "WordList":
        """Return the words in use, or some of them, each with the images where it is strongest.

        They are in the order of their numbers, or of how many images have them: `sort` is "df" for
        most images first, "idf" for fewest, "name" for named words first.
        """
        from bm25v.explain.words import WordList, describe_words, order_words

        def read(view: View) -> WordList:
            names = self.word_names
            words = order_words(view, names, sort)[offset:][:limit]
            return WordList(describe_words(view, names, words, best))

        return self.store.read(read)

    def word(self, word: int) -> "WordUse":
        """Return everything that is known about one word."""
        from bm25v.explain.words import describe_word

        return self.store.read(lambda view: describe_word(view, self.word_names, word))

    def name_words(self, names: Mapping[int, str | None]) -> None:
        """Name words, or clear their names with None; if one change is wrong, none is made."""
        self.store.names.update(names)

    @property
    def image_names(self) -> dict[str, int]:
        """The names that people gave to images, each with how many images have it."""
        names = self.store.image_names.values()
        return self.store.read(lambda view: {c.name: _count_called(view, c) for c in names})

    def name_images(
        self, name: str, images: PathInput | Iterable[PathInput], *, add: bool = False
    ) -> int:
        """Give images a name, which texts find; return how many images have it then.

        They have it instead of those before, or with `add` beside them; without images, the name is
        removed. Copies of a file have its names, too.

        >>> import tempfile, numpy as np
        >>> gallery = Gallery.create(tempfile.mkdtemp(), vocabulary="toy")
        >>> red, blue = (np.full((40, 60, 3), c, np.uint8) for c in [(200, 30, 30), (30, 30, 200)])
        >>> gallery.add({"red": red, "blue": blue}).added
        2
        >>> gallery.name_images("Anna's birthday", ["blue"])
        1
        >>> [hit.path for hit in gallery.search(text="anna's birthday")]
        ['blue']
        """
        store, paths = self.local, list_paths(images)

        def find(view: View) -> list[bytes]:
            records = require_records(view.find(paths), paths)
            return [record.content for record in records]

        called = store.name_images(name, store.read(find), add=add)
        return store.read(lambda view: _count_called(view, called))

    def duplicates(
        self, *, near: bool = True, progress: Progress = no_progress
    ) -> "list[DuplicateGroup]":
        """Return groups of the same and, with `near`, nearly the same images.

        Images whose files are missing or have changed are left out, with a warning in the log.
        """
        from bm25v.duplicates import find_duplicates

        groups, n_left_out = find_duplicates(self.local, near=near, progress=progress)
        if n_left_out:
            _log.warning(
                "left out %s whose files are missing or have changed: "
                "index them again, or remove them",
                count(n_left_out, "image"),
            )
        return groups

    def compact(self, *, timeout: float = 0.0, progress: Progress = no_progress) -> int:
        """Free the disk space of removed images; return how many bytes that was."""
        return self.local.compact(timeout=timeout, progress=progress)

    def problems(self) -> list[str]:
        """Check every row and return what is wrong, one line per problem."""
        return self.local.find_problems()

    @classmethod
    def create_for_bags(
        cls, path: PathInput, folder: PathInput, *, vocabulary: PathInput | None = None
    ) -> "Gallery":
        """Make an empty gallery for a folder of bags, with the vocabulary, k1 and b of those.

        Give the vocabulary if it is not where the folder says.
        """
        from bm25v.exchange.galleries import create_gallery
        from bm25v.exchange.parquet import BagFolder

        gallery_path = Path(os.path.realpath(check_path(path)))
        create_gallery(gallery_path, BagFolder(folder), vocabulary)
        return cls(FolderStore(gallery_path))

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
        from bm25v.exchange.galleries import load_bags
        from bm25v.exchange.parquet import BagFolder

        return load_bags(self.local, BagFolder(folder), timeout=timeout, progress=progress)

    def export_bags(self, folder: PathInput, *, progress: Progress = no_progress) -> int:
        """Write all images with their bags and dense vectors to a new folder; return how many."""
        from bm25v.exchange.galleries import export_bags

        return export_bags(self.local, Path(check_path(folder)), progress)


class _Search(NamedTuple):
    """A search of an open gallery; see `results.OpenSearch`."""

    gallery: Gallery
    query: Query
    encoded: EncodedQuery

    def explain_hits(
        self,
        hits: Sequence[str],
        *,
        image: ImageInput | None = None,
        progress: Progress = no_progress,
    ) -> "ExplainedHits":
        from bm25v.explain.explanation import explain_hits

        of_search = (self.gallery, self.query, hits, self.encoded)
        return explain_hits(*of_search, image=image, progress=progress)

    def group_words(self, results: Results) -> GroupedWords:
        given = {str(name) for name in (*self.query.must, *self.query.boost)}
        return group_words(results, self.gallery._named_vocabulary, self.encoded.dense_e, given)


def _count_called(view: View, called: Called) -> int:
    return view.count(Filter(ImageFilter(called=(called,))))


def is_address(path: PathInput) -> bool:
    """Return whether a gallery is named by an address, such as that of a collection in Qdrant."""
    return isinstance(path, str) and "://" in path


def _in_threads(
    function: Callable[[Sequence[T]], Sequence[R]], values: Sequence[T], size: int = 1
) -> list[R]:
    """Apply a function to parts of some values on all CPUs; return its results in their order."""
    parts = [values[start : start + size] for start in range(0, len(values), size)]
    with ThreadPoolExecutor(available_cpus()) as pool:
        return list(chain.from_iterable(pool.map(function, parts)))


def _ms_since(start: float) -> float:
    return (time.perf_counter() - start) * 1e3
