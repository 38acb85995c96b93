"""The demo: index photos of flowers, search by a text, a photo and a box, and explain a hit.

A folder gets `photos`, `queries`, a gallery, `report.html` and `explain.png`. The photos are inside
a package, which is downloaded.
"""

import io
import os
import shlex
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bm25v.backbones import downloads
from bm25v.backbones.downloads import PackagedFile
from bm25v.display import display_path
from bm25v.errors import VocabularyMismatch
from bm25v.explain.sums import list_shares
from bm25v.files import make_folder, reporting_full_disk
from bm25v.gallery import Gallery
from bm25v.progress import Progress, no_progress, show_downloads
from bm25v.search import Results
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
QUERY = "0082.png"  # a daisy
BOX = (0.25, 0.25, 0.5, 0.5)
# Photos that are not indexed: two of each species.
QUERIES = {
    *("0009.png", "0032.png", "0043.png", "0055.png", "0061.png", "0062.png", "0073.png"),
    *("0075.png", "0079.png", QUERY, "0116.png", "0144.png", "0145.png", "0152.png"),
    *("0158.png", "0160.png", "0167.png", "0169.png", "0177.png", "0184.png"),
}
# What to try next: options of `bm25v search`.
TRIES = (
    f'--text "{TEXT}" --open',
    "{query} --open",
    "{query} --show",
    f"{{query}} --region {','.join(map(str, BOX))} --open",
)
_HITS, _SHOWN = 5, 3  # of a search, and of an example


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


@dataclass(frozen=True)
class DemoReport:
    """What the demo did."""

    index: IndexReport
    examples: tuple[Example, ...]  # a text, a photo, a box
    sentence: str  # why the first hit of the photo matches
    page: str
    drawing: str
    commands: tuple[str, ...]  # to try next

    def to_dict(self) -> dict[str, Any]:
        examples = [example._asdict() for example in self.examples]
        return {**vars(self), "index": self.index.to_dict(), "examples": examples}


def run(
    folder: Path,
    *,
    vocabulary: str = DEFAULT,
    archive: bytes | None = None,
    progress: Progress = no_progress,
) -> DemoReport:
    """Unpack the photos (or another archive of that layout), index, search, and write the page.

    A second run does only what is left to do.
    """
    folder = Path(os.path.abspath(folder))
    page, drawing, query = (
        folder / "report.html",
        folder / "explain.png",
        folder / "queries" / QUERY,
    )
    with show_downloads(progress):
        unpack(downloads.read_file(PHOTOS) if archive is None else archive, folder)
    try:
        opened = Gallery.open_or_create(folder / "gallery.bm25v", vocabulary=vocabulary)
    except VocabularyMismatch as error:
        raise VocabularyMismatch(
            f"{folder} is of a demo with another vocabulary: delete it, or give another --folder"
        ) from error
    with opened as gallery:
        indexed = gallery.add(folder / "photos", remove_missing=True, progress=progress)
        gallery.refresh()
        by_photo = gallery.search(query, k=_HITS)
        by_photo.save(page, progress=progress)
        explanation = by_photo[0].explain()
        explanation.save(drawing)
        examples = (
            Example.of(f"“{TEXT}”", gallery.search(text=TEXT, k=_HITS)),
            Example.of(QUERY, by_photo),
            Example.of(f"the middle of {QUERY}", gallery.search(query, region=BOX, k=_HITS)),
        )
    shown, with_query = (shlex.quote(display_path(str(path))) for path in (gallery.path, query))
    commands = (f"bm25v search -g {shown} {line.format(query=with_query)}" for line in TRIES)
    return DemoReport(
        indexed, examples, explanation.sentence, str(page), str(drawing), tuple(commands)
    )


def unpack(archive: bytes, folder: Path) -> None:
    """Write the archive's photos into `photos` and `queries`; keep the ones that are there."""
    with zipfile.ZipFile(io.BytesIO(archive)) as members:
        for member in members.namelist():
            name = os.path.basename(member)
            if not name.endswith(".png"):  # a folder, or the table of labels
                continue
            path = folder / ("queries" if name in QUERIES else "photos") / name
            content = members.read(member)
            make_folder(path.parent)
            if not path.is_file() or path.read_bytes() != content:
                with reporting_full_disk(path):
                    path.write_bytes(content)  # not synced: the next run repairs it
