"""Makes a page of groups of images that look alike, side by side, with how they differ."""

import os
from collections.abc import Sequence
from typing import Any

from bm25v.display import file_size
from bm25v.duplicates import DuplicateGroup
from bm25v.render.html import embed_thumbnail, render

MAX_GROUPS = 200  # that are shown: the page holds the pixels of each image
MAX_IMAGES = 24  # of a group

_SIDE = 280  # pixels


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
    sizes = {(image.width or 0) * (image.height or 0) for image in group.images}
    largest = max(sizes) if len(sizes) > 1 else None
    shown = []
    for image in group.images[:MAX_IMAGES]:
        shown.append(
            {
                "path": image.path,
                "image": embed_thumbnail(image.path, side=_SIDE, alt=os.path.basename(image.path)),
                "pixels": image.pixels,
                "is_largest": (image.width or 0) * (image.height or 0) == largest,
                "bytes": file_size(image.size),
                "date": f"{image.date:%Y-%m-%d %H:%M}",
                "is_copy": image.is_copy,
            }
        )
    return {
        "kind": group.kind,
        "n_images": len(group.images),
        "images": shown,
        "n_more": len(group.images[MAX_IMAGES:]),
    }
