"""Arrays in files that are whole or not there: features of pictures, and what is made of them.

Archives of numpy carry a checksum of every array. One that does not match is removed, and what it
held is made again.
"""

import contextlib
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import EvaluationError

_log = logging.getLogger(__name__)

Arrays = Mapping[str, NDArray[Any]]


class Shard(NamedTuple):
    """The features of some pictures, each told by a key."""

    keys: list[bytes]
    patches_npd: NDArray[np.float16]
    dense_ne: NDArray[np.float32]


class FeatureStore:
    """The features of wanted pictures on disk, in shards; any number of processes may add some."""

    def __init__(self, folder: Path, wanted: Iterable[bytes]) -> None:
        self._folder = folder
        self.dense: dict[bytes, NDArray[np.float32]] = {}
        self._shards: dict[Path, list[bytes]] = {}
        keys_wanted = frozenset(wanted)
        for path in sorted(folder.glob("*.npz")):
            found = _read(path, ("keys",))
            keys = [] if found is None else [key.tobytes() for key in found["keys"]]
            if not keys_wanted.isdisjoint(keys):
                whole = _read(path, ("dense",))
                if whole is not None:
                    self._remember(path, keys, whole["dense"])

    def add(self, shard: Shard) -> None:
        """Keep the features of more pictures."""
        path = self._folder / f"{uuid.uuid4().hex}.npz"
        keys = np.frombuffer(b"".join(shard.keys), dtype=np.uint8).reshape(len(shard.keys), -1)
        _write(path, {"keys": keys, "patches": shard.patches_npd, "dense": shard.dense_ne})
        self._remember(path, shard.keys, shard.dense_ne)

    def shards(self, wanted: Iterable[bytes]) -> Iterable[Shard]:
        """Give the shards that have wanted pictures; damaged ones are forgotten instead."""
        missing = set(wanted)
        for path, keys in list(self._shards.items()):
            if missing.isdisjoint(keys):
                continue
            found = _read(path, ("patches", "dense"))
            if found is None:
                self._forget(path)
                continue
            missing.difference_update(keys)
            yield Shard(keys, found["patches"], found["dense"])

    def _remember(self, path: Path, keys: list[bytes], dense_ne: NDArray[np.float32]) -> None:
        self._shards[path] = keys
        self.dense.update(zip(keys, dense_ne, strict=True))

    def _forget(self, path: Path) -> None:
        for key in self._shards.pop(path):
            self.dense.pop(key, None)


def cached(path: Path, names: tuple[str, ...], make: Callable[[], Arrays]) -> Arrays:
    """Return the arrays of a file; if it is not there, or damaged, make them and write it."""
    found = _read(path, names)
    if found is None:
        found = make()
        _write(path, found)
    return found


def _read(path: Path, names: tuple[str, ...]) -> Arrays | None:
    try:
        with path.open("rb") as file, np.load(file) as archive:
            return {name: archive[name] for name in names}
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Exception as error:  # damaged files raise errors of all kinds
        _log.warning("%s is damaged (%s) and is made again", path, error)
        path.unlink(missing_ok=True)
        return None


def _write(path: Path, arrays: Arrays) -> None:
    scratch = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        scratch.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise EvaluationError(
            f"{path} cannot be written ({error.strerror}): name another folder with --cache"
        ) from error
