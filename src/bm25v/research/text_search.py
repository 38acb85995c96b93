"""`bm25v evaluate text`: does a search by the name of a class find the images of the class?

In: a folder of class folders. All images become a gallery, and the name of each folder a text:
"great_pyrenees". Out: precision and average precision of each class; classes whose name is not
fully understood are counted apart.
"""

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bm25v import images
from bm25v.api import Gallery
from bm25v.errors import EvaluationError, WrongUse
from bm25v.progress import Progress, no_progress
from bm25v.search.results import Strength

PRECISIONS = (10, 100)


class ClassResult(NamedTuple):
    """How a search by the name of a class does.

    Precisions are those of the first 10 and 100 hits, or of as many as the class has images. All
    figures are 0 if nothing of the name is understood.
    """

    name: str
    n_images: int
    is_known: bool  # every word of the name is understood
    understood: tuple[str, ...]
    precision: Mapping[int, float]
    average_precision: float
    strength: Strength | None  # of the best hit


@dataclass(frozen=True)
class TextResult:
    """The results of all classes."""

    n_images: int
    classes: tuple[ClassResult, ...]

    def select(self, *, is_known: bool) -> list[ClassResult]:
        """Return the classes whose name is understood, or the others."""
        return [result for result in self.classes if result.is_known is is_known]

    def to_dict(self) -> dict[str, Any]:
        """Return the results as plain values."""
        return {
            "images": self.n_images,
            "known": summarize(self.select(is_known=True)),
            "unknown": summarize(self.select(is_known=False)),
            "classes": [
                {
                    **result._asdict(),
                    "precision": {f"P@{k}": value for k, value in result.precision.items()},
                }
                for result in self.classes
            ],
        }


def summarize(results: Sequence[ClassResult]) -> dict[str, float]:
    """Return the number of classes and the means of their figures."""
    n = max(len(results), 1)
    return {
        "classes": len(results),
        **{f"P@{k}": sum(r.precision[k] for r in results) / n for k in PRECISIONS},
        "mAP": sum(result.average_precision for result in results) / n,
    }


def measure_text(
    folder: Path, *, vocabulary: str = "default", progress: Progress = no_progress
) -> TextResult:
    """Index the images of class folders, and search for the name of each folder."""
    paths = sorted(images.find_images(folder)) if folder.is_dir() else []
    if len({_class_of(path, folder) for path in paths} - {None}) < 2:
        raise EvaluationError(f"{folder} has no class folders: give one folder for each class")
    with (
        tempfile.TemporaryDirectory() as scratch,
        Gallery.create(Path(scratch) / "gallery", vocabulary=vocabulary) as gallery,
    ):
        gallery.add([path for path in paths if _class_of(path, folder)], progress=progress)
        return measure_gallery(gallery, folder, progress=progress)


def measure_gallery(
    gallery: Gallery, folder: Path, *, progress: Progress = no_progress
) -> TextResult:
    """Search a gallery of the images of class folders for the name of each folder."""
    labels = {image.path: _class_of(Path(image.path), folder) for image in gallery.images()}
    counts = Counter(label for label in labels.values() if label is not None)
    results = []
    for number, (name, n_images) in enumerate(sorted(counts.items()), start=1):
        results.append(_measure_class(gallery, name, n_images, labels))
        progress("searching", number, len(counts))
    return TextResult(len(labels), tuple(results))


def _measure_class(
    gallery: Gallery, name: str, n_images: int, labels: Mapping[str, str | None]
) -> ClassResult:
    try:
        found = gallery.search(text=name.replace("_", " "), k=len(labels))
    except WrongUse:  # nothing of the name is understood
        return ClassResult(name, n_images, False, (), dict.fromkeys(PRECISIONS, 0.0), 0.0, None)
    is_right = np.array([labels[hit.path] == name for hit in found], dtype=bool)
    positions = np.flatnonzero(is_right)
    precisions = np.arange(1, len(positions) + 1) / (positions + 1)
    return ClassResult(
        name,
        n_images,
        not found.not_understood,
        found.understood,
        {k: float(is_right[: min(k, n_images)].sum() / min(k, n_images)) for k in PRECISIONS},
        float(precisions.sum() / n_images),
        found.hits[0].strength if found else None,
    )


def _class_of(path: Path, folder: Path) -> str | None:
    """Return the name of the class folder that a path is in."""
    relative = path.resolve().relative_to(folder.resolve())
    return relative.parts[0] if len(relative.parts) > 1 else None
