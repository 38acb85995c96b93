"""The demo: index photos of flowers, search by a text, a photo and a box, and explain the hits.

A folder gets `photos`, `queries`, a gallery, `report.html` and `explain.png`. The photos are inside
a package, which is downloaded; their labels tell how often hits show the query's species.
"""

import csv
import io
import os
import shlex
import zipfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from bm25v.backbones import downloads
from bm25v.backbones.downloads import PackagedFile
from bm25v.display import display_path
from bm25v.errors import VocabularyMismatch
from bm25v.explain.sums import list_shares
from bm25v.files import make_folder, reporting_full_disk
from bm25v.gallery import Gallery
from bm25v.progress import Progress, no_progress, show_downloads
from bm25v.search import Mode, Results
from bm25v.store.base import IndexReport
from bm25v.vocabulary import DEFAULT

PHOTOS = PackagedFile(
    name="flower-photos.zip",
    requirement="clustimage==1.3.0",
    wheel_sha256="0b236d65187f713c9facb3327ca360308c2b2f00f2ec17cf669ac1982b12cb82",
    wheel_bytes=23_148_677,
    member="clustimage/data/flower_images.zip",
    sha256="c4409bec5834b327c0dc8504ebb63ac10b7cd8fa7e269d170b408f7895fa4e06",
    about="210 labelled photos of flowers, 10 species",
    licence="MIT (the package)",
)
TEXT = "bee on an orange flower"
BOX = (0.25, 0.25, 0.5, 0.5)
# What to try next: options of `bm25v search`.
TRIES = (
    f'--text "{TEXT}" --open',
    "{query} --open",
    "{query} --show",
    f"{{query}} --region {','.join(map(str, BOX))} --open",
)
HITS = 5
_SHOWN = 3  # hits of an example
_QUERIES_PER_SPECIES = 2
# By their numbers in the table of labels.
SPECIES = [
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
]
_LABELS = "flower_labels.csv"


class Photos(NamedTuple):
    """The unpacked photos: those to index, those to search with, and the species by path."""

    indexed: list[Path]
    queries: list[Path]
    species: dict[str, str]


class DemoSearch(NamedTuple):
    """A search, and which species its query and its hits show."""

    query: str
    species: str
    results: Results
    hit_species: tuple[str, ...]

    @property
    def n_agree(self) -> int:
        return self.hit_species.count(self.species)


class Example(NamedTuple):
    """A search, and its first hits: paths, each with what it shows of the query."""

    title: str
    hits: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, title: str, results: Results) -> "Example":
        groups = results.group_words().hits
        hits = []
        for hit, own in zip(results, groups, strict=True):
            shares = [f"{label} {share:.0%}" for label, share in list_shares(hit)]
            labels = shares or [group.label for group in own if group.label]
            hits.append((hit.path, ", ".join(labels)))
        return cls(title, tuple(hits[:_SHOWN]))


class Agreement(NamedTuple):
    """How often hits show their query's species."""

    first: int
    queries: int
    all: int
    hits: int

    @classmethod
    def measure(cls, searches: list[DemoSearch]) -> "Agreement":
        return cls(
            first=sum(search.hit_species[:1] == (search.species,) for search in searches),
            queries=len(searches),
            all=sum(search.n_agree for search in searches),
            hits=sum(len(search.hit_species) for search in searches),
        )


@dataclass(frozen=True)
class DemoReport:
    """What the demo did; the search with the most convincing hits is the first."""

    index: IndexReport
    examples: tuple[Example, ...]  # a text, a photo, a box
    sentence: str  # why the first hit of the photo matches
    searches: tuple[DemoSearch, ...]
    agreement: Agreement
    agreement_by_words: Agreement  # of the same searches, by BM25 alone
    page: Path
    drawing: Path
    commands: tuple[str, ...]  # to try next

    def to_dict(self) -> dict[str, Any]:
        return {
            "index": self.index.to_dict(),
            "examples": [
                {"title": e.title, "hits": list(map(list, e.hits))} for e in self.examples
            ],
            "sentence": self.sentence,
            "agreement": self.agreement._asdict(),
            "agreement_by_words": self.agreement_by_words._asdict(),
            "searches": [
                {"query": search.query, "species": search.species}
                | search.results.to_dict(words=10)
                for search in self.searches
            ],
            "commands": list(self.commands),
            "page": str(self.page),
            "drawing": str(self.drawing),
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
    page, drawing = folder / "report.html", folder / "explain.png"
    with show_downloads(progress):
        photos = unpack(downloads.read_file(PHOTOS) if archive is None else archive, folder)
    n_species = len(set(photos.species.values()))
    say(f"{len(photos.indexed)} photos of {n_species} species in {folder / 'photos'}")
    try:
        opened = Gallery.open_or_create(folder / "gallery.bm25v", vocabulary=vocabulary)
    except VocabularyMismatch as error:
        raise VocabularyMismatch(
            f"{folder} is of a demo with another vocabulary: delete it, or give another --folder"
        ) from error
    with opened as gallery:
        total = len(photos.indexed) + len(photos.queries)
        indexed = gallery.add(
            folder / "photos",
            remove_missing=True,
            progress=lambda stage, done, _: progress(stage, done, total),
        )
        gallery.refresh()
        say(f"{indexed.added} added, {indexed.unchanged} unchanged in {gallery.path}")

        def search(query: Path, mode: Mode | None = None) -> DemoSearch:
            results = gallery.search(query, k=HITS, mode=mode)
            species = [photos.species[hit.path] for hit in results]
            return DemoSearch(str(query), photos.species[str(query)], results, tuple(species))

        searches, by_words = [], []
        for done, query in enumerate(photos.queries, start=len(photos.indexed) + 1):
            searches.append(search(query))
            by_words.append(search(query, "words"))
            progress("searching", done, total)
        searches.sort(key=lambda search: (search.n_agree, search.results[0].score), reverse=True)
        best = searches[0]
        best.results.save(page)
        explanation = best.results[0].explain()
        explanation.save(drawing)
        name = os.path.basename(best.query)
        examples = (
            Example.of(f"“{TEXT}”", gallery.search(text=TEXT, k=HITS)),
            Example.of(name, best.results),
            Example.of(f"the middle of {name}", gallery.search(best.query, region=BOX, k=HITS)),
        )
    shown, with_best = (shlex.quote(display_path(str(p))) for p in (gallery.path, best.query))
    return DemoReport(
        indexed,
        examples,
        explanation.sentence,
        tuple(searches),
        Agreement.measure(searches),
        Agreement.measure(by_words),
        page,
        drawing,
        tuple(f"bm25v search -g {shown} {line.format(query=with_best)}" for line in TRIES),
    )


def unpack(archive: bytes, folder: Path) -> Photos:
    """Write the archive's photos into `photos` and `queries`; keep the ones that are there."""
    photos = Photos([], [], {})
    with zipfile.ZipFile(io.BytesIO(archive)) as members:
        (table,) = (name for name in members.namelist() if PurePosixPath(name).name == _LABELS)
        by_species: dict[str, list[str]] = defaultdict(list)
        for row in csv.DictReader(members.read(table).decode().splitlines()):
            by_species[row["label"]].append(row["file"])
        for label, names in sorted(by_species.items()):
            names.sort()
            n = min(_QUERIES_PER_SPECIES, len(names) // 3)  # most photos stay in the gallery
            queries = {names[(2 * i + 1) * len(names) // (2 * n)] for i in range(n)}
            for name in names:
                path = folder / ("queries" if name in queries else "photos") / Path(name).name
                content = members.read(str(PurePosixPath(table).parent / name))
                make_folder(path.parent)
                if not path.is_file() or path.read_bytes() != content:
                    with reporting_full_disk(path):
                        path.write_bytes(content)  # not synced: the next run repairs it
                (photos.queries if name in queries else photos.indexed).append(path)
                photos.species[str(path)] = SPECIES[int(label)]
    return photos
