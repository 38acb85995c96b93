"""The demo: index real photos, search with others, and explain the hits.

In: a folder. Out: in it `photos`, `queries`, a gallery, `report.html` and `explain.png`, and a
`DemoReport` with how often hits show the query's species. The photos are inside a package, which is
downloaded. Not this module's job: printing.
"""

import csv
import io
import os
import shlex
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from bm25v.api import Gallery
from bm25v.backbones import downloads
from bm25v.backbones.downloads import PackagedFile
from bm25v.display import display_path
from bm25v.errors import VocabularyMismatch, WrongUse
from bm25v.explanations.explanation import Explanation, Grid
from bm25v.explanations.maps import combine_maps
from bm25v.files import make_folder, replace_file, reporting_full_disk
from bm25v.gallery.indexing import IndexReport
from bm25v.pages.searches_page import LabelledSearch, render_searches
from bm25v.progress import Progress, no_progress, show_downloads
from bm25v.search import Mode
from bm25v.vocabulary import DEFAULT, Encoding

PHOTOS = PackagedFile(
    name="flower-photos.zip",
    requirement="clustimage==1.3.0",
    wheel_sha256="0b236d65187f713c9facb3327ca360308c2b2f00f2ec17cf669ac1982b12cb82",
    wheel_bytes=23_148_677,
    member="clustimage/data/flower_images.zip",
    sha256="c4409bec5834b327c0dc8504ebb63ac10b7cd8fa7e269d170b408f7895fa4e06",
    origin="210 labelled photos of flowers, 10 species",
    licence="MIT (the package)",
)
# What to try next, shown on the page and in the terminal: options of `bm25v search`.
TRIES = (
    "{query} --open",
    '--text "a daisy" --open',
    "{query} --show",
    "{query} --region 0.25,0.25,0.5,0.5 --open",
)
HITS = 5
_QUERIES_PER_SPECIES = 2
_SPECIES = (  # by their numbers in the table of labels
    "phlox",
    "rose",
    "calendula",
    "iris",
    "daisy",
    "bellflower",
    "pansy",
    "coneflower",
    "peony",
    "columbine",
)
_LABELS = "flower_labels.csv"


class Photos(NamedTuple):
    """The unpacked photos: those to index, those to search with, and the species by path."""

    indexed: list[Path]
    queries: list[Path]
    species: dict[str, str]


class Agreement(NamedTuple):
    """How often hits show their query's species."""

    first: int
    queries: int
    all: int
    hits: int

    @classmethod
    def measure(cls, searches: Iterable[LabelledSearch]) -> "Agreement":
        """Count over first hits and over all hits."""
        marks = [[search.agrees(hit) is True for hit in search.results] for search in searches]
        first = sum(any(row[:1]) for row in marks)
        return cls(first, len(marks), sum(map(sum, marks)), sum(map(len, marks)))


@dataclass(frozen=True)
class DemoReport:
    """What the demo did; `by_words` are the same searches by BM25 alone."""

    index: IndexReport
    searches: tuple[LabelledSearch, ...]
    by_words: tuple[LabelledSearch, ...]
    page: Path
    drawing: Path | None  # None if no query has a hit
    commands: tuple[str, ...]  # to try next

    @property
    def agreement(self) -> Agreement:
        """How often the hits show the query's species."""
        return Agreement.measure(self.searches)

    @property
    def agreement_by_words(self) -> Agreement:
        """The same, by BM25 alone."""
        return Agreement.measure(self.by_words)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {
            "index": self.index.to_dict(),
            "agreement": self.agreement._asdict(),
            "agreement_by_words": self.agreement_by_words._asdict(),
            "searches": [
                {"query": search.query, "species": search.labels[search.query]}
                | search.results.to_dict()
                for search in self.searches
            ],
            "commands": list(self.commands),
            "page": str(self.page),
            "drawing": str(self.drawing) if self.drawing else None,
        }


def run(
    folder: Path,
    *,
    vocabulary: str = DEFAULT,
    archive: bytes | None = None,
    progress: Progress = no_progress,
    say: Callable[[str], None] = lambda line: None,
) -> DemoReport:
    """Unpack the photos (or another archive of that layout), index, search, and write the page.

    A second run does only what is left to do. `say` gets a line of text after each step.
    """
    folder = Path(os.path.abspath(folder))
    with show_downloads(progress):
        photos = unpack(downloads.read_file(PHOTOS) if archive is None else archive, folder)
    n_species = len(set(photos.species.values()))
    say(f"{len(photos.indexed)} photos of {n_species} species in {folder / 'photos'}")
    with _open_gallery(folder / "gallery.bm25v", vocabulary) as gallery:
        total = len(photos.indexed) + len(photos.queries)
        indexed = gallery.add(
            folder / "photos",
            remove_missing=True,
            progress=lambda stage, done, _: progress(stage, done, total),
        )
        say(f"{indexed.added} added, {indexed.unchanged} unchanged in {gallery.path}")
        searches, by_words = [], []
        for done, query in enumerate(photos.queries, start=len(photos.indexed) + 1):
            path = os.path.abspath(query)
            encoding = gallery.vocabulary.encode(path)
            searches.append(search_and_explain(gallery, path, encoding, labels=photos.species))
            by_words.append(
                search_and_explain(
                    gallery, path, encoding, mode="words", explained=0, labels=photos.species
                )
            )
            progress("searching", done, total)
    searches.sort(key=_convincing, reverse=True)
    drawing = _draw(folder, searches)
    page, commands = folder / "report.html", _list_commands(folder, searches)
    report = DemoReport(indexed, tuple(searches), tuple(by_words), page, drawing, commands)
    replace_file(page, _render(report, len(photos.indexed)))
    return report


def search_and_explain(
    gallery: Gallery,
    query: str,
    encoding: Encoding | None = None,
    *,
    k: int = HITS,
    mode: Mode | None = None,
    explained: int = 1,
    labels: Mapping[str, str] | None = None,
) -> LabelledSearch:
    """Search with the image at a path, which may be encoded already, and explain the first hits."""
    encoding = encoding or gallery.vocabulary.encode(query)
    results = gallery.search(encoding, k=k, mode=mode)
    explanations = tuple(
        gallery.explain(query, hit.path, encoding=encoding) for hit in results.hits[:explained]
    )
    return LabelledSearch(query, results, explanations, labels or {})


def unpack(archive: bytes, folder: Path) -> Photos:
    """Write the archive's photos into `photos` and `queries`; keep the ones that are there."""
    with zipfile.ZipFile(io.BytesIO(archive)) as members:
        table = [name for name in members.namelist() if PurePosixPath(name).name == _LABELS]
        if not table:
            raise WrongUse(
                f"the archive has no {_LABELS}: give an archive with photos and their labels"
            )
        inside = PurePosixPath(table[0]).parent
        rows = list(csv.DictReader(members.read(table[0]).decode().splitlines()))
        by_species: dict[str, list[str]] = defaultdict(list)
        for row in sorted(rows, key=lambda row: (row["label"], row["file"])):
            by_species[_name_species(row["label"])].append(row["file"])
        queries = {name for names in by_species.values() for name in _choose_queries(names)}
        photos = Photos([], [], {})
        for species, names in by_species.items():
            for name in names:
                is_query = name in queries
                path = folder / ("queries" if is_query else "photos") / _check_name(name)
                _write(path, members.read(str(inside / name)))
                (photos.queries if is_query else photos.indexed).append(path)
                photos.species[os.path.abspath(path)] = species
    return photos


def _name_species(label: str) -> str:
    """Return the name of a species, whose number the photos' table has.

    >>> _name_species("1"), _name_species("77")
    ('rose', 'species 77')
    """
    is_known = label.isdecimal() and int(label) < len(_SPECIES)
    return _SPECIES[int(label)] if is_known else f"species {label}"


def _choose_queries(names: list[str]) -> list[str]:
    """Choose queries evenly over a species' photos; most photos stay in the gallery."""
    n = min(_QUERIES_PER_SPECIES, len(names) // 3)
    return [names[(2 * i + 1) * len(names) // (2 * n)] for i in range(n)]


def _check_name(name: str) -> str:
    """Refuse a file name that could lead out of the folder."""
    if name in ("", ".", "..") or any(character in name for character in "/\\:\0"):
        raise WrongUse(f"the archive names a photo {name!r}: only plain file names are unpacked")
    return name


def _write(path: Path, content: bytes) -> None:
    """Write a file unless it is there already, so that indexing sees it as unchanged."""
    make_folder(path.parent)
    if not path.is_file() or path.read_bytes() != content:
        with reporting_full_disk(path):
            path.write_bytes(content)  # not synced, because that is slow: the next run repairs it


def _open_gallery(path: Path, vocabulary: str) -> Gallery:
    if not path.exists():
        return Gallery.create(path, vocabulary=vocabulary)
    try:
        return Gallery.open(path, vocabulary=vocabulary)
    except VocabularyMismatch as error:
        raise VocabularyMismatch(
            f"{path} was made by a demo with another vocabulary: delete it, or give another "
            "--folder"
        ) from error


def _convincing(search: LabelledSearch) -> tuple[int, float]:
    """Return what the searches of the page are sorted by: first those that are easy to understand.

    These are searches whose hits all have the query's species, and that matched by what is in the
    middle of both images, where the flower is.
    """
    n_agree = sum(search.agrees(hit) is True for hit in search.results)
    shares = [_share_in_middle(grid) for e in search.explanations for grid in _maps(e)]
    return n_agree, min(shares, default=0.0)


def _maps(explanation: Explanation) -> list[Grid]:
    in_queries, in_hit = combine_maps(explanation)
    return [*in_queries, *([] if in_hit is None else [in_hit])]


def _share_in_middle(grid: Grid) -> float:
    """Return which share of what matched is in the middle half of an image, in both directions.

    >>> import numpy as np
    >>> _share_in_middle(np.ones((8, 8), np.float32))
    0.25
    """
    rows, columns = grid.shape
    middle = grid[rows // 4 : rows - rows // 4, columns // 4 : columns - columns // 4]
    return float(middle.sum() / max(float(grid.sum()), 1e-12))


def _draw(folder: Path, searches: list[LabelledSearch]) -> Path | None:
    """Draw the first explanation."""
    explained = [search.explanations[0] for search in searches if search.explanations]
    if not explained:
        return None
    path = folder / "explain.png"
    explained[0].save(path)
    return path


def _list_commands(folder: Path, searches: list[LabelledSearch]) -> tuple[str, ...]:
    """Return commands that search in the demo's gallery, from the current folder."""
    gallery = shlex.quote(display_path(str(folder / "gallery.bm25v")))
    queries = [shlex.quote(display_path(search.query)) for search in searches]
    options = (line.format(query=query) for line, query in zip(TRIES, cycle(queries), strict=False))
    return tuple(f"bm25v search -g {gallery} {option}" for option in options)


def _render(report: DemoReport, n_indexed: int) -> str:
    both, by_words = report.agreement, report.agreement_by_words
    return render_searches(
        "Flowers that look alike, and why",
        report.searches,
        lead=f"{both.queries} photos searched among {n_indexed} others, sorted by overall "
        "similarity and visual words together. The search knows nothing about species; the labels "
        "only check its hits.",
        facts=[
            (f"{both.first} of {both.queries}", "first hits show the query's species"),
            (f"{both.all} of {both.hits}", f"of all hits, the first {HITS} of each query, do"),
            (f"{by_words.first} and {by_words.all}", "with visual words alone, without similarity"),
        ],
        commands=report.commands,
    )
