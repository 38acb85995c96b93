"""`bm25v serve --watch`: a real server process follows real files."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from bm25v import Gallery, InvalidOption
from bm25v.server import watch
from bm25v.server.watch import Watcher
from bm25v.store.local.writer import Writer
from tests.conftest import make_image
from tests.http_server import wait_until
from tests.test_images_from_memory import png


class Server(httpx.Client):
    """A server process and what it says about its gallery."""

    def __init__(self, process: "subprocess.Popen[str]", url: str) -> None:
        super().__init__(base_url=url, timeout=30)
        self.process = process

    def state(self) -> dict[str, Any]:
        """Return the state of the one folder that is watched."""
        (folder,) = self.get("v1/stats").json()["watch"]
        return dict(folder)

    def names(self) -> set[str]:
        """Return the names of all images."""
        return {Path(image["path"]).name for image in self.images()}

    def images(self) -> list[dict[str, Any]]:
        return list(self.get("v1/images?limit=1000").json()["images"])

    def has_scanned(self) -> bool:
        return bool(self.state()["scans"])

    def stop(self) -> tuple[str, str]:
        """Send SIGTERM; return what the process has printed."""
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate()
        assert self.process.returncode == 0, err
        assert out == "stopped\n"
        return out, err


@contextmanager
def watching(gallery: Path, *options: str | Path) -> Iterator[Server]:
    """Run `bm25v serve --port 0` with options."""
    command = [sys.executable, "-m", "bm25v", "serve", "-g", str(gallery), "--port", "0"]
    process = subprocess.Popen(
        [*command, *map(str, options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    watchdog = threading.Timer(120, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        url = next(word for word in line.split() if word.startswith("http"))
        with Server(process, url) as server:
            yield server
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()


@pytest.fixture
def empty(make_gallery: Callable[[str], Gallery]) -> Gallery:
    """A gallery without images."""
    return make_gallery("gallery.bm25v")


def test_the_gallery_follows_new_changed_renamed_and_removed_files(
    empty: Gallery, photos: Path
) -> None:
    with watching(empty.path, "--watch", photos, "--exclude", "raw") as server:
        wait_until(server.has_scanned)
        assert len(server.names()) == 12
        before = {image["id"]: image for image in server.images()}

        (photos / "raw").mkdir()
        make_image(30).save(photos / "raw" / "raw.png")
        (photos / "2023" / "may").mkdir(parents=True)
        make_image(31).save(photos / "2023" / "may" / "new.png")
        make_image(32, side=80).save(photos / "3.png")
        (photos / "4.png").rename(photos / "renamed.png")
        (photos / "5.png").unlink()
        expected = {path.name for path in photos.rglob("*.png")} - {"raw.png"}
        wait_until(lambda: server.names() == expected)
        changed = {Path(image["path"]).name: image for image in server.images()}
        assert changed["3.png"]["width"] == 80
        assert len(before) == len(changed) == 12

        make_image(33).save(photos / "2023" / "may" / "later.png")  # in a folder that is new
        wait_until(lambda: "later.png" in server.names())
        state = server.state()
        assert state["folder"] == str(photos)
        assert state["last_scan"].startswith("20")
        assert (state["pending"], state["unreadable"], state["error"]) == (0, 0, None)
        metrics = server.get("metrics").text
        assert "\nbm25v_watch_pending 0.0\n" in metrics
        assert "\nbm25v_watch_failed 0.0\n" in metrics
        assert server.stop()[1] == ""
    assert empty.problems() == []


def test_a_file_that_comes_during_the_first_scan_is_found(empty: Gallery, photos: Path) -> None:
    for seed in range(100, 700):
        make_image(seed).save(photos / f"{seed}.png")
    with watching(empty.path, "--watch", photos) as server:
        wait_until(lambda: server.state()["pending"])  # the files are listed
        make_image(50).save(photos / "late.png")
        wait_until(lambda: "late.png" in server.names())


def test_a_hidden_folder_is_followed_if_it_is_given(empty: Gallery, photos: Path) -> None:
    hidden, trash = photos / ".private", photos / "#recycle"
    for seed, path in enumerate((hidden / "a.png", trash / "b.png", photos / "1.nef")):
        path.parent.mkdir(exist_ok=True)
        make_image(50 + seed).save(path, "PNG")
    with watching(empty.path, "--watch", photos, "--watch", hidden) as server:
        wait_until(lambda: "a.png" in server.names())
        make_image(53).save(hidden / "c.png")
        wait_until(lambda: "c.png" in server.names())
        assert not {"b.png", "1.nef"} & server.names()
        errors = server.stop()[1]
        assert errors.count("1 RAW file is not read (.nef 1)") == 1
        assert errors.count("1 path is skipped (trash 1)") == 1


def test_a_file_that_is_being_written_is_read_when_it_is_complete(
    empty: Gallery, photos: Path
) -> None:
    content = png(50)
    with watching(empty.path, "--watch", photos) as server:
        wait_until(server.has_scanned)
        (photos / "slow.png").write_bytes(content[: len(content) // 2])
        wait_until(lambda: server.state()["pending"] == 1)
        assert server.state()["unreadable"] == 0, "it may not be complete yet"
        (photos / "slow.png").write_bytes(content)
        wait_until(lambda: "slow.png" in server.names())
        wait_until(lambda: server.state()["pending"] == 0)

        broken = photos / "broken.png"
        (photos.parent / "broken.png").write_bytes(content[:100])
        os.utime(photos.parent / "broken.png", (1e9, 1e9))
        (photos.parent / "broken.png").rename(broken)
        wait_until(lambda: server.state()["unreadable"] == 1)
        broken.write_bytes(png(51))
        wait_until(lambda: "broken.png" in server.names())
        wait_until(lambda: server.state()["unreadable"] == 0)
        (line,) = server.stop()[1].splitlines()
    assert line.startswith(f"cannot be read: {broken}: truncated PNG")


def test_images_of_a_folder_that_disappears_are_kept(empty: Gallery, photos: Path) -> None:
    away = photos.parent / "away"
    with watching(empty.path, "--watch", photos) as server:
        wait_until(server.has_scanned)
        photos.rename(away)
        wait_until(lambda: server.state()["error"] == f"{photos} does not exist")
        assert "\nbm25v_watch_failed 1.0\n" in server.get("metrics").text
        photos.mkdir()  # as the folder of a disk that is not mounted
        wait_until(lambda: f"no images in {photos}: " in (server.state()["error"] or ""))
        assert len(server.names()) == 12
        photos.rmdir()
        make_image(60).save(away / "meanwhile.png")
        away.rename(photos)
        wait_until(lambda: "meanwhile.png" in server.names())
        wait_until(lambda: server.state()["error"] is None)
        make_image(61).save(photos / "afterwards.png")
        wait_until(lambda: "afterwards.png" in server.names())
        assert len(server.names()) == 14
        lines = server.stop()[1].splitlines()
    assert len(lines) == 2
    assert all("was not scanned, it is tried again" in line for line in lines)


def test_a_folder_that_is_missing_at_the_start_is_waited_for(
    gallery: Gallery, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    with watching(gallery.path, "--watch", disk) as server:
        wait_until(lambda: server.state()["error"] is not None)
        assert len(server.names()) == 12
        disk.mkdir()
        make_image(62).save(disk / "mounted.png")
        wait_until(lambda: "mounted.png" in server.names())


def test_a_missing_gallery_is_created_if_there_is_something_to_watch(
    photos: Path, tmp_path: Path
) -> None:
    with watching(tmp_path / "new.bm25v", "--watch", photos / "missing") as server:
        assert server.images() == []
        assert server.stop()[1].count("\n") == 1
    command = [sys.executable, "-m", "bm25v", "serve", "-g", str(tmp_path / "none.bm25v")]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert not (tmp_path / "none.bm25v").exists()


def test_a_scan_waits_for_another_process_that_writes(gallery: Gallery, photos: Path) -> None:
    with watching(gallery.path, "--watch", photos) as server:
        wait_until(server.has_scanned)
        with Writer(gallery.path):
            make_image(63).save(photos / "new.png")
            wait_until(lambda: "another process is writing" in (server.state()["error"] or ""))
            image = server.images()[0]["id"]
            assert server.get(f"v1/images/{image}/similar").status_code == 200
        wait_until(lambda: "new.png" in server.names())
        wait_until(lambda: server.state()["error"] is None)


def test_a_server_that_is_stopped_in_the_middle_of_a_scan_loses_nothing(
    empty: Gallery, tmp_path: Path
) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for seed in range(40):
        make_image(seed, side=2000).save(folder / f"{seed}.png", compress_level=1)
    with watching(empty.path, "--watch", folder) as server:
        wait_until(lambda: 0 < server.state()["pending"] < 40)
        assert server.stop()[1] == ""
    assert len(empty) < 40
    assert empty.problems() == []
    with watching(empty.path, "--watch", folder) as server:
        wait_until(server.has_scanned)
        assert len(server.names()) == 40
        server.stop()
    assert empty.problems() == []


def test_a_gallery_inside_the_folder_is_not_a_change(photos: Path, empty: Gallery) -> None:
    inside = photos / "gallery.bm25v"
    shutil.move(empty.path, inside)
    with watching(inside, "--watch", photos) as server:
        wait_until(server.has_scanned)
        scans = server.state()["scans"]
        (photos / ".cache").mkdir()
        (photos / ".cache" / "thumbnail.png").write_bytes(png(1))
        time.sleep(3)
        assert server.state()["scans"] <= scans + 1  # for the new folder
        assert len(server.names()) == 12


def test_a_drive_that_is_removed_during_a_scan_removes_no_images(
    gallery: Gallery, photos: Path
) -> None:
    def take_away(stage: str, done: int, total: int) -> None:
        if photos.exists():
            photos.rename(photos.parent / "away")

    with pytest.raises(InvalidOption, match="does not exist"):
        gallery.add(photos, remove_missing=True, progress=take_away)
    assert len(gallery) == 12


def test_folders_are_scanned_if_the_system_reports_no_changes(
    gallery: Gallery,
    photos: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*paths: str, **options: object) -> None:
        raise OSError(28, "OS file watch limit reached")

    monkeypatch.setattr("watchfiles.watch", refuse)
    monkeypatch.setattr(watch, "RESCAN_WITHOUT_EVENTS", 0.1)
    with Watcher(gallery, [photos]):
        make_image(64).save(photos / "new.png")
        wait_until(lambda: photos / "new.png" in gallery)
    assert "OS file watch limit reached" in caplog.text


def test_exclude_without_watch_is_refused(gallery: Gallery) -> None:
    command = [sys.executable, "-m", "bm25v", "serve", "-g", str(gallery.path)]
    done = subprocess.run(
        [*command, "--exclude", "raw"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "--watch" in done.stderr
