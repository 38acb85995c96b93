"""Keeps a gallery current with folders while it is served.

A folder is scanned at the start, after changes, and every ten minutes, because some file systems
report no changes. One that is missing or has no images is left as it is in the gallery: a disk may
not be mounted. Whatever goes wrong is one line in the log, and is tried again.
"""

import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import watchfiles

from bm25v.display import one_line
from bm25v.errors import Bm25vError, GalleryLocked
from bm25v.gallery import Gallery
from bm25v.images.folders import why_skipped
from bm25v.threads import available_cpus

STOP_SECONDS = 10.0  # for the image that is being read
RESCAN_WITHOUT_EVENTS = 60.0  # where the system reports no changes

_QUIET = 0.5  # seconds without a change before a scan,
_LONGEST_WAIT = 10.0  # unless changes go on for so long
_TICK = 0.5  # seconds between looks at what is due
_RETRY = 3.0  # after an error, or a file that is not complete yet
_RESCAN = 600.0
_FRESH = 60.0  # a file that changed in the last seconds may not be complete yet

_log = logging.getLogger(__name__)


class _Stopped(Exception):
    """The server stops: a scan is abandoned, and what it has committed is kept."""


@dataclass
class WatchedFolder:
    """A folder, what the last of its scans since the start was like, and when the next one is due.

    `seconds` is how long it took, `pending` how many images are still to be read or read again,
    and `error` the reason if it failed.
    """

    path: str
    scans: int = 0
    last_scan: datetime | None = None
    seconds: float = 0.0
    pending: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)  # reasons by path
    error: str | None = None
    due: float = 0.0  # in the time of time.monotonic
    identity: tuple[int, int] | None = None

    def identify(self) -> tuple[int, int] | None:
        """Return what tells this folder from another one at its path; None if there is none."""
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def to_dict(self) -> dict[str, Any]:
        return {
            "folder": self.path,
            "scans": self.scans,
            "last_scan": self.last_scan and self.last_scan.isoformat("T", "seconds"),
            "seconds": self.seconds,
            "pending": self.pending,
            "unreadable": len(self.unreadable),
            "error": self.error,
        }


class Watcher:
    """Scans folders in a thread of its own, as a context manager."""

    def __init__(
        self, gallery: Gallery, folders: Sequence[str | Path], *, exclude: Sequence[str] = ()
    ) -> None:
        paths = dict.fromkeys(os.path.abspath(folder) for folder in folders)
        self.folders = [WatchedFolder(path) for path in paths]
        self._gallery, self._exclude = gallery, tuple(exclude)
        self._own_folder = os.path.realpath(gallery.path)
        self._workers = max(1, available_cpus() - 1)  # searches go on
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bm25v-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._watch()
            except Exception as error:  # the server goes on whatever happens here
                _log.error("watching stopped, and starts again: %s", _describe(error))
                self._stop.wait(_RETRY)

    def _watch(self) -> None:
        """Scan what is due until a folder appears or disappears, which needs other watches."""
        for folder in self.folders:
            folder.identity = folder.identify()
            folder.due = 0.0
        present = [folder.path for folder in self.folders if folder.identity is not None]
        for changed in self._wait_for_changes(present):
            for folder in self.folders:
                if any(Path(path).is_relative_to(folder.path) for path in changed):
                    # A scan takes as long as the folder is large: it has half of the time at most.
                    folder.due = min(folder.due, time.monotonic() + folder.seconds)
            for folder in self.folders:
                if folder.due <= time.monotonic() and not self._stop.is_set():
                    self._scan(folder)
            if any(folder.identify() != folder.identity for folder in self.folders):
                return

    def _wait_for_changes(self, paths: list[str]) -> Iterator[set[str]]:
        """Yield changed paths, at least once in a tick: from before the first scan on."""
        try:
            if paths:
                for changes in watchfiles.watch(
                    *paths,
                    watch_filter=self._is_relevant,
                    debounce=round(_LONGEST_WAIT * 1000),
                    step=round(_QUIET * 1000),
                    rust_timeout=round(_TICK * 1000),
                    yield_on_timeout=True,
                    stop_event=self._stop,
                    ignore_permission_denied=True,
                ):
                    yield {path for _, path in changes}
        except OSError as error:  # the system has a limit of watches
            _log.warning("changes are not reported, folders are scanned: %s", _describe(error))
        while not self._stop.is_set():
            for folder in self.folders:
                latest = time.monotonic() + RESCAN_WITHOUT_EVENTS
                folder.due = min(folder.due, latest)
            yield set()
            self._stop.wait(_TICK)

    def _is_relevant(self, change: watchfiles.Change, path: str) -> bool:
        """Return whether a change can be one of images; the gallery itself changes in a scan."""
        folder = Path(path).parent
        is_scanned = any(
            not any(why_skipped(name, is_folder=True) for name in folder.relative_to(root).parts)
            for root in (watched.path for watched in self.folders)
            if folder.is_relative_to(root)
        )
        return is_scanned and not Path(os.path.realpath(path)).is_relative_to(self._own_folder)

    def _scan(self, folder: WatchedFolder) -> None:
        def follow(stage: str, done: int, total: int) -> None:
            if stage == "indexing":
                folder.pending = total - done
                if self._stop.is_set():
                    raise _Stopped

        start = time.monotonic()
        try:
            report = self._gallery.add(
                folder.path,
                exclude=self._exclude,
                remove_missing=True,
                workers=self._workers,
                progress=follow,
            )
            self._gallery.refresh()
        except _Stopped:
            return
        except Exception as error:
            folder.due = time.monotonic() + (_TICK if isinstance(error, GalleryLocked) else _RETRY)
            reason = _describe(error)
            if reason != folder.error:
                _log.warning("%s was not scanned, it is tried again: %s", folder.path, reason)
            folder.error = reason
            return
        now = time.monotonic()
        folder.scans += 1
        folder.last_scan, folder.seconds, folder.error = datetime.now(UTC), now - start, None
        incomplete = [failure for failure in report.failed if _is_fresh(failure.path)]
        folder.pending = len(incomplete)
        folder.due = now + (max(_RETRY, folder.seconds) if incomplete else _RESCAN)
        for note in report.notes if folder.scans == 1 else ():
            _log.warning("%s: %s", one_line(folder.path), note)
        known = folder.unreadable
        folder.unreadable = {f.path: f.error for f in report.failed if f not in incomplete}
        new = [
            (path, error) for path, error in folder.unreadable.items() if known.get(path) != error
        ]
        if new:
            (path, reason), more = new[0], f" (and {len(new) - 1} more)" if len(new) > 1 else ""
            _log.warning("cannot be read: %s: %s%s", one_line(path), reason, more)


def _is_fresh(path: str) -> bool:
    """Return whether a file changed a moment ago: another program may still be writing it."""
    try:
        return abs(time.time() - os.stat(path).st_mtime) < _FRESH
    except OSError:
        return False


def _describe(error: Exception) -> str:
    text = one_line(" ".join(str(error).split()))
    return text if isinstance(error, Bm25vError) else f"{type(error).__name__}: {text}"
