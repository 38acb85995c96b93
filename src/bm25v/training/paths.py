"""Checks where a run may write, before any work is done.

Nothing is written among the images, and a folder that is deleted after the run must not contain
anything of the user's.
"""

import os
import shutil
from pathlib import Path

from bm25v.display import file_size
from bm25v.errors import InvalidOption, VocabularyError
from bm25v.vocabulary.folder import SETTINGS


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
        raise InvalidOption(f"{output} is not a folder for a vocabulary: give another path")
    if output.is_file() or (output / SETTINGS).exists():
        raise VocabularyError(f"{output} already exists: give another path, or delete it")
    if images is not None:
        _refuse_inside(output, images, "the vocabulary")


def check_work(work: Path, images: Path, activations: Path | None) -> None:
    """Raise an error if a run would delete images, or patches that should be kept."""
    if _is_inside(images, work):
        raise InvalidOption(
            f"the images in {images} are in {work}, which is deleted after training: move them, or "
            "give another output"
        )
    if activations is None:
        return
    _refuse_inside(activations, images, "the patches")
    if _is_inside(activations, work):
        raise InvalidOption(
            f"{activations} is in {work}, which is deleted after training: give another folder"
        )


def check_run_space(output: Path, *, n_words: int, patch_dim: int, is_resumed: bool) -> int:
    """Return the size of checkpoints and the result; raise if the disk has no space for them."""
    n_weights = 2 * n_words * patch_dim + n_words + patch_dim
    n_checkpoints = 1 if is_resumed else 2  # for a moment, before the new one replaces the old one
    # A checkpoint has a weight and its two moments in float32, the result a weight in float16.
    needed = n_weights * (n_checkpoints * 3 * 4 + 2)
    existing = Path(os.path.abspath(output))
    while not existing.is_dir():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise InvalidOption(
            f"checkpoints and the vocabulary need {file_size(needed)}, the disk of {output} has "
            f"{file_size(free)} free: free some space, or give an output on another disk"
        )
    return needed


def _refuse_inside(path: Path, images: Path, content: str) -> None:
    if _is_inside(path, images):
        name = os.path.basename(os.path.abspath(path))
        beside = Path(os.path.abspath(images)).parent / name
        hint = "" if os.path.realpath(path) == os.path.realpath(images) else f", such as {beside}"
        raise InvalidOption(
            f"{path} is in the folder of images {images}, and {content} would be written among "
            f"them: give a path outside{hint}"
        )


def _is_inside(path: Path, folder: Path) -> bool:
    """Return whether a path is a folder or in it, whatever links lead there."""
    inner, outer = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    return inner == outer or outer in inner.parents
