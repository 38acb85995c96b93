"""The state of a run on disk, so that it can go on: safetensors, replaced as a whole."""

from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bm25v.errors import VocabularyError, WrongUse

FILE_NAME = "checkpoint.safetensors"
FORMAT = "1"


def save(folder: Path, state: dict[str, Tensor], *, key: str) -> None:
    """Write a checkpoint in the place of the last one."""
    scratch = folder / f"{FILE_NAME}.part"
    save_file(state, scratch, metadata={"format": FORMAT, "key": key})
    scratch.replace(folder / FILE_NAME)


def check(folder: Path, *, key: str) -> None:
    """Refuse to go on without a checkpoint, from a damaged one, or from that of another run."""
    path = folder / FILE_NAME
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except FileNotFoundError:
        raise WrongUse(f"there is no run to go on with in {folder}: leave out --resume") from None
    except SafetensorError as error:
        raise VocabularyError(f"{path} is damaged ({error}): delete it and start again") from error
    if metadata.get("key") != key:
        raise WrongUse(
            f"{path} is of a run with other pictures or settings: give the same again, "
            "or delete it to start anew"
        )


def load(folder: Path) -> dict[str, Tensor]:
    """Return the state of a run's last checkpoint, which `check` has found good."""
    with safe_open(folder / FILE_NAME, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
