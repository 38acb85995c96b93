"""Files are complete and synced or not there, also on a full disk, and written in one way."""

import ast
import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bm25v
from bm25v.backbones import Features
from bm25v.errors import EvaluationError, StorageFull
from bm25v.files import (
    make_folder,
    replace_file,
    replacing_file,
    replacing_folder,
    reporting_full_disk,
)
from bm25v.research.features import ImageFeatureStore
from bm25v.sae.formats import export_saelens
from bm25v.training.patches import PatchStore, write_arrays
from bm25v.vocabulary import Vocabulary
from tests.test_durability import needs_proc

TOY = Vocabulary.load("toy")
SOURCES = Path(bm25v.__file__).parent
BIG = np.random.default_rng(0).integers(0, 256, 1_000_000, dtype=np.uint8)  # more than the disk has


def plot(path: Path) -> None:
    plots = pytest.importorskip("matplotlib.figure")
    from bm25v.research.plots import _save

    figure = plots.Figure(figsize=(8, 8), dpi=200)
    figure.subplots().imshow(BIG.reshape(1000, 1000), interpolation="nearest")
    _save(figure, path / "plot.png", dpi=200)


def write_patches(folder: Path) -> None:
    store = PatchStore(folder / "patches", key="", dim=4)
    make_folder(store.folder)
    store.write(0, BIG.astype(np.float16).reshape(-1, 4))


def cache_features(folder: Path) -> None:
    features = Features(BIG.astype(np.float32).reshape(-1, 4), np.ones(4, np.float32))
    ImageFeatureStore(folder / "cache", [b"key"]).add({b"key": features})


def fill_folder(path: Path) -> None:
    with replacing_folder(path / "bags") as folder:
        replace_file(folder / "part", BIG.tobytes())


WRITERS: list[Callable[[Path], object]] = [
    lambda folder: replace_file(folder / "a.html", BIG.tobytes()),
    lambda folder: write_arrays(folder / "a.npz", {"patches": BIG}),
    write_patches,
    cache_features,
    fill_folder,
    plot,
    lambda folder: TOY.save(folder / "v"),
    lambda folder: export_saelens(TOY.sae, folder / "s"),
]


def everything(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("write", WRITERS, ids=range(len(WRITERS)))
def test_a_full_disk_is_one_error_and_leaves_no_scratch_files(
    write: Callable[[Path], object], small_disk: Path
) -> None:
    ballast = small_disk / "ballast"
    refused = 0
    for free in (0, 4096, 20_000, 100_000, 300_000):
        ballast.write_bytes(bytes(max(0, shutil.disk_usage(small_disk).free - free)))
        before = everything(small_disk)
        try:
            write(small_disk)  # as the message says: the same again, with more space
            break
        except (StorageFull, EvaluationError) as error:
            refused += 1
            assert re.match(r"the disk of .* is full|.* \(the disk is full\): ", str(error))
            assert "\n" not in str(error)
            left = everything(small_disk)
            assert [path for path in left if path.suffix == ".part"] == []
            assert left.keys() >= before.keys()
        ballast.unlink()
    assert refused


def test_the_old_content_stays_if_the_new_one_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_file(tmp_path / "names.tsv", "old")
    for name, code in (("fsync", errno.ENOSPC), ("fsync", errno.EDQUOT), ("fsync", errno.EIO)):

        def fail(*_: object, code: int = code) -> None:
            raise OSError(code, os.strerror(code))

        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            expected: type[Exception] = OSError if code == errno.EIO else StorageFull
            with pytest.raises(expected):
                replace_file(tmp_path / "names.tsv", "new")
        assert everything(tmp_path) == {tmp_path / "names.tsv": b"old"}


def test_a_scratch_file_that_cannot_be_deleted_does_not_hide_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "cannot delete")

    monkeypatch.setattr(Path, "unlink", fail)
    with pytest.raises(KeyError, match="first"), replacing_file(tmp_path / "a"):
        raise KeyError("first")


def test_only_a_full_disk_becomes_another_error(tmp_path: Path) -> None:
    for error in (OSError(errno.EACCES, "denied"), KeyError("k"), KeyboardInterrupt()):
        with pytest.raises(type(error)), reporting_full_disk(tmp_path):
            raise error
    with pytest.raises(StorageFull), reporting_full_disk(tmp_path):
        try:
            raise OSError(errno.ENOSPC, "full")
        finally:
            raise ValueError("cannot close the archive")


@needs_proc
def test_a_new_folder_is_in_the_synced_list_of_each_folder_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def sync_and_record(file: int) -> None:
        sync(file)
        synced.append(os.readlink(f"/proc/self/fd/{file}"))

    monkeypatch.setattr(os, "fsync", sync_and_record)
    make_folder(tmp_path / "a" / "b" / "c")
    assert synced == [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")]
    make_folder(tmp_path / "a" / "b")
    assert len(synced) == 3
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "file" / "inside")


WRITES = {
    "write_text",
    "write_bytes",
    "mkdir",
    "makedirs",
    "rename",
    "copy",
    "copyfile",
    "copytree",
}
# Files that are not replaced as a whole, each with its own way to be safe.
EXCEPTIONS = {
    "files.py",
    "privacy.py",  # an empty folder for matplotlib
    "demo.py",  # photos: not synced, and checked by the next run
    "backbones/downloads.py",  # the output of pip, in a scratch folder
    "store/local/rows.py",  # appended rows, which the catalogue commits
    "store/local/store.py",  # a scratch folder that is renamed
    "store/local/trash.py",  # people's files, which are moved; a log
    "server/images.py",  # a folder that only its owner may read
    "training/checkpoints.py",  # a log: synced with each checkpoint
}


def writes_itself(call: ast.Call) -> bool:
    """Return whether a call writes to the disk without `bm25v.files`."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name == "open":
        texts = [a.value for a in call.args if isinstance(a, ast.Constant)]
        modes = [text for text in texts if isinstance(text, str) and len(text) <= 3]
        return any(set(mode) & set("wax+") for mode in modes)
    module = getattr(getattr(call.func, "value", None), "id", "")
    return name in WRITES and not (name == "copy" and module != "shutil")


def test_every_file_is_written_by_one_module() -> None:
    found = set()
    for path in SOURCES.rglob("*.py"):
        calls: list[Any] = [
            n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)
        ]
        if any(map(writes_itself, calls)):
            found.add(path.relative_to(SOURCES).as_posix())
    assert found == EXCEPTIONS
