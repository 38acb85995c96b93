"""Where a run may write: checked before any work is done.

In: the folder of images and the paths that a person gave. Out: nothing, or an error with the
reason. Nothing is written among the images, and a folder that is deleted after the run must not
contain anything of the user's. Not this module's job: writing.
"""

import os
import shutil
from pathlib import Path

from bm25v.display import file_size
from bm25v.errors import VocabularyError, WrongUse
from bm25v.vocabulary.folder import SETTINGS

_BYTES_PER_STATE = 3 * 4  # float32: a weight and its two moments
_BYTES_PER_WEIGHT = 2


def work_folder(output: Path) -> Path:
    """Return the folder of an unfinished run, beside its output.

    >>> work_folder(Path("/vocabularies/mine.vocab")).as_posix()
    '/vocabularies/mine.vocab.work'
    """
    output = Path(os.path.abspath(output))
    return output.parent / f"{output.name}.work"


def check_output(output: Path, images: Path | None) -> None:
    """Raise an error if a vocabulary cannot be written to a path, or not among images."""
    if not os.path.basename(os.path.abspath(output)):
        raise WrongUse(f"{output} is not a folder for a vocabulary: give another path")
    if output.is_file() or (output / SETTINGS).exists():
        raise VocabularyError(f"{output} already exists: give another path, or delete it")
    if images is not None:
        _refuse_inside(output, images, "the vocabulary")


def check_work(work: Path, images: Path, activations: Path | None) -> None:
    """Raise an error if a run would delete images, or patches that should be kept."""
    if _is_inside(images, work):
        raise WrongUse(
            f"the images in {images} are in {work}, which is deleted after training: move them, or "
            "give another output"
        )
    if activations is None:
        return
    _refuse_inside(activations, images, "the patches")
    if _is_inside(activations, work):
        raise WrongUse(
            f"{activations} is in {work}, which is deleted after training: give another folder"
        )


def check_run_space(output: Path, *, n_words: int, patch_dim: int, is_resumed: bool) -> int:
    """Raise `WrongUse` if the disk has no space for checkpoints and the result; return their size.

    A checkpoint is replaced by a new one, so there are two for a moment.
    """
    n_weights = 2 * n_words * patch_dim + n_words + patch_dim
    n_checkpoints = 1 if is_resumed else 2
    needed = n_weights * (n_checkpoints * _BYTES_PER_STATE + _BYTES_PER_WEIGHT)
    existing = Path(os.path.abspath(output))
    while not existing.is_dir():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise WrongUse(
            f"checkpoints and the vocabulary need {file_size(needed)}, the disk of {output} has "
            f"{file_size(free)} free: free some space, or give an output on another disk"
        )
    return needed


def _refuse_inside(path: Path, images: Path, content: str) -> None:
    if _is_inside(path, images):
        name = os.path.basename(os.path.abspath(path))
        beside = Path(os.path.abspath(images)).parent / name
        hint = "" if os.path.realpath(path) == os.path.realpath(images) else f", such as {beside}"
        raise WrongUse(
            f"{path} is in the folder of images {images}, and {content} would be written among "
            f"them: give a path outside{hint}"
        )


def _is_inside(path: Path, folder: Path) -> bool:
    """Return whether a path is a folder or in it, whatever links lead there."""
    inner, outer = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    return inner == outer or outer in inner.parents
