"""Small changes to images, and how many of the changed copies `Gallery.duplicates` groups."""

import io
import math
from collections.abc import Callable
from pathlib import Path

from PIL import Image, ImageEnhance

from bm25v.gallery import Gallery

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
    def change(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file).convert("RGB")

    return change


def resize_by(factor: float) -> Change:
    return lambda image: image.resize(
        (max(8, round(factor * image.width)), max(8, round(factor * image.height))),
        Image.Resampling.BICUBIC,
    )


def brighten_by(factor: float) -> Change:
    return lambda image: ImageEnhance.Brightness(image).enhance(factor)


def combine_changes(image: Image.Image) -> Image.Image:
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


def measure_duplicates(
    originals: list[Path], changed: list[Path], scratch: Path
) -> tuple[dict[str, float], list[set[str]]]:
    """Index images with changed copies of some of them, and group duplicates.

    Return per change the share of copies in one group with their original, and the groups that
    have different originals.
    """
    original_of = {str(path): str(path) for path in originals}
    copies: dict[str, list[str]] = {name: [] for name in CHANGES}
    for number, path in enumerate(changed):
        for change_number, (name, change) in enumerate(CHANGES.items()):
            copy = str(scratch / f"{number}-{change_number}.png")
            change(Image.open(path).convert("RGB")).save(copy)
            copies[name].append(copy)
            original_of[copy] = str(path)
    with Gallery.create(scratch / "gallery") as gallery:
        gallery.add(list(original_of))
        groups = [[image.path for image in group.images] for group in gallery.duplicates()]
    recovered = {path for group in groups for path in group if original_of[path] in group}
    recall = {
        name: sum(path in recovered for path in paths) / len(paths)
        for name, paths in copies.items()
    }
    mixed = [{original_of[path] for path in group} for group in groups]
    return recall, [group for group in mixed if len(group) > 1]
