"""The files of an unfinished run: its state, to resume from, and the log of its steps.

`checkpoint.safetensors` is always complete: it is replaced as a whole. `training.jsonl` has the
figures of each step; if TensorBoard is installed, `tensorboard/` has them as curves.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from bm25v.errors import VocabularyError, WrongUse
from bm25v.files import make_folder, replace_file
from bm25v.training.trainer import StepFigures

FILE_NAME = "checkpoint.safetensors"
FORMAT = "1"

_LOG = "training.jsonl"
_CURVES = "tensorboard"
_FLUSH_SECONDS = 10  # until TensorBoard can show what was written


def save_checkpoint(folder: Path, state: dict[str, Tensor], *, key: str) -> None:
    """Write a checkpoint, or replace the last one."""
    replace_file(folder / FILE_NAME, save(state, metadata={"format": FORMAT, "key": key}))


def check_checkpoint(folder: Path, *, key: str) -> None:
    """Raise an error if there is no checkpoint, a damaged one, or that of another run."""
    path = folder / FILE_NAME
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except FileNotFoundError:
        raise WrongUse(f"{folder} has no run to resume: run without --resume") from None
    except SafetensorError as error:
        raise VocabularyError(f"{path} is damaged ({error}): delete it and start again") from error
    if metadata.get("key") != key:
        raise WrongUse(
            f"{path} belongs to a run with other images or settings: give the same ones, "
            "or delete it to start again"
        )


def load_checkpoint(folder: Path) -> dict[str, Tensor]:
    """Return the state of the last checkpoint; call `check_checkpoint` before."""
    with safe_open(folder / FILE_NAME, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


@contextmanager
def open_log(folder: Path, *, after: int) -> Iterator[Callable[[StepFigures], None]]:
    """Yield a function that logs a step; a run that resumes does so after step `after`."""
    make_folder(folder)
    with (
        (folder / _LOG).open("a" if after else "w", encoding="utf-8", newline="\n") as log,
        _open_curves(folder / _CURVES, after=after) as add_to_curves,
    ):

        def write(figures: StepFigures) -> None:
            log.write(json.dumps(figures._asdict()) + "\n")
            add_to_curves(figures)

        yield write


def copy_log(folder: Path, output: Path) -> None:
    """Copy the log and the curves of a run into a vocabulary's folder, if there are any."""
    if (folder / _LOG).is_file():
        replace_file(output / _LOG, (folder / _LOG).read_bytes())
    if (folder / _CURVES).is_dir():
        shutil.copytree(folder / _CURVES, output / _CURVES, dirs_exist_ok=True)


@contextmanager
def _open_curves(folder: Path, *, after: int) -> Iterator[Callable[[StepFigures], None]]:
    """Yield a function that adds a step to the curves; steps later than `after` are dropped."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        yield lambda figures: None
        return
    if after == 0:
        shutil.rmtree(folder, ignore_errors=True)
    with SummaryWriter(folder, purge_step=after + 1, flush_secs=_FLUSH_SECONDS) as writer:

        def add(figures: StepFigures) -> None:
            for name, value in figures._asdict().items():
                if name != "step":
                    writer.add_scalar(name, value, figures.step)

        yield add
