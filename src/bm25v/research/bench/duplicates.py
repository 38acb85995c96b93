"""`bm25v bench duplicates`: are changed copies of images found, and similar images kept apart?

In: a folder of images. Some of them are changed in several ways, and all go into one gallery. Out:
how many changed copies are in one group with their original (recall), which groups mix different
originals, and the time.
"""

import io
import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageEnhance

from bm25v import images
from bm25v.api import Gallery
from bm25v.errors import WrongUse
from bm25v.progress import Progress, no_progress

Change = Callable[[Image.Image], Image.Image]


def crop_by(share: float) -> Change:
    """Return a change that cuts a share of the image off each side."""

    def change(image: Image.Image) -> Image.Image:
        x, y = round(share * image.width), round(share * image.height)
        return image.crop((x, y, image.width - x, image.height - y))

    return change


def rotate_by(degrees: float) -> Change:
    """Return a change that rotates an image and cuts off the empty corners."""

    def change(image: Image.Image) -> Image.Image:
        angle, (width, height) = math.radians(degrees), image.size
        aspect = max(width, height) / min(width, height)
        kept = 1 / (math.cos(angle) + aspect * math.sin(angle))
        return crop_by((1 - kept) / 2)(image.rotate(degrees, Image.Resampling.BICUBIC))

    return change


def recompress_at(quality: int) -> Change:
    """Return a change that saves an image as JPEG of that quality and reads it again."""

    def change(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file).convert("RGB")

    return change


def resize_by(factor: float) -> Change:
    """Return a change that multiplies both sides of an image by a factor."""
    return lambda image: image.resize(
        (max(8, round(factor * image.width)), max(8, round(factor * image.height))),
        Image.Resampling.BICUBIC,
    )


def brighten_by(factor: float) -> Change:
    """Return a change that multiplies the brightness of an image by a factor."""
    return lambda image: ImageEnhance.Brightness(image).enhance(factor)


def combine_changes(image: Image.Image) -> Image.Image:
    """Crop, shrink, brighten and recompress an image, each a little."""
    for change in (crop_by(0.04), resize_by(0.6), brighten_by(1.15), recompress_at(40)):
        image = change(image)
    return image


CHANGES: dict[str, Change] = {
    "crop 5 %": crop_by(0.05),
    "crop 10 %": crop_by(0.10),
    "turn 2°": rotate_by(2),
    "turn 5°": rotate_by(5),
    "JPEG 30": recompress_at(30),
    "half size": resize_by(0.5),
    "darker": brighten_by(0.7),
    "brighter": brighten_by(1.3),
    "JPEG 10": recompress_at(10),
    "quarter size": resize_by(0.25),
    "all a little": combine_changes,
}


@dataclass(frozen=True)
class DuplicateRecall:
    """How well changed copies were found."""

    images: int  # in the gallery, with the changed copies
    recall: dict[str, float]  # per change: share of copies in one group with their original
    groups: int
    mixed: tuple[tuple[str, ...], ...]  # different originals that came into one group
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values."""
        values = dict(vars(self))
        return {"pictures": values.pop("images"), **values}


def measure_duplicates(
    folder: Path,
    *,
    vocabulary: str = "default",
    every: int = 4,
    progress: Progress = no_progress,
) -> DuplicateRecall:
    """Change every n-th image of a folder, index all images, and find duplicates."""
    originals = [os.path.abspath(path) for path in images.find_images(folder)]
    if len(originals) < 2:
        raise WrongUse(f"{folder} has {len(originals)} images: give a folder with at least 2")
    with tempfile.TemporaryDirectory() as scratch:
        original_of = dict(zip(originals, originals, strict=True))
        change_of: dict[str, str] = {}
        for number, path in enumerate(originals[::every]):
            image = Image.fromarray(images.decode_image(path))
            for change_number, (name, change) in enumerate(CHANGES.items()):
                copy = str(Path(scratch) / f"{number}-{change_number}.png")
                change(image).save(copy)
                original_of[copy], change_of[copy] = path, name
        with Gallery.create(Path(scratch) / "gallery", vocabulary=vocabulary) as gallery:
            gallery.add([str(folder), scratch], progress=progress)
            start = time.perf_counter()
            groups = gallery.duplicates(progress=progress)
            seconds = time.perf_counter() - start
    paths = [[image.path for image in group.images] for group in groups]
    recovered = {copy for group in paths for copy in group if original_of[copy] in group}
    grouped_originals = (sorted({original_of[path] for path in group}) for group in paths)
    return DuplicateRecall(
        images=len(original_of),
        recall={name: _recall(name, change_of, recovered) for name in CHANGES},
        groups=len(groups),
        mixed=tuple(tuple(group) for group in grouped_originals if len(group) > 1),
        seconds=seconds,
    )


def _recall(change: str, change_of: Mapping[str, str], recovered: Set[str]) -> float:
    copies = [path for path, name in change_of.items() if name == change]
    return sum(path in recovered for path in copies) / len(copies)
