"""Features on disk, for training and for research, in numpy archives with checksums. No torch.

A training run reads numbered shards of patches, as many at a time as memory allows (`PatchStore`);
research looks up images of many data sets by their content (`ImageFeatureStore`).
"""

import json
import logging
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import EvaluationError, StorageFull, VocabularyError
from bm25v.files import make_folder, replace_file, replacing_file
from bm25v.schema import TABLE, SchemaError, check_values, parse_object, text, whole

FORMAT = 1  # of a PatchStore
WINDOW_BYTES = 512 * 2**20  # of patches that are shuffled together, and held in memory

_INDEX = "activations.json"

_log = logging.getLogger(__name__)

Arrays = Mapping[str, NDArray[Any]]
Halves = NDArray[np.float16]


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


class ImageFeatures(NamedTuple):
    """The features of some images, each with a key made of its content."""

    keys: list[bytes]
    patches_npd: Halves
    dense_ne: NDArray[np.float32]


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

    def add(self, features: ImageFeatures) -> None:
        path = self._folder / f"{uuid.uuid4().hex}.npz"
        keys = np.frombuffer(b"".join(features.keys), dtype=np.uint8)
        arrays: Arrays = {
            "keys": keys.reshape(len(features.keys), -1),
            "patches": features.patches_npd,
            "dense": features.dense_ne,
        }
        _write_to_cache(path, arrays)
        self._remember(path, features.keys, features.dense_ne)

    def shards(self, needed: Iterable[bytes]) -> Iterable[ImageFeatures]:
        """Yield the shards that have needed images; damaged shards are deleted instead."""
        missing = set(needed)
        for path, keys in list(self._shards.items()):
            if missing.isdisjoint(keys):
                continue
            arrays = _read_or_delete(path, "patches", "dense")
            if arrays is None:
                for key in self._shards.pop(path):
                    self.dense.pop(key, None)
                continue
            missing.difference_update(keys)
            yield ImageFeatures(keys, arrays["patches"], arrays["dense"])

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
