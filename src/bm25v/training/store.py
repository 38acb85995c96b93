"""Patch features on disk: raw half-precision shards, and a file that says which are whole."""

import json
import os
import shutil
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import VocabularyError, WrongUse

FORMAT = 1
WINDOW_BYTES = 512 * 2**20  # of patches that are shuffled together, and held in memory

_INDEX = "activations.json"

Halves = NDArray[np.float16]


@dataclass(frozen=True)
class Shard:
    """One whole file of patches."""

    file: str
    patches: int
    crc32: int


class Store:
    """The shards of one data set, told by a key; one that was interrupted goes on."""

    def __init__(self, folder: Path, *, key: str, dim: int) -> None:
        self.folder = folder
        self.dim = dim
        self._key = key
        self.shards: dict[int, Shard] = {}
        index = self._read_index()
        if index is not None and index.get("format", 0) > FORMAT:
            raise VocabularyError(f"{folder} was written by a newer bm25v: upgrade bm25v")
        self.is_of_another_run = index is not None and index.get("key") != key
        if index is not None and not self.is_of_another_run:
            self.shards = {int(n): Shard(**shard) for n, shard in index["shards"].items()}

    def _read_index(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads((self.folder / _INDEX).read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise VocabularyError(
                f"{self.folder / _INDEX} is damaged: delete the folder"
            ) from error
        return found

    def refuse_small_disk(self, n_bytes: int) -> None:
        """Refuse to start what the disk has no room for."""
        self.folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.folder).free
        if n_bytes > free:
            raise WrongUse(
                f"the patches need {n_bytes / 1e9:.1f} GB, {self.folder} has {free / 1e9:.1f} GB "
                "free: keep fewer with --patches, or name a larger disk with --activations"
            )

    def write(self, number: int, patches_nd: Halves) -> None:
        """Add a shard: whole or not at all."""
        content = np.ascontiguousarray(patches_nd, dtype=np.float16).tobytes()
        shard = Shard(f"shard-{number:05d}.f16", len(patches_nd), zlib.crc32(content))
        _replace(self.folder / shard.file, content)
        self.shards[number] = shard
        shards = {str(n): asdict(shard) for n, shard in sorted(self.shards.items())}
        index = {"format": FORMAT, "key": self._key, "dim": self.dim, "shards": shards}
        _replace(self.folder / _INDEX, json.dumps(index, indent=1).encode())

    def read(self, number: int) -> Halves:
        """Return a shard's patches."""
        shard = self.shards[number]
        path = self.folder / shard.file
        content = path.read_bytes() if path.is_file() else b""
        if zlib.crc32(content) != shard.crc32:
            raise VocabularyError(f"{path} is damaged: delete {self.folder} and start again")
        return np.frombuffer(content, dtype=np.float16).reshape(-1, self.dim)


class StoreWindows:
    """Some shards of a store, as many at a time as memory allows."""

    def __init__(self, store: Store, numbers: list[int], window_bytes: int = WINDOW_BYTES) -> None:
        self._store = store
        self._windows: list[list[int]] = []
        size = 0
        for number in numbers:
            n_bytes = store.shards[number].patches * store.dim * 2
            if not self._windows or size + n_bytes > window_bytes:
                self._windows.append([])
                size = 0
            self._windows[-1].append(number)
            size += n_bytes

    def __len__(self) -> int:
        return len(self._windows)

    def n_patches(self, window: int) -> int:
        """How many patches a window has."""
        return sum(self._store.shards[number].patches for number in self._windows[window])

    def read(self, window: int) -> Halves:
        """Return a window's patches."""
        return np.concatenate([self._store.read(number) for number in self._windows[window]])


def _replace(path: Path, content: bytes) -> None:
    scratch = path.with_name(path.name + ".part")
    with scratch.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
