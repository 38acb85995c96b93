"""The files of an unfinished run: its state, to resume from, and the log of its steps.

`checkpoint.safetensors` is always complete: it is replaced as a whole. `training.jsonl` has the
figures of each step, and is synced before each checkpoint, so it has every step up to that one. If
TensorBoard is installed, `tensorboard/` has them as curves.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from bm25v.display import printable
from bm25v.errors import InvalidOption, VocabularyError
from bm25v.files import SCRATCH_SUFFIX, make_folder, replace_file
from bm25v.schema import SchemaError, check_values, parse_object, whole
from bm25v.training.trainer import StepFigures

FILE_NAME = "checkpoint.safetensors"
FORMAT = "1"
ACTIVATIONS = "activations"

_LOG = "training.jsonl"
_CURVES = "tensorboard"


def save_checkpoint(folder: Path, state: dict[str, Tensor], *, key: str) -> None:
    replace_file(folder / FILE_NAME, save(state, metadata={"format": FORMAT, "key": key}))


def check_checkpoint(folder: Path, *, key: str) -> None:
    """Raise an error if there is no checkpoint, a damaged one, or that of another run."""
    path = folder / FILE_NAME
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except FileNotFoundError:
        raise InvalidOption(f"{folder} has no run to resume: run without --resume") from None
    except SafetensorError as error:
        raise VocabularyError(f"{path} is damaged ({error}): delete it and start again") from error
    if metadata.get("key") != key:
        raise InvalidOption(
            f"{path} belongs to a run with other images or settings: give the same ones, "
            "or delete it to start again"
        )


def load_checkpoint(folder: Path) -> dict[str, Tensor]:
    """Return the state of the last checkpoint; call `check_checkpoint` before."""
    with safe_open(folder / FILE_NAME, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


class Log:
    def __init__(self, file: BinaryIO, curves: Any) -> None:
        self._file = file
        self._curves = curves  # a SummaryWriter of TensorBoard, or None

    def write(self, figures: StepFigures) -> None:
        self._file.write(json.dumps(figures._asdict()).encode() + b"\n")
        if self._curves is not None:
            for name, value in figures._asdict().items():
                if name != "step":
                    self._curves.add_scalar(name, value, figures.step)

    def sync(self) -> None:
        """Make all steps that were written durable."""
        self._file.flush()
        os.fsync(self._file.fileno())
        if self._curves is not None:
            self._curves.flush()


@contextmanager
def open_log(folder: Path, *, after: int) -> Iterator[Log]:
    """Yield a log; a run that resumes does so after step `after`, and logs no step twice."""
    make_folder(folder)
    path = folder / _LOG
    replace_file(path, _read_steps(path, until=after) if after and path.is_file() else b"")
    with path.open("ab") as file, _open_curves(folder / _CURVES, after=after) as curves:
        yield Log(file, curves)


def _read_steps(path: Path, *, until: int) -> bytes:
    """Return the lines of a log up to a step; of a step that was logged twice, the last one."""
    lines: dict[int, bytes] = {}
    for line in path.read_bytes().splitlines():
        try:
            entry = parse_object(line)
            check_values(entry, {"step": whole(1)})
        except SchemaError:  # a line cut off when a run was killed
            continue
        lines[entry["step"]] = line
    return b"".join(lines[step] + b"\n" for step in sorted(lines) if step <= until)


def copy_log(folder: Path, output: Path) -> None:
    """Copy the log and the curves of a run into a vocabulary's folder, if there are any.

    TensorBoard puts the name of this machine into the names of files: a vocabulary is for others.
    """
    files = {folder / _LOG: output / _LOG}
    curves = sorted(path for path in (folder / _CURVES).rglob("*") if path.is_file())
    for number, path in enumerate(curves):
        files[path] = output / _CURVES / f"events.out.tfevents.{number}"
    for path, target in files.items():
        if path.is_file():
            make_folder(target.parent)
            replace_file(target, path.read_bytes())


def delete_run(folder: Path) -> None:
    """Delete what a run has written; what else is in the folder stays."""
    (folder / FILE_NAME).unlink(missing_ok=True)  # first: what is left cannot be resumed
    (folder / _LOG).unlink(missing_ok=True)
    for scratch in folder.glob(f".*{SCRATCH_SUFFIX}"):  # of a process that was killed
        scratch.unlink(missing_ok=True)
    for inner in (_CURVES, ACTIVATIONS):
        if (folder / inner).is_dir():
            shutil.rmtree(folder / inner)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


@contextmanager
def _open_curves(folder: Path, *, after: int) -> Iterator[Any]:
    """Yield a writer of curves without steps later than `after`; None without TensorBoard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        yield None
        return
    if printable(str(folder)) != str(folder):  # TensorBoard cannot write there
        yield None
        return
    if after == 0:
        shutil.rmtree(folder, ignore_errors=True)
    with SummaryWriter(folder, purge_step=after + 1, flush_secs=10) as writer:
        yield writer
