"""Simulates power cuts: what is on the disk if the power fails between any two operations.

Only what was synced is sure to survive: the content of a synced file, the names in a synced
folder. What was not synced may survive or not, so every cut is tried in three ways: nothing
unsynced survived (deleted files are back); all names survived, but no unsynced content; all names
survived, and deleted files are back.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_OPERATIONS = ("fsync", "replace", "unlink", "rmdir")


class PowerCuts:
    """Watches a folder; calls `check` with the survivors before each operation on files."""

    def __init__(self, root: Path, scratch: Path, check: Callable[[Path, str], None]) -> None:
        self.n_cuts = 0
        self._root = root
        self._scratch = scratch
        self._check = check
        self._contents: dict[int, bytes] = {}  # of synced files, by inode
        self._listings: dict[int, dict[str, tuple[int, bool]]] = {}  # name → inode, is a folder
        self._kept: list[int] = []  # open, so that no inode is used twice
        self._is_checking = False
        for path in (root, *(path for path in root.rglob("*"))):
            self._record(path)

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Cut the power before every operation from now on."""
        for name in _OPERATIONS:
            patch.setattr(os, name, self._watched(name, getattr(os, name)))

    def close(self) -> None:
        """Close the files that were kept open."""
        for descriptor in self._kept:
            os.close(descriptor)

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def cut_then_call(*arguments: Any, **options: Any) -> Any:
            if self._is_checking:
                return call(*arguments, **options)
            self.cut(f"{name} {arguments}")
            result = call(*arguments, **options)
            if name == "fsync":
                self._record(Path(os.readlink(f"/proc/self/fd/{arguments[0]}")))
            return result

        return cut_then_call

    def _record(self, path: Path) -> None:
        """Remember the content of a file, or the names of a folder, as synced."""
        self._kept.append(os.open(path, os.O_RDONLY))
        inode = path.stat().st_ino
        if path.is_dir():
            entries = list(os.scandir(path))
            self._listings[inode] = {e.name: (e.inode(), e.is_dir()) for e in entries}
        else:
            self._contents[inode] = path.read_bytes()

    def cut(self, operation: str) -> None:
        """Check what would survive if the power failed before an operation."""
        self.n_cuts += 1
        self._is_checking = True
        for survive in (self._restore_synced, self._restore_names, self._restore_all_names):
            survivors = self._scratch / "survivors"
            survive(survivors, self._root)
            self._check(survivors, f"{survive.__name__} before {operation}")
            shutil.rmtree(survivors)
        self._is_checking = False

    def _restore_synced(self, target: Path, folder: Path) -> None:
        self._restore_listing(target, folder.stat().st_ino)

    def _restore_listing(self, target: Path, inode: int) -> None:
        target.mkdir()
        for name, (inner, is_folder) in self._listings.get(inode, {}).items():
            if is_folder:
                self._restore_listing(target / name, inner)
            else:
                (target / name).write_bytes(self._contents.get(inner, b""))

    def _restore_names(self, target: Path, folder: Path) -> None:
        target.mkdir()
        for entry in os.scandir(folder):
            if entry.is_dir():
                self._restore_names(target / entry.name, Path(entry.path))
            else:
                (target / entry.name).write_bytes(self._contents.get(entry.inode(), b""))

    def _restore_all_names(self, target: Path, folder: Path) -> None:
        self._restore_names(target, folder)
        self._restore_deleted(target, folder.stat().st_ino)

    def _restore_deleted(self, target: Path, inode: int) -> None:
        for name, (inner, is_folder) in self._listings.get(inode, {}).items():
            if is_folder and (target / name).is_dir():
                self._restore_deleted(target / name, inner)
            elif is_folder and not (target / name).exists():
                self._restore_listing(target / name, inner)
            elif not (target / name).exists():
                (target / name).write_bytes(self._contents.get(inner, b""))
