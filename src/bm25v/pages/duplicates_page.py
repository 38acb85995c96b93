"""Groups of images that look alike become a page: side by side, with what tells them apart.

In: groups, as `Gallery.duplicates` returns them. Out: HTML, or a file. Not this module's job:
finding the groups, and deciding which image to keep.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bm25v.display import file_size
from bm25v.duplicates import Duplicate, DuplicateGroup
from bm25v.errors import Bm25vError, WrongUse
from bm25v.files import replace_file
from bm25v.pages.render import embed_thumbnail, render

MAX_GROUPS = 200  # that are shown: the page holds the pixels of each image
MAX_IMAGES = 24  # of a group

_SIDE = 280  # pixels
_SUFFIXES = (".html", ".htm")


def check_output(path: Path) -> None:
    """Refuse a path that no page can be written to, before any work is done."""
    if path.suffix.lower() not in _SUFFIXES:
        raise WrongUse(f"{path} is no page: name a file that ends in {' or '.join(_SUFFIXES)}")
    if not path.parent.is_dir():
        raise WrongUse(f"{path}: the folder {path.parent} does not exist: create it first")


def write_duplicates(groups: Sequence[DuplicateGroup], path: Path, *, n_images: int) -> None:
    """Write the page of groups; `n_images` is how many the gallery has."""
    check_output(path)
    try:
        replace_file(path, render_duplicates(groups, n_images=n_images))
    except OSError as error:
        raise Bm25vError(f"{path} cannot be written: {error.strerror}") from error


def render_duplicates(groups: Sequence[DuplicateGroup], *, n_images: int) -> str:
    """Return the page; the groups with most images come first.

    >>> "No images look alike" in render_duplicates([], n_images=12)
    True
    """
    by_size = sorted(groups, key=lambda group: -len(group.images))
    return render(
        "duplicates.html",
        n_images=n_images,
        n_groups=len(groups),
        n_spare=sum(len(group.images) - 1 for group in groups),
        groups=[_describe_group(group) for group in by_size[:MAX_GROUPS]],
        n_more=len(by_size[MAX_GROUPS:]),
    )


def _describe_group(group: DuplicateGroup) -> dict[str, Any]:
    sizes = [(image.width or 0) * (image.height or 0) for image in group.images]
    largest = max(sizes) if min(sizes) < max(sizes) else None
    shown = list(zip(group.images, sizes, strict=True))[:MAX_IMAGES]
    return {
        "kind": group.kind,
        "n_images": len(group.images),
        "images": [_describe_image(image, is_largest=size == largest) for image, size in shown],
        "n_more": len(group.images[MAX_IMAGES:]),
    }


def _describe_image(image: Duplicate, *, is_largest: bool) -> dict[str, Any]:
    path = Path(image.path)
    return {
        "path": image.path,
        "name": path.name,
        "folder": str(path.parent),
        "image": embed_thumbnail(image.path, side=_SIDE, alt=path.name),
        "pixels": f"{image.width} × {image.height}" if image.width else "size unknown",
        "is_largest": is_largest,
        "bytes": file_size(image.size),
        "date": f"{image.date:%Y-%m-%d %H:%M}",
        "is_copy": image.is_copy,
    }
