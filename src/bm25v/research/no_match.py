"""`bm25v evaluate no-match`: is a search told from one that has no good match?

In: a folder of class folders, and folders of other things. Half of the images of each class become
a gallery. Out: how often the best hit of a query is strong, fair or weak: for the other half, whose
classes the gallery has, and for the images of other things.
"""

import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bm25v import images
from bm25v.api import Gallery
from bm25v.errors import EvaluationError, WrongUse
from bm25v.progress import Progress, no_progress
from bm25v.search.calibration import MIN_IMAGES
from bm25v.search.results import Strength

_BATCH = 64  # queries between two reports of progress


@dataclass(frozen=True)
class StrengthCounts:
    """How many queries have a strong, a fair and a weak best hit."""

    counts: Counter[Strength]

    @property
    def n(self) -> int:
        """The number of queries."""
        return self.counts.total()

    def share(self, strength: Strength) -> float:
        """Return the share of the queries whose best hit is that strong.

        >>> StrengthCounts(Counter({"strong": 3, "weak": 1})).share("weak")
        0.25
        """
        return self.counts[strength] / max(self.n, 1)


@dataclass(frozen=True)
class NoMatchResult:
    """The counts for queries with a class of the gallery, and for each folder of other things."""

    n_images: int  # of the gallery
    counts: dict[str, StrengthCounts]

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values."""
        queries = {name: {"n": c.n, **c.counts} for name, c in self.counts.items()}
        return {"images": self.n_images, "queries": queries}


def measure_no_match(
    inside: Path,
    outside: Sequence[Path],
    *,
    vocabulary: str = "default",
    progress: Progress = no_progress,
) -> NoMatchResult:
    """Index half of the images of each class folder, and search for all other images."""
    indexed, held_out = split_classes(inside)
    if len(indexed) < MIN_IMAGES:
        raise EvaluationError(
            f"{inside} gives a gallery of {len(indexed)} images: {MIN_IMAGES} are needed"
        )
    queries = {f"in {inside.name}": held_out}
    for folder in outside:
        queries[f"out {folder.name}"] = _find_images(folder)
    counts: dict[str, StrengthCounts] = {}
    with (
        tempfile.TemporaryDirectory() as scratch,
        Gallery.create(Path(scratch) / "gallery", vocabulary=vocabulary) as gallery,
    ):
        gallery.add(indexed, progress=progress)
        for name, paths in queries.items():
            counts[name] = _judge_queries(gallery, name, paths, progress)
        return NoMatchResult(len(gallery), counts)


def split_classes(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return every second image of each class folder, and the others."""
    by_class: defaultdict[Path, list[Path]] = defaultdict(list)
    for path in _find_images(folder):
        by_class[path.parent].append(path)
    if len(by_class) < 2:
        raise EvaluationError(f"{folder} has no class folders: give one folder for each class")
    first = [path for paths in by_class.values() for path in paths[::2]]
    return first, [path for paths in by_class.values() for path in paths[1::2]]


def _find_images(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise WrongUse(f"{folder} is not a folder: give a folder of images")
    paths = sorted(images.find_images(folder))
    if not paths:
        raise WrongUse(f"no images in {folder}")
    return paths


def _judge_queries(
    gallery: Gallery, name: str, paths: Sequence[Path], progress: Progress
) -> StrengthCounts:
    counts: Counter[Strength] = Counter()
    for start in range(0, len(paths), _BATCH):
        for results in gallery.search_many(paths[start : start + _BATCH], k=1):
            counts[(results.hits[0].strength if results else None) or "weak"] += 1
        progress(f"searching: {name}", min(start + _BATCH, len(paths)), len(paths))
    return StrengthCounts(counts)
