"""Pictures become shards of patches, side by side: kept in a store, or made anew each time."""

import hashlib
import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v import images
from bm25v.backbones import Backbone, Features
from bm25v.backbones.protocol import Floats
from bm25v.errors import ImageError, WrongUse
from bm25v.training.store import Halves, Store
from bm25v.training.views import views

_SHARD_PATCHES = 65_536

OnError = Callable[[Path, ImageError], None]
Seed = tuple[int, ...]


@dataclass(frozen=True)
class Extraction:
    """Which patches of which pictures: all that decides what is in a store."""

    paths: tuple[Path, ...]
    views: int
    patches: int | None  # random ones a view; None keeps all
    held_out: float  # share of the pictures
    seed: int
    draw: int = 0  # another number draws other random parts of the same pictures

    def key(self, backbone: Backbone) -> str:
        """Return a hash of all that decides the patches."""
        digest = hashlib.sha256(backbone.fingerprint.encode())
        settings = (self.views, self.patches, self.held_out, self.seed, *self._other_draw)
        digest.update(repr(settings).encode())
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
        shards = [shuffled[start : start + size] for start in range(0, len(shuffled), size)]
        if len(shards) < 2:
            raise WrongUse(f"{len(self.paths)} pictures are too few to train on")
        return shards

    def of_whole_pictures(self, patches_nd: Halves, backbone: Backbone) -> Halves:
        """Return those of a shard's patches that come from first views: what a search will see."""
        per_view = self.patches_per_picture(backbone) // self.views
        patches_nvpd = patches_nd.reshape(-1, self.views, per_view, patches_nd.shape[1])
        return patches_nvpd[:, 0].reshape(-1, patches_nd.shape[1])

    def n_held_out(self, n_shards: int) -> int:
        """Return how many of the first shards are kept for measuring."""
        return max(1, round(self.held_out * n_shards))

    def random_seed(self, shard: int, place: int) -> Seed:
        """Return what decides the random parts of the picture at a place of a shard."""
        return (self.seed, shard, place, *self._other_draw)

    @property
    def _other_draw(self) -> tuple[int, ...]:
        return (self.draw,) if self.draw else ()


def pictures_in(folder: Path) -> tuple[Path, ...]:
    """Return the pictures of a folder, in an order that stays."""
    paths = tuple(sorted(images.find_images(folder)))
    if not paths:
        raise WrongUse(f"no pictures in {folder}")
    return paths


def extract(
    options: Extraction,
    backbone: Backbone,
    store: Store,
    *,
    progress: Callable[[int, int], None],
    on_error: OnError,
) -> None:
    """Fill a store with the patches that are wanted."""
    done = 0
    for number, paths in enumerate(options.shards(backbone)):
        if number not in store.shards:
            parts: list[Halves] = []
            for part in _shard_parts(options, backbone, number, paths, on_error):
                parts.append(part)
                progress(done + len(parts), len(options.paths))
            store.write(number, np.concatenate(parts))
        done += len(paths)


def _shard_parts(
    options: Extraction, backbone: Backbone, number: int, paths: list[Path], on_error: OnError
) -> Iterator[Halves]:
    """Give the patches of each picture of a shard; an unreadable one gives none."""
    backbone.load_weights()
    seeded = [(path, options.random_seed(number, place)) for place, path in enumerate(paths)]
    size = max(1, backbone.batch_size // options.views)
    chunks = [seeded[start : start + size] for start in range(0, len(seeded), size)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda chunk: _patches(options, backbone, chunk), chunks)
        for path, part in zip(paths, itertools.chain.from_iterable(found), strict=True):
            if isinstance(part, ImageError):
                on_error(path, part)
                part = np.empty((0, backbone.patch_dim), dtype=np.float16)
            yield part


class Streamed:
    """Shards made anew whenever they are read: for more patches than a disk can hold."""

    def __init__(
        self, options: Extraction, backbone: Backbone, numbers: list[int], on_error: OnError
    ) -> None:
        self._wish = options
        self._backbone = backbone
        self._numbers = numbers
        self._on_error = on_error
        self._shards = options.shards(backbone)
        self._per_picture = options.patches_per_picture(backbone)

    def __len__(self) -> int:
        return len(self._numbers)

    def n_pictures(self, window: int) -> int:
        """How many pictures a window has, unreadable ones included."""
        return len(self._shards[self._numbers[window]])

    def n_patches(self, window: int) -> int:
        """How many patches a window has, unreadable pictures included."""
        return self.n_pictures(window) * self._per_picture

    def read(self, window: int) -> Halves:
        """Return a window's patches; where pictures are unreadable, others are seen twice."""
        number = self._numbers[window]
        paths = self._shards[number]
        parts = _shard_parts(self._wish, self._backbone, number, paths, self._on_error)
        patches_nd = np.concatenate(list(parts))
        if len(patches_nd) == 0:
            raise WrongUse(f"no picture of part {number} can be read: look at the folder")
        return np.resize(patches_nd, (self.n_patches(window), self._backbone.patch_dim))


def streamed(
    options: Extraction, backbone: Backbone, on_error: OnError
) -> tuple[Streamed, list[Halves]]:
    """Return patches to train on, made as they are read, and those of whole held-out pictures."""
    numbers = list(range(len(options.shards(backbone))))
    n_held_out = options.n_held_out(len(numbers))
    held_out = Streamed(options, backbone, numbers[:n_held_out], on_error)
    whole = [options.of_whole_pictures(held_out.read(i), backbone) for i in range(n_held_out)]
    return Streamed(options, backbone, numbers[n_held_out:], on_error), whole


class _View(NamedTuple):
    """A view of a picture, ready for the backbone, and which of its patches are wanted."""

    pixels: Floats
    rows: slice | NDArray[np.int64]


def _patches(
    options: Extraction, backbone: Backbone, pictures: list[tuple[Path, Seed]]
) -> list[Halves | ImageError]:
    """Return the patches of some pictures, all of whose views go through the backbone at once."""
    shown = [_views(options, backbone, path, seed) for path, seed in pictures]
    pixels = [view.pixels for one in shown if isinstance(one, list) for view in one]
    features = iter(backbone.forward_batch(pixels))
    return [one if isinstance(one, ImageError) else _wanted(one, features) for one in shown]


def _wanted(views: list[_View], features: Iterator[Features]) -> Halves:
    """Take the wanted patches out of the features of a picture's views, which come next."""
    parts = [next(features).patches_pd[view.rows].astype(np.float16) for view in views]
    return np.concatenate(parts)


def _views(
    options: Extraction, backbone: Backbone, path: Path, seed: Seed
) -> list[_View] | ImageError:
    rng = np.random.default_rng(seed)
    try:
        image = images.decode_image(path, short_side=2 * backbone.input_size)
    except ImageError as error:
        return error
    found = []
    for view in views(image, options.views, rng):
        rows: slice | NDArray[np.int64] = slice(None)
        if options.patches is not None:
            rows = np.sort(rng.permutation(backbone.grid[0] * backbone.grid[1])[: options.patches])
        found.append(_View(backbone.prepare_image(np.ascontiguousarray(view)), rows))
    return found
