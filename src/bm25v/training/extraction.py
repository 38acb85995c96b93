"""Pictures become shards of patches, side by side; what is on disk already is not made again."""

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bm25v import images
from bm25v.backbones import Backbone
from bm25v.errors import ImageError, WrongUse
from bm25v.training.store import Halves, Store
from bm25v.training.views import views

_SHARD_PATCHES = 65_536


@dataclass(frozen=True)
class Extraction:
    """Which patches of which pictures: all that decides what is in a store."""

    paths: tuple[Path, ...]
    views: int
    patches: int | None  # random ones a view; None keeps all
    held_out: float  # share of the pictures
    seed: int

    def key(self, backbone: Backbone) -> str:
        """Return a hash of all that decides the patches."""
        digest = hashlib.sha256(backbone.fingerprint.encode())
        digest.update(repr((self.views, self.patches, self.held_out, self.seed)).encode())
        for path in self.paths:
            found = path.stat()
            digest.update(
                f"{path}\0{found.st_size}\0{found.st_mtime_ns}\0".encode(errors="replace")
            )
        return digest.hexdigest()[:16]

    def patches_per_picture(self, backbone: Backbone) -> int:
        """Return how many patches one picture gives."""
        all_patches = backbone.grid[0] * backbone.grid[1]
        return self.views * min(self.patches or all_patches, all_patches)

    def shards(self, backbone: Backbone) -> list[list[Path]]:
        """Return the pictures of each shard, in random order; the first shards are held out."""
        order = np.random.default_rng(self.seed).permutation(len(self.paths))
        size = max(1, _SHARD_PATCHES // self.patches_per_picture(backbone))
        size = min(size, max(1, len(order) // 20))
        shuffled = [self.paths[i] for i in order.tolist()]
        return [shuffled[start : start + size] for start in range(0, len(shuffled), size)]

    def n_held_out(self, n_shards: int) -> int:
        """Return how many of the first shards are kept for measuring."""
        return max(1, round(self.held_out * n_shards))


def extract(
    wish: Extraction,
    backbone: Backbone,
    store: Store,
    *,
    progress: Callable[[int, int], None],
    on_error: Callable[[Path, ImageError], None],
) -> None:
    """Fill a store with the patches that are wanted."""
    backbone.load()
    shards = wish.shards(backbone)
    if len(shards) < 2:
        raise WrongUse(f"{len(wish.paths)} pictures are too few to train on")
    done = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for number, paths in enumerate(shards):
            if number not in store.shards:
                seeds = [(wish.seed, number, place) for place in range(len(paths))]
                parts = pool.map(
                    lambda job: _patches(wish, backbone, *job), zip(paths, seeds, strict=True)
                )
                kept: list[Halves] = []
                for path, part in zip(paths, parts, strict=True):
                    if isinstance(part, ImageError):
                        on_error(path, part)
                    else:
                        kept.append(part)
                    done += 1
                    progress(done, len(wish.paths))
                empty = np.empty((0, backbone.patch_dim), dtype=np.float16)
                store.write(number, np.concatenate([empty, *kept]))
            else:
                done += len(paths)
                progress(done, len(wish.paths))


def _patches(
    wish: Extraction, backbone: Backbone, path: Path, seed: tuple[int, ...]
) -> Halves | ImageError:
    rng = np.random.default_rng(seed)
    try:
        image = images.decode(path, short_side=2 * backbone.input_size)
    except ImageError as error:
        return error
    parts = []
    for view in views(image, wish.views, rng):
        pixels = backbone.prepare(np.ascontiguousarray(view))
        patches_pd = backbone.forward(pixels).patches_pd
        if wish.patches is not None:
            chosen = rng.permutation(len(patches_pd))[: wish.patches]
            patches_pd = patches_pd[np.sort(chosen)]
        parts.append(patches_pd.astype(np.float16))
    return np.concatenate(parts)
