"""The figures of a run for TensorBoard, where that is installed."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bm25v.sae.trainer import StepFigures

FOLDER = "tensorboard"

_SECONDS = 10  # until what was written can be seen


@contextmanager
def curves(work: Path, *, after: int) -> Iterator[Callable[[StepFigures], None]]:
    """Give a function that adds a step to the curves of a run; those after step `after` go."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        yield lambda figures: None
        return
    folder = work / FOLDER
    if after == 0:
        shutil.rmtree(folder, ignore_errors=True)
    with SummaryWriter(folder, purge_step=after + 1, flush_secs=_SECONDS) as writer:

        def add(figures: StepFigures) -> None:
            for name, value in figures._asdict().items():
                if name != "step":
                    writer.add_scalar(name, value, figures.step)

        yield add


def keep(work: Path, output: Path) -> None:
    """Copy the curves of a finished run into its vocabulary's folder."""
    if (work / FOLDER).is_dir():
        shutil.copytree(work / FOLDER, output / FOLDER, dirs_exist_ok=True)
