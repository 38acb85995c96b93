"""How well, and how fast, pictures that were made from one another are told from similar ones.

Some pictures of a folder are changed in several ways, and all go into one gallery. Each changed one
should come into the group of the picture that it was made from, and no two others into one group.
"""

import io
import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageEnhance

from bm25v import images
from bm25v.errors import WrongUse
from bm25v.gallery import Gallery

Change = Callable[[Image.Image], Image.Image]


def cropped(share: float) -> Change:
    """Cut a share of the picture off each side."""

    def change(picture: Image.Image) -> Image.Image:
        x, y = round(share * picture.width), round(share * picture.height)
        return picture.crop((x, y, picture.width - x, picture.height - y))

    return change


def turned(degrees: float) -> Change:
    """Turn a picture, and cut off the empty corners."""

    def change(picture: Image.Image) -> Image.Image:
        angle, (width, height) = math.radians(degrees), picture.size
        longer = max(width, height) / min(width, height)
        kept = 1 / (math.cos(angle) + longer * math.sin(angle))
        return cropped((1 - kept) / 2)(picture.rotate(degrees, Image.Resampling.BICUBIC))

    return change


def recompressed(quality: int) -> Change:
    """Save a picture as a JPEG of that quality and read it again."""

    def change(picture: Image.Image) -> Image.Image:
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=quality)
        return Image.open(file).convert("RGB")

    return change


def resized(share: float) -> Change:
    """Make a picture smaller."""
    return lambda picture: picture.resize(
        (max(8, round(share * picture.width)), max(8, round(share * picture.height))),
        Image.Resampling.BICUBIC,
    )


def brightened(factor: float) -> Change:
    """Make a picture brighter, or darker with a factor below 1."""
    return lambda picture: ImageEnhance.Brightness(picture).enhance(factor)


def reposted(picture: Image.Image) -> Image.Image:
    """Crop, shrink, brighten and recompress a picture, each a little."""
    for change in (cropped(0.04), resized(0.6), brightened(1.15), recompressed(40)):
        picture = change(picture)
    return picture


CHANGES: dict[str, Change] = {
    "crop 5 %": cropped(0.05),
    "crop 10 %": cropped(0.10),
    "turn 2°": turned(2),
    "turn 5°": turned(5),
    "JPEG 30": recompressed(30),
    "half size": resized(0.5),
    "darker": brightened(0.7),
    "brighter": brightened(1.3),
    "JPEG 10": recompressed(10),
    "quarter size": resized(0.25),
    "all a little": reposted,
}


@dataclass(frozen=True)
class Told:
    """What was found of what there is."""

    pictures: int  # in the gallery, changed ones among them
    recall: dict[str, float]  # of each kind of change: in one group with the unchanged picture
    groups: int
    mixed: tuple[tuple[str, ...], ...]  # pictures of the folder that came into one group
    seconds: float


def tell_apart(
    folder: Path,
    *,
    vocabulary: str = "default",
    every: int = 4,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Told:
    """Change every n-th picture of a folder, index all, and look for duplicates."""
    paths = [os.path.abspath(path) for path in images.find_images(folder)]
    if len(paths) < 2:
        raise WrongUse(f"{folder} has {len(paths)} pictures: give a folder with more")
    with tempfile.TemporaryDirectory() as scratch:
        origins = dict(zip(paths, paths, strict=True))
        kinds: dict[str, str] = {}
        for number, path in enumerate(paths[::every]):
            picture = Image.fromarray(images.decode_image(path))
            for which, (kind, change) in enumerate(CHANGES.items()):
                made = str(Path(scratch) / f"{number}-{which}.png")
                change(picture).save(made)
                origins[made], kinds[made] = path, kind
        with Gallery.create(Path(scratch) / "gallery", vocabulary=vocabulary) as gallery:
            gallery.add([folder, scratch], progress=progress)
            start = time.perf_counter()
            groups = gallery.duplicates(progress=progress)
            seconds = time.perf_counter() - start
    found = [[one.path for one in group.pictures] for group in groups]
    beside = {made for group in found for made in group if origins[made] in group}
    mixed = (sorted({origins[path] for path in group}) for group in found)
    return Told(
        pictures=len(origins),
        recall={kind: _share(kind, kinds, beside) for kind in CHANGES},
        groups=len(groups),
        mixed=tuple(tuple(several) for several in mixed if len(several) > 1),
        seconds=seconds,
    )


def _share(kind: str, kinds: Mapping[str, str], found: Set[str]) -> float:
    made = [path for path, its_kind in kinds.items() if its_kind == kind]
    return sum(path in found for path in made) / len(made)
