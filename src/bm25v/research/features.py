"""Features of a data set's images, extracted once, whatever is measured afterwards.

They are cached by the image's content and the backbone, so data sets share them, files may be
moved, and an interrupted run continues where it stopped.
"""

import hashlib
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v import images
from bm25v.backbones import Backbone, Features
from bm25v.backbones.protocol import Floats
from bm25v.dense import normalise
from bm25v.errors import EvaluationError, ImageError, InvalidOption, StorageFull
from bm25v.files import make_folder
from bm25v.privacy import cache_folder
from bm25v.progress import Progress, no_progress
from bm25v.research.dataset import Dataset, Item, PixelBox, drop_unreadable
from bm25v.training.patches import (
    Arrays,
    DamagedArrays,
    Halves,
    read_arrays,
    worker_pool,
    write_arrays,
)
from bm25v.vocabulary import Vocabulary

_SHARD_BYTES = 64_000_000
_SHARD_IMAGES = 256  # at most: a crash loses no more than these

_log = logging.getLogger(__name__)

PatchBatch = tuple[NDArray[np.int64], NDArray[np.float16]]  # images, and their patches_npd


class ImageFeatureStore:
    """Features of images by key, in shards; any number of processes may add some.

    Only shards with at least one of the `needed` keys are opened.
    """

    def __init__(self, folder: Path, needed: Iterable[bytes]) -> None:
        self._folder = folder
        self.dense: dict[bytes, NDArray[np.float32]] = {}
        self._shards: dict[Path, list[bytes]] = {}
        needed_keys = frozenset(needed)
        for path in sorted(folder.glob("*.npz")):
            index = _read_or_delete(path, "keys")
            keys = [] if index is None else [key.tobytes() for key in index["keys"]]
            if needed_keys.isdisjoint(keys):
                continue
            arrays = _read_or_delete(path, "dense")
            if arrays is not None:
                self._remember(path, keys, arrays["dense"])

    def add(self, features: Mapping[bytes, Features]) -> None:
        path, keys = self._folder / f"{uuid.uuid4().hex}.npz", list(features)
        patches = [image.patches_pd.astype(np.float16) for image in features.values()]
        dense_ne = np.stack([image.dense_e for image in features.values()])
        dense_ne = normalise(dense_ne.astype(np.float32))
        key_bytes = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), -1)
        arrays: Arrays = {"keys": key_bytes, "patches": np.stack(patches), "dense": dense_ne}
        _write_to_cache(path, arrays)
        self._remember(path, keys, dense_ne)

    def take_patches(self, missing: set[bytes]) -> Iterator[tuple[list[bytes], Halves]]:
        """Yield keys of `missing`, which are removed from it, and their images' patches.

        Damaged shards are deleted instead.
        """
        for path, keys in list(self._shards.items()):
            if missing.isdisjoint(keys):
                continue
            arrays = _read_or_delete(path, "patches")
            if arrays is None:
                for key in self._shards.pop(path):
                    self.dense.pop(key, None)
                continue
            rows = [row for row, key in enumerate(keys) if key in missing]
            read = [keys[row] for row in rows]
            missing.difference_update(read)
            yield read, arrays["patches"][rows]

    def _remember(self, path: Path, keys: list[bytes], dense_ne: NDArray[np.float32]) -> None:
        self._shards[path] = keys
        self.dense.update(zip(keys, dense_ne, strict=True))


def load_or_compute(path: Path, names: tuple[str, ...], compute: Callable[[], Arrays]) -> Arrays:
    """Return the arrays of a file; if it is missing or damaged, compute them and write it."""
    arrays: Arrays | None = _read_or_delete(path, *names)
    if arrays is None:
        arrays = compute()
        _write_to_cache(path, arrays)
    return arrays


def _read_or_delete(path: Path, *names: str) -> dict[str, NDArray[Any]] | None:
    """Return arrays of a file; a damaged file is deleted, because it can be computed again."""
    try:
        return read_arrays(path, *names)
    except FileNotFoundError:
        return None
    except DamagedArrays as error:
        _log.warning("%s: it will be computed again", error)
        path.unlink(missing_ok=True)
        return None


def _write_to_cache(path: Path, arrays: Arrays) -> None:
    try:
        make_folder(path.parent)
        write_arrays(path, arrays)
    except (OSError, StorageFull) as error:
        reason = error.strerror if isinstance(error, OSError) else "the disk is full"
        raise EvaluationError(
            f"{path} cannot be written ({reason}): name another folder with --cache"
        ) from error


class ImagePart(NamedTuple):
    """An image, or the part of it that is a query."""

    path: Path
    box: PixelBox | None

    @classmethod
    def of_item(cls, item: Item) -> "ImagePart":
        return cls(item.path, item.truth.box if item.truth else None)


@dataclass(frozen=True)
class DatasetFeatures:
    """A data set and the features of its U distinct images; copies share their features."""

    dataset: Dataset
    cache: Path
    backbone: str  # its fingerprint
    key: str  # a hash of everything that decides the features
    gallery_index_n: NDArray[np.int64]  # which of the U features each image of the gallery has
    query_index_q: NDArray[np.int64]  # … and each query
    dense_ue: NDArray[np.float32]
    patches: Callable[[], Iterator[PatchBatch]] = field(repr=False)  # of all, in no fixed order

    def __len__(self) -> int:
        return len(self.dense_ue)

    def map_patches(
        self,
        compute: Callable[[NDArray[np.float16]], Sequence[NDArray[Any]]],
        report: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[NDArray[Any]]:
        """Return the arrays that `compute` makes of patches_npd, for all U images in their order.

        `report` gets the number of images that are done, and of all.
        """
        arrays: list[NDArray[Any]] = []
        done = 0
        for rows, patches_npd in self.patches():
            parts = compute(patches_npd)
            arrays = arrays or [np.empty((len(self), *p.shape[1:]), p.dtype) for p in parts]
            for array_u, part_n in zip(arrays, parts, strict=True):
                array_u[rows] = part_n
            done += len(rows)
            report(done, len(self))
        return arrays


def extract_features(
    dataset: Dataset | DatasetFeatures,
    vocabulary: Vocabulary,
    *,
    cache: Path | None = None,
    progress: Progress = no_progress,
) -> DatasetFeatures:
    """Return the features of a data set's images; unreadable images are left out.

    Only images whose features are not in the cache go through the backbone. `DatasetFeatures` are
    returned unchanged, without reading a file.
    """
    if isinstance(dataset, DatasetFeatures):
        if dataset.backbone != vocabulary.features_fingerprint:
            raise InvalidOption(
                f"the features of {dataset.dataset.title} come from another backbone than "
                f"{vocabulary.backbone_name}: pass the data set itself"
            )
        return dataset
    cache = cache or cache_folder() / "evaluation"
    parts = list(dict.fromkeys(map(ImagePart.of_item, dataset.gallery + dataset.queries)))
    paths = list(dict.fromkeys(part.path for part in parts))
    hashes: dict[Path, bytes | str] = {}  # of each file, or why it cannot be used
    with worker_pool() as pool:
        for path, outcome in zip(paths, pool.map(hash_file, paths), strict=True):
            hashes[path] = outcome
            progress("reading files", len(hashes), len(paths))
    keys = {
        part: _part_key(file_hash, part)
        for part in parts
        if isinstance(file_hash := hashes[part.path], bytes)
    }
    store = ImageFeatureStore(cache / "features" / vocabulary.features_fingerprint, keys.values())
    errors = _fill_store(store, keys, vocabulary, progress)
    hashes |= {part.path: errors[key] for part, key in keys.items() if key in errors}
    readable = drop_unreadable(dataset, hashes)
    gallery_keys = [keys[ImagePart.of_item(item)] for item in readable.gallery]
    query_keys = [keys[ImagePart.of_item(item)] for item in readable.queries]
    index = {key: u for u, key in enumerate(dict.fromkeys(gallery_keys + query_keys))}
    part_of_key = {keys[part]: part for part in parts if keys.get(part) in index}

    def patches() -> Iterator[PatchBatch]:
        missing = set(index)
        while missing:  # once more if a shard was damaged
            missing_parts = {part_of_key[key]: key for key in missing}
            for key, error in _fill_store(store, missing_parts, vocabulary, progress).items():
                raise EvaluationError(f"{part_of_key[key].path} can no longer be read: {error}")
            for read, patches_npd in store.take_patches(missing):
                yield np.array([index[key] for key in read]), patches_npd

    return DatasetFeatures(
        dataset=readable,
        cache=cache,
        backbone=vocabulary.features_fingerprint,
        key=_hash(vocabulary.features_fingerprint.encode(), *index).hex(),
        gallery_index_n=np.array([index[key] for key in gallery_keys], dtype=np.int64),
        query_index_q=np.array([index[key] for key in query_keys], dtype=np.int64),
        dense_ue=np.stack([store.dense[key] for key in index]),
        patches=patches,
    )


def hash_file(path: Path) -> bytes | str:
    """Return the hash of an image's content, or why it cannot be read."""
    try:
        with images.open_stream(path) as stream:
            return _hash(stream.read())
    except (ImageError, OSError) as error:
        return str(error)


def _part_key(file_hash: bytes, part: ImagePart) -> bytes:
    return _hash(file_hash, repr(tuple(part.box)).encode()) if part.box else file_hash


def _hash(*parts: bytes) -> bytes:
    return hashlib.blake2b(b"\0".join(parts), digest_size=16).digest()


def _fill_store(
    store: ImageFeatureStore,
    keys: Mapping[ImagePart, bytes],
    vocabulary: Vocabulary,
    progress: Progress,
) -> dict[bytes, str]:
    """Extract the features that the store lacks; return the reasons for those that failed."""
    unknown = {key: part for part, key in keys.items() if key not in store.dense}
    if not unknown:
        return {}
    backbone = vocabulary.backbone
    backbone.load_weights()
    n_patches = backbone.grid[0] * backbone.grid[1]
    image_bytes = 2 * n_patches * backbone.patch_dim
    shard_size = max(1, min(_SHARD_IMAGES, _SHARD_BYTES // image_bytes))
    keys_and_parts, size = list(unknown.items()), backbone.batch_size
    batches = [keys_and_parts[i : i + size] for i in range(0, len(keys_and_parts), size)]
    errors: dict[bytes, str] = {}
    waiting: dict[bytes, Features] = {}
    try:
        with worker_pool() as pool:
            outcomes = chain.from_iterable(pool.map(partial(_extract, backbone=backbone), batches))
            for done, (key, outcome) in enumerate(zip(unknown, outcomes, strict=True), start=1):
                progress("features", done, len(unknown))
                if isinstance(outcome, str):
                    errors[key] = outcome
                    continue
                waiting[key] = outcome
                if len(waiting) == shard_size:
                    store.add(waiting)
                    waiting = {}
    finally:  # an interrupted run keeps what it has extracted
        if waiting:
            store.add(waiting)
    return errors


def _extract(batch: Sequence[tuple[bytes, ImagePart]], backbone: Backbone) -> list[Features | str]:
    """Return the features of each image, or why there are none."""
    inputs = [_prepare(key, part, backbone) for key, part in batch]
    readable = [pixels for pixels in inputs if not isinstance(pixels, str)]
    features = iter(backbone.forward_batch(readable))
    return [error if isinstance(error, str) else next(features) for error in inputs]


def _prepare(key: bytes, part: ImagePart, backbone: Backbone) -> Floats | str:
    try:
        with images.open_stream(part.path) as stream:
            data = stream.read()
        if part.box is None:
            pixels = images.decode_image(data, short_side=2 * backbone.input_size)
        else:
            pixels = _crop(images.decode_image(data), part.box)
    except (ImageError, OSError) as error:
        return str(error)
    if key != _part_key(_hash(data), part):
        return "changed while it was read: run the command again"
    return backbone.prepare_image(pixels)


def _crop(pixels_hwc: NDArray[np.uint8], box: PixelBox) -> NDArray[np.uint8]:
    height, width, _ = pixels_hwc.shape
    left, top = max(0, round(box.left)), max(0, round(box.top))
    right, bottom = min(width, round(box.right)), min(height, round(box.bottom))
    if left >= right or top >= bottom:
        raise ImageError(
            f"the box {tuple(box)} lies outside the image of {width} × {height} pixels"
        )
    return np.ascontiguousarray(pixels_hwc[top:bottom, left:right])
