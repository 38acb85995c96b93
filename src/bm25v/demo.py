"""Real photos indexed, searched and explained in one go.

In: a folder. Out: in it `photos`, `queries`, a gallery, `report.html` and `explain.png`, and a
`DemoReport` of how often the hits are of the query's species. The photos travel inside a package.
Not this room's job: printing; anything that one's own pictures need.
"""

import csv
import io
import os
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from bm25v.backbones import downloads
from bm25v.backbones.downloads import PackagedFile
from bm25v.errors import VocabularyMismatch, WrongUse
from bm25v.explain import report
from bm25v.explain.drawing import draw
from bm25v.gallery import Gallery, IndexReport
from bm25v.vocabulary import DEFAULT

PHOTOS = PackagedFile(
    name="flower-photos.zip",
    requirement="clustimage==1.3.0",
    wheel_sha256="0b236d65187f713c9facb3327ca360308c2b2f00f2ec17cf669ac1982b12cb82",
    download_mb=23,
    member="clustimage/data/flower_images.zip",
    sha256="c4409bec5834b327c0dc8504ebb63ac10b7cd8fa7e269d170b408f7895fa4e06",
    origin="210 labelled photos of flowers, 10 species",
    licence="MIT (the package)",
)
HITS = 5
CANDIDATES = 20  # a tenth of the photos: with the usual 200, the words would have no say in it
_QUERIES_PER_SPECIES = 2
_LABELS = "flower_labels.csv"


class Photos(NamedTuple):
    """The unpacked photos: those to index, those to search with, and the species by path."""

    indexed: list[Path]
    queries: list[Path]
    species: dict[str, str]


class Agreement(NamedTuple):
    """How often hits are of their query's species."""

    first: int
    queries: int
    all: int
    hits: int

    @classmethod
    def among(cls, searches: Iterable[report.Search]) -> "Agreement":
        """Count over first hits and over all hits."""
        marks = [[one.agrees(hit) is True for hit in one.results] for one in searches]
        first = sum(any(row[:1]) for row in marks)
        return cls(first, len(marks), sum(map(sum, marks)), sum(map(len, marks)))


@dataclass(frozen=True)
class DemoReport:
    """What the demo did and found; `by_words` are the same searches by BM25 alone."""

    index: IndexReport
    searches: tuple[report.Search, ...]
    by_words: tuple[report.Search, ...]
    page: Path
    drawing: Path | None  # None if no query has a hit

    @property
    def agreement(self) -> Agreement:
        """How often the hits are of the query's species."""
        return Agreement.among(self.searches)

    @property
    def agreement_by_words(self) -> Agreement:
        """The same, by BM25 alone."""
        return Agreement.among(self.by_words)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {
            "index": self.index.to_dict(),
            "agreement": self.agreement._asdict(),
            "agreement_by_words": self.agreement_by_words._asdict(),
            "searches": [
                {"query": one.query, "species": one.labels[one.query]} | one.results.to_dict()
                for one in self.searches
            ],
            "page": str(self.page),
            "drawing": str(self.drawing) if self.drawing else None,
        }


def run(
    folder: Path,
    *,
    vocabulary: str = DEFAULT,
    archive: bytes | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    say: Callable[[str], None] = lambda line: None,
) -> DemoReport:
    """Unpack the photos (or another archive of that layout), index, search, and write the page.

    Running it again does only what is left to do.
    """
    folder = Path(os.path.abspath(folder))
    photos = unpack(downloads.read_file(PHOTOS) if archive is None else archive, folder)
    n_species = len(set(photos.species.values()))
    say(f"{len(photos.indexed)} photos of {n_species} species in {folder / 'photos'}")
    with _gallery(folder / "gallery.bm25v", vocabulary) as gallery:
        total = len(photos.indexed) + len(photos.queries)
        indexed = gallery.add(
            folder / "photos", remove_missing=True, progress=lambda done, _: progress(done, total)
        )
        say(f"{indexed.added} added, {indexed.unchanged} unchanged in {gallery.path}")
        searches, by_words = [], []
        for done, query in enumerate(photos.queries, start=len(photos.indexed) + 1):
            path = os.path.abspath(query)
            encoding = gallery.vocabulary.encode(path)
            wish = partial(report.search, gallery, path, k=HITS, encoding=encoding)
            searches.append(wish(candidates=CANDIDATES, labels=photos.species))
            by_words.append(wish(mode="sparse", explained=0, labels=photos.species))
            progress(done, total)
    drawing = _draw(folder, searches)
    page = folder / "report.html"
    outcome = DemoReport(indexed, tuple(searches), tuple(by_words), page, drawing)
    page.write_text(_page(outcome, len(photos.indexed)), encoding="utf-8")
    return outcome


def unpack(archive: bytes, folder: Path) -> Photos:
    """Write the archive's photos into `photos` and `queries`; leave what is there already."""
    with zipfile.ZipFile(io.BytesIO(archive)) as members:
        table = [name for name in members.namelist() if PurePosixPath(name).name == _LABELS]
        if not table:
            raise WrongUse(f"the archive has no {_LABELS}: give one with photos and their labels")
        inside = PurePosixPath(table[0]).parent
        rows = list(csv.DictReader(members.read(table[0]).decode().splitlines()))
        by_species: dict[str, list[str]] = defaultdict(list)
        for row in sorted(rows, key=lambda row: row["file"]):
            by_species[f"species {row['label']}"].append(row["file"])
        queries = {name for names in by_species.values() for name in _spread(names)}
        photos = Photos([], [], {})
        for species, names in sorted(by_species.items()):
            for name in names:
                is_query = name in queries
                path = folder / ("queries" if is_query else "photos") / _plain(name)
                _write(path, members.read(str(inside / name)))
                (photos.queries if is_query else photos.indexed).append(path)
                photos.species[os.path.abspath(path)] = species
    return photos


def _spread(names: list[str]) -> list[str]:
    """Choose queries evenly over a species' photos, and leave most of them to be found."""
    n = min(_QUERIES_PER_SPECIES, len(names) // 3)
    return [names[(2 * i + 1) * len(names) // (2 * n)] for i in range(n)]


def _plain(name: str) -> str:
    """Refuse a file name that could lead out of the folder."""
    if name in ("", ".", "..") or any(mark in name for mark in "/\\:\0"):
        raise WrongUse(f"the archive names a photo {name!r}: only plain file names are unpacked")
    return name


def _write(path: Path, content: bytes) -> None:
    """Write a file unless it is there, so that its time says that it is unchanged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_bytes() != content:
        path.write_bytes(content)


def _gallery(path: Path, vocabulary: str) -> Gallery:
    if not path.exists():
        return Gallery.create(path, vocabulary=vocabulary)
    try:
        return Gallery.open(path, vocabulary=vocabulary)
    except VocabularyMismatch as error:
        raise VocabularyMismatch(
            f"{path} is of an earlier demo with another vocabulary: delete it, or give "
            "another --folder"
        ) from error


def _draw(folder: Path, searches: list[report.Search]) -> Path | None:
    """Draw the explanation with most to explain: that of the highest BM25 score."""
    explained = [(one.explanations[0], one.query) for one in searches if one.explanations]
    if not explained:
        return None
    explanation, query = max(explained, key=lambda pair: pair[0].sparse)
    draw(explanation, query_name=Path(query).name).save(folder / "explain.png")
    return folder / "explain.png"


def _page(outcome: DemoReport, n_indexed: int) -> str:
    found, by_words = outcome.agreement, outcome.agreement_by_words
    return report.page(
        "Flowers that look alike, and why",
        outcome.searches,
        lead=f"{found.queries} photos searched among {n_indexed} others: the best {CANDIDATES} by "
        "their visual words, ordered by dense vectors. The search never sees a species; the "
        "labels only check what it found.",
        facts=[
            (f"{found.first} of {found.queries}", "first hits show the query's species"),
            (f"{found.all} of {found.hits}", f"of all hits in the first {HITS} do"),
            (f"{by_words.first} and {by_words.all}", "by words alone, without dense vectors"),
        ],
    )
