"""Extracts the patch features of images to train on, in shards; the first ones are held out.

`extract_patches` keeps them in a store on disk, of which `PatchWindows` reads as many at a time as
memory allows; `StreamedPatches` extracts them again whenever they are read. Each image is shown in
several views. Arrays are in numpy archives with checksums. No torch.
"""

import hashlib
import itertools
import json
import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bm25v import images
from bm25v.backbones import Backbone
from bm25v.backbones.protocol import Floats
from bm25v.errors import ImageError, InvalidOption, VocabularyError
from bm25v.files import replace_file, replacing_file
from bm25v.progress import Progress, no_progress
from bm25v.schema import TABLE, SchemaError, check_values, parse_object, text, whole
from bm25v.threads import available_cpus

VIEWS_ABOUT = (
    "whole, mirrored, then random parts of 25 to 70 % of the area, mirrored half of the time"
)

FORMAT = 1  # of a PatchStore
WINDOW_BYTES = 512 * 2**20  # of patches that are shuffled together, and held in memory

_INDEX = "activations.json"
_SHARD_PATCHES = 65_536

Arrays = Mapping[str, NDArray[Any]]
Halves = NDArray[np.float16]
OnError = Callable[[Path, ImageError], None]
Seed = tuple[int, ...]
Pixels = NDArray[np.uint8]
# A view of an image, as the backbone takes it, and which of its patches are kept.
PreparedView = tuple[Floats, slice | NDArray[np.int64]]


class DamagedArrays(ValueError):
    """An archive whose contents do not match its checksums, or that cannot be read."""


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Write arrays as a file that is complete or not there.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "shard.npz"
    >>> write_arrays(path, {"keys": np.arange(3)})
    >>> read_arrays(path, "keys")
    {'keys': array([0, 1, 2])}
    """
    with replacing_file(path) as file:
        np.savez(file, allow_pickle=False, **arrays)


def read_arrays(path: Path, *names: str) -> dict[str, NDArray[Any]]:
    """Return arrays of a file; raise `DamagedArrays`, or `FileNotFoundError` if it is missing."""
    try:
        with path.open("rb") as file, np.load(file) as archive:
            return {name: archive[name] for name in names}
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(str(path)) from error
    except Exception as error:  # damaged files raise errors of many types
        raise DamagedArrays(f"{path} is damaged ({error})") from error


@dataclass(frozen=True)
class Extraction:
    """Which patches of which images: everything that decides the contents of a store."""

    backbone: Backbone
    paths: tuple[Path, ...]
    views: int
    patches: int | None  # random patches per view; None keeps all
    held_out: float  # share of the images
    seed: int

    def key(self) -> str:
        """Return a hash of everything that decides the patches."""
        digest = hashlib.sha256(self.backbone.fingerprint.encode())
        digest.update(repr((self.views, self.patches, self.held_out, self.seed)).encode())
        for path in self.paths:
            status = path.stat()
            digest.update(
                f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode(errors="replace")
            )
        return digest.hexdigest()[:16]

    @property
    def patches_per_image(self) -> int:
        all_patches = math.prod(self.backbone.grid)
        return self.views * min(self.patches or all_patches, all_patches)

    def shards(self) -> list[list[Path]]:
        """Return the images of each shard, in random order; the first shards are held out."""
        order = np.random.default_rng(self.seed).permutation(len(self.paths))
        size = max(1, _SHARD_PATCHES // self.patches_per_image)
        size = min(size, max(1, len(order) // 20))
        shuffled = [self.paths[i] for i in order.tolist()]
        shards = [shuffled[start : start + size] for start in range(0, len(shuffled), size)]
        if len(shards) < 2:
            raise InvalidOption(f"{len(self.paths)} images are too few to train on: give more")
        return shards

    def whole_images(self, patches_nd: Halves) -> Halves:
        """Return a shard's patches of first views: whole images, as a search sees them."""
        per_view = self.patches_per_image // self.views
        patches_nvpd = patches_nd.reshape(-1, self.views, per_view, patches_nd.shape[1])
        return patches_nvpd[:, 0].reshape(-1, patches_nd.shape[1])

    def n_held_out(self, n_shards: int) -> int:
        """Return how many of the first shards are held out to measure the result."""
        return max(1, round(self.held_out * n_shards))


def find_training_images(folder: Path) -> tuple[Path, ...]:
    """Return the images of a folder, always in the same order."""
    paths = tuple(sorted(images.find_images(folder)))
    if not paths:
        raise InvalidOption(f"no images in {folder}")
    return paths


class PatchStore:
    """The patches of a training run, in numbered shards; an interrupted extraction can continue.

    `key` stands for everything that decides the patches. A folder of another key has no shards for
    this run; `clear` empties it.
    """

    def __init__(self, folder: Path, *, key: str, dim: int) -> None:
        self.folder = folder
        self.dim = dim
        self._key = key
        self.shards: dict[int, int] = {}  # the number of patches of each
        self.has_other_patches = False
        path = folder / _INDEX
        try:
            index = parse_object(path.read_bytes())
            check_values(index, {"format": whole(1), "key": text(), "shards": TABLE})
            if index["format"] > FORMAT:
                raise VocabularyError(f"{folder} was written by a newer bm25v: upgrade bm25v")
            shards = index["shards"]
            check_values(shards, dict.fromkeys(shards, whole(0)), within="shards.")
            if not all(re.fullmatch("[0-9]{1,9}", number) for number in shards):
                raise SchemaError("shards are not numbered")
        except FileNotFoundError:
            return
        except SchemaError as error:
            raise VocabularyError(f"{path} is damaged ({error}): delete the folder") from error
        self.has_other_patches = index["key"] != key
        if not self.has_other_patches:
            self.shards = {int(number): n_patches for number, n_patches in shards.items()}

    @property
    def n_bytes(self) -> int:
        return sum(self.shards.values()) * self.dim * 2

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.shards, self.has_other_patches = {}, False

    def write(self, number: int, patches_nd: Halves) -> None:
        write_arrays(self._path(number), {"patches": patches_nd})
        self.shards[number] = len(patches_nd)
        index = {"format": FORMAT, "key": self._key, "dim": self.dim, "shards": self.shards}
        replace_file(self.folder / _INDEX, json.dumps(index, indent=1))

    def read(self, number: int) -> Halves:
        try:
            return read_arrays(self._path(number), "patches")["patches"]
        except (DamagedArrays, FileNotFoundError) as error:
            raise VocabularyError(
                f"{self._path(number)} is damaged or missing: delete {self.folder} and start again"
            ) from error

    def _path(self, number: int) -> Path:
        return self.folder / f"shard-{number:05d}.npz"


class PatchWindows:
    """Some shards of a store, as many at a time as memory allows."""

    def __init__(
        self, store: PatchStore, numbers: list[int], window_bytes: int = WINDOW_BYTES
    ) -> None:
        self._store = store
        self._windows: list[list[int]] = []
        size = 0
        for number in numbers:
            n_bytes = store.shards[number] * store.dim * 2
            if not self._windows or size + n_bytes > window_bytes:
                self._windows.append([])
                size = 0
            self._windows[-1].append(number)
            size += n_bytes

    def __len__(self) -> int:
        return len(self._windows)

    def n_patches(self, window: int) -> int:
        return sum(self._store.shards[number] for number in self._windows[window])

    def read(self, window: int) -> Halves:
        return np.concatenate([self._store.read(number) for number in self._windows[window]])


class StreamedPatches:
    """Shards that are extracted again whenever they are read, for more than a disk can hold."""

    def __init__(self, extraction: Extraction, numbers: list[int], on_error: OnError) -> None:
        self._extraction = extraction
        self._numbers = numbers
        self._on_error = on_error
        self._shards = extraction.shards()

    def __len__(self) -> int:
        return len(self._numbers)

    def n_patches(self, window: int) -> int:
        """Return the number of patches of a window, unreadable images included."""
        return len(self._shards[self._numbers[window]]) * self._extraction.patches_per_image

    def read(self, window: int) -> Halves:
        """Return a window's patches; patches of other images replace those of unreadable ones."""
        number = self._numbers[window]
        paths = self._shards[number]
        parts = _extract_shard(self._extraction, number, paths, self._on_error)
        patches_nd = np.concatenate(list(parts))
        if len(patches_nd) == 0:
            raise InvalidOption(
                f"no image of shard {number} can be read, for example {paths[0]}: "
                "remove unreadable images"
            )
        return np.resize(patches_nd, (self.n_patches(window), patches_nd.shape[1]))


def extract_patches(
    extraction: Extraction,
    store: PatchStore,
    *,
    progress: Progress = no_progress,
    on_error: OnError,
) -> None:
    """Fill a store with the patches of all images; shards that it has already are kept."""
    done = 0
    for number, paths in enumerate(extraction.shards()):
        if number not in store.shards:
            parts: list[Halves] = []
            for part in _extract_shard(extraction, number, paths, on_error):
                parts.append(part)
                progress("extracting patches", done + len(parts), len(extraction.paths))
            store.write(number, np.concatenate(parts))
        done += len(paths)


@contextmanager
def worker_pool() -> Iterator[ThreadPoolExecutor]:
    """Yield a pool with one thread per CPU; an interruption cancels what has not started."""
    pool = ThreadPoolExecutor(available_cpus())
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def image_views(image_hwc: Pixels, n: int, rng: np.random.Generator) -> Iterator[Pixels]:
    """Yield `n` views of an image: whole, mirrored, then random parts.

    >>> image = np.zeros((60, 80, 3), dtype=np.uint8)
    >>> [view.shape for view in image_views(image, 2, np.random.default_rng(0))]
    [(60, 80, 3), (60, 80, 3)]
    """
    yield from (image_hwc, image_hwc[:, ::-1])[:n]
    height, width = image_hwc.shape[:2]
    for _ in range(n - 2):
        side = np.sqrt(rng.uniform(0.25, 0.7))
        h, w = max(1, round(height * side)), max(1, round(width * side))
        y, x = rng.integers(height - h + 1), rng.integers(width - w + 1)
        part = image_hwc[y : y + h, x : x + w]
        yield part[:, ::-1] if rng.random() < 0.5 else part


def _extract_shard(
    extraction: Extraction, number: int, paths: list[Path], on_error: OnError
) -> Iterator[Halves]:
    """Yield the patches of each image of a shard; an unreadable one has none."""
    backbone = extraction.backbone
    backbone.load_weights()
    seeded = [(path, (extraction.seed, number, i)) for i, path in enumerate(paths)]
    size = max(1, backbone.batch_size // extraction.views)
    chunks = [seeded[start : start + size] for start in range(0, len(seeded), size)]
    with worker_pool() as pool:
        extracted = pool.map(lambda chunk: _extract_chunk(extraction, chunk), chunks)
        for path, part in zip(paths, itertools.chain.from_iterable(extracted), strict=True):
            if isinstance(part, ImageError):
                on_error(path, part)
                part = np.empty((0, backbone.patch_dim), dtype=np.float16)
            yield part


def _extract_chunk(
    extraction: Extraction, seeded: list[tuple[Path, Seed]]
) -> list[Halves | ImageError]:
    """Return the patches of some images, whose views go through the backbone together."""
    prepared = [_prepare_views(extraction, path, seed) for path, seed in seeded]
    pixels = [view for views in prepared if isinstance(views, list) for view, _ in views]
    features = iter(extraction.backbone.forward_batch(pixels))

    def keep_patches(views: list[PreparedView]) -> Halves:
        return np.concatenate(
            [next(features).patches_pd[rows].astype(np.float16) for _, rows in views]
        )

    return [views if isinstance(views, ImageError) else keep_patches(views) for views in prepared]


def _prepare_views(
    extraction: Extraction, path: Path, seed: Seed
) -> list[PreparedView] | ImageError:
    backbone = extraction.backbone
    rng = np.random.default_rng(seed)
    try:
        image_hwc = images.decode_image(path, short_side=2 * backbone.input_size)
    except ImageError as error:
        return error
    views: list[PreparedView] = []
    n_patches = math.prod(backbone.grid)
    for view_hwc in image_views(image_hwc, extraction.views, rng):
        rows: slice | NDArray[np.int64] = slice(None)
        if extraction.patches is not None:
            rows = np.sort(rng.permutation(n_patches)[: extraction.patches])
        views.append((backbone.prepare_image(np.ascontiguousarray(view_hwc)), rows))
    return views
