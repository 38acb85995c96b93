"""Finished cells of a grid, a line each in one file: a run that was stopped skips them."""

import json
import os
from pathlib import Path
from typing import Any

from bm25v.errors import EvaluationError


class Cells:
    """What was measured before, by key; torn lines, as a crash leaves them, do not count.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "cells.jsonl"
    >>> Cells(path).add("k1", {"R@1": 0.5})
    >>> Cells(path).get("k1"), Cells(path).get("k2")
    ({'R@1': 0.5}, None)
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, dict[str, Any]] = {}
        content = path.read_bytes() if path.is_file() else b""
        self._is_torn = bool(content) and not content.endswith(b"\n")
        for line in content.split(b"\n"):
            try:
                cell = json.loads(line)
                self._found[cell["key"]] = cell["found"]
            except (ValueError, TypeError, KeyError):
                continue

    def get(self, key: str) -> dict[str, Any] | None:
        """Return what was measured, or None."""
        return self._found.get(key)

    def add(self, key: str, found: dict[str, Any]) -> None:
        """Keep what was measured: one write at the end of the file."""
        line = json.dumps({"key": key, "found": found}).encode() + b"\n"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.write(b"\n" + line if self._is_torn else line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise EvaluationError(
                f"{self._path} cannot be written ({error.strerror}): "
                "name another folder with --cache"
            ) from error
        self._is_torn = False
        self._found[key] = found
