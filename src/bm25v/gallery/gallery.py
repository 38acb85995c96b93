"""The class people use: create or open a gallery, add, remove, search."""

import os
import tempfile
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from threadpoolctl import threadpool_limits

from bm25v import query as queries
from bm25v import ranking
from bm25v.errors import GalleryError, UnknownVocabulary, VocabularyMismatch, WrongUse
from bm25v.gallery import catalog as catalogs
from bm25v.gallery import compaction, indexing, verify
from bm25v.gallery import rows as row_files
from bm25v.gallery.catalog import Catalog, Meta
from bm25v.gallery.failures import disk_errors
from bm25v.gallery.results import Hit, IndexReport, Info, Match, Results, Word
from bm25v.gallery.snapshot import Snapshot
from bm25v.gallery.writer import Writer, sync_folder
from bm25v.index.contributions import contributions, total
from bm25v.query import Query
from bm25v.vocabulary import DEFAULT, Encoding, Picture, Vocabulary

Mode = Literal["two-stage", "sparse", "dense"]


class Gallery:
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

    def __init__(self, path: Path, vocabulary: str | os.PathLike[str] | None) -> None:
        self.path = Path(os.path.abspath(path))
        self._catalog = Catalog(self.path / catalogs.FILE_NAME)
        self._vocabulary_source = vocabulary or self._catalog.meta.vocabulary
        self._vocabulary: Vocabulary | None = None
        self._snapshot: Snapshot | None = None
        self._mutex = threading.RLock()
        if vocabulary is not None:
            try:
                self.vocabulary  # noqa: B018 - refuse a wrong one at once
            except BaseException:
                self.close()
                raise

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

    def close(self) -> None:
        """Release the files; the gallery cannot be used after."""
        self._catalog.close()

    def __enter__(self) -> "Gallery":
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

    def _load_vocabulary(self) -> Vocabulary:
        try:
            return Vocabulary.load(self._vocabulary_source)
        except UnknownVocabulary as error:
            raise UnknownVocabulary(
                f"{self.path}: {error}; if it has moved: bm25v index FOLDER --vocabulary NEW_PLACE"
            ) from error

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
                _absolute(paths),
                remove_missing=remove_missing,
                progress=progress,
            )

    def remove(self, paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> int:
        """Remove pictures, or all pictures in a folder; return how many there were."""
        with Writer(self.path) as writer:
            rows = {p.row for path in _absolute(paths) for p in writer.catalog.below(path)}
            for row in rows:
                writer.remove(row)
            writer.commit()
        return len(rows)

    def compact(self, *, progress: compaction.Progress = lambda done, total: None) -> int:
        """Give back the space of removed pictures; return how many bytes of rows that was."""
        with Writer(self.path) as writer:
            return compaction.compact(self.path, writer, progress)

    def search(
        self, picture: Picture, *, k: int = 10, mode: Mode = "two-stage", candidates: int = 200
    ) -> Results:
        """Return the k pictures most like the given one (a path, bytes or an RGB array).

        "sparse" ranks by BM25, "dense" by cosine over all pictures, "two-stage" takes the best
        `candidates` by BM25 and orders them by cosine.
        """
        start = time.perf_counter()
        self.vocabulary.backbone.load()
        self.snapshot()
        loaded = time.perf_counter()
        encoding = self.vocabulary.encode(picture)
        encoded = time.perf_counter()
        results = self.search_encoding(encoding, k=k, mode=mode, candidates=candidates)
        ms = {"load": (loaded - start) * 1e3, "encode": (encoded - loaded) * 1e3, **results.ms}
        return Results(results.mode, results.hits, ms)

    def search_encoding(
        self, encoding: Encoding, *, k: int = 10, mode: Mode = "two-stage", candidates: int = 200
    ) -> Results:
        """Search with a picture that is encoded already."""
        if mode not in get_args(Mode):
            raise WrongUse(f"mode {mode!r}: choose one of {', '.join(get_args(Mode))}")
        if k < 1 or candidates < 1:
            raise WrongUse(f"k = {k}, candidates = {candidates}: both must be at least 1")
        snapshot = self.snapshot()
        query = queries.from_bag(encoding.bag)
        start = time.perf_counter()
        rows = snapshot.rows
        if mode != "dense":
            wanted = k if mode == "sparse" else max(k, candidates)
            ranked = snapshot.searcher.search(query, wanted)
            rows = ranked.rows
        found = time.perf_counter()
        is_compiled = snapshot.searcher.has_index
        dense = ranking.cosines(snapshot.dense_ne, encoding.dense_e, rows, compiled=is_compiled)
        scores = ranked.scores if mode == "sparse" else dense
        best = ranking.top(rows, scores, k)
        ms = {"sparse": (found - start) * 1e3, "rerank": (time.perf_counter() - found) * 1e3}
        paths = self._catalog.paths_of(rows[best].tolist(), snapshot.state.generation)
        if paths is None:  # compacted meanwhile
            return self.search_encoding(encoding, k=k, mode=mode, candidates=candidates)
        hits = [
            Hit(
                **vars(self._match(snapshot, query, int(rows[i]), path, float(dense[i]))),
                rank=rank,
                score=float(scores[i]),
            )
            for rank, (i, path) in enumerate(zip(best, paths, strict=True), start=1)
        ]
        return Results(mode, tuple(hits), ms)

    def search_many(
        self,
        pictures: Iterable[Picture | Encoding],
        *,
        k: int = 10,
        mode: Mode = "two-stage",
        candidates: int = 200,
    ) -> list[Results]:
        """Search with many pictures, or encodings, on all cores; each result is that of one search.

        >>> import tempfile, numpy as np
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> Image.new("RGB", (64, 64), "red").save(folder / "red.png")
        >>> gallery = Gallery.create(folder / "g", vocabulary="toy")
        >>> gallery.add(folder / "red.png").added
        1
        >>> [len(results) for results in gallery.search_many([folder / "red.png"] * 3)]
        [1, 1, 1]
        """
        wanted = list(pictures)
        self.snapshot().searcher.expect(len(wanted))

        def one(picture: Picture | Encoding) -> Results:
            if not isinstance(picture, Encoding):
                picture = self.vocabulary.encode(picture)
            return self.search_encoding(picture, k=k, mode=mode, candidates=candidates)

        if not all(isinstance(picture, Encoding) for picture in wanted):
            self.vocabulary.backbone.load()
        with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(one, wanted))

    def match(self, encoding: Encoding, path: str | os.PathLike[str]) -> Match:
        """Compare an encoded picture with one picture of the gallery."""
        (absolute,) = _absolute(path)
        snapshot = self.snapshot()
        with self._catalog.reading():
            picture = self._catalog.at_path(absolute)
            generation = self._catalog.state().generation
        if generation != snapshot.state.generation:  # compacted meanwhile
            return self.match(encoding, path)
        if picture is None or picture.row not in snapshot.rows:
            raise WrongUse(f"{absolute} is not in {self.path}: index it first")
        rows = np.array([picture.row])
        (dense,) = ranking.cosines(snapshot.dense_ne, encoding.dense_e, rows)
        query = queries.from_bag(encoding.bag)
        return self._match(snapshot, query, picture.row, absolute, float(dense))

    def _match(self, snapshot: Snapshot, query: Query, row: int, path: str, dense: float) -> Match:
        parts = contributions(query, snapshot.bag(row), snapshot.searcher.statistics)
        names = self.vocabulary.word_names
        words = tuple(
            Word(p.word, names.get(p.word), p.idf, p.tf, p.query_tf, p.saturation, p.value)
            for p in parts
        )
        return Match(path, total(parts), dense, words)

    def snapshot(self) -> Snapshot:
        """Return the pictures as they are now; read anew only if something was committed."""
        with self._mutex:
            if self._snapshot is None or self._snapshot.version != self._catalog.version():
                self._snapshot = Snapshot.load(self.path, self._catalog, self._snapshot)
            return self._snapshot

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


def _absolute(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    return [os.path.abspath(path) for path in paths]
