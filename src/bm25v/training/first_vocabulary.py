"""Trains the first vocabulary of a new gallery on some of its images, for any backbone.

It is written beside the gallery; a run of limited length continues where it was interrupted.
Importing this needs no torch; `learn_vocabulary` does.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bm25v.backbones import Backbone
from bm25v.display import count
from bm25v.errors import InvalidOption, VocabularyError
from bm25v.training.recipe import Recipe
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.folder import SETTINGS

if TYPE_CHECKING:
    from bm25v.training import Listener

MOST_IMAGES = 4_000  # of which a vocabulary is learned
MOST_PATCHES = 512_000  # of all of them together

_RECIPE = Recipe()


def vocabulary_folder(gallery: Path) -> Path:
    """Return the folder of a gallery's own vocabulary, beside the gallery.

    >>> vocabulary_folder(Path("/photos.bm25v")).as_posix()
    '/photos.bm25v.vocabulary'
    """
    gallery = Path(os.path.abspath(gallery))
    return gallery.parent / f"{gallery.name}.vocabulary"


def has_vocabulary(folder: Path, backbone: Backbone) -> bool:
    """Return whether a folder has a finished vocabulary; one of another backbone is an error."""
    if not (folder / SETTINGS).exists():
        return False
    name = Vocabulary.load(folder).backbone_name
    if name != backbone.name:
        raise VocabularyError(
            f"{folder} is a vocabulary of {name}, not of {backbone.name}: give another gallery "
            "with -g, or delete that folder"
        )
    return True


def sample_images(paths: Sequence[str], backbone: Backbone) -> tuple[Path, ...]:
    """Return the images to learn from, in a fixed random choice; too few are an error.

    >>> from bm25v.backbones import load_backbone
    >>> len(sample_images([f"{n}.jpg" for n in range(5_000)], load_backbone("toy")))
    4000
    >>> sample_images(["1.jpg"], load_backbone("toy"))
    Traceback (most recent call last):
    bm25v.errors.InvalidOption: 1 image is too few to learn the words of toy: ...
    """
    rows, columns = backbone.grid
    n_words = _RECIPE.expansion * backbone.patch_dim
    # At least one patch for each word, after up to a twentieth of the images are held out. Of
    # fewer than 20 images, more than a twentieth would be.
    fewest = max(20, math.ceil(n_words / (rows * columns) * 20 / 19))
    if len(paths) < fewest:
        verb = "is" if len(paths) == 1 else "are"
        raise InvalidOption(
            f"{count(len(paths), 'image')} {verb} too few to learn the words of {backbone.name}: "
            f"give at least {fewest:,}, or leave out the backbone to use the default vocabulary"
        )
    order = np.random.default_rng(_RECIPE.seed).permutation(len(paths))
    return tuple(Path(paths[i]) for i in np.sort(order[:MOST_IMAGES]).tolist())


def learn_vocabulary(
    folder: Path, backbone: str, images: tuple[Path, ...], listener: "Listener"
) -> Vocabulary:
    """Train a vocabulary on images, or continue that; unreadable images are left out."""
    from bm25v.training import TrainingOptions, checkpoints, train_vocabulary

    options = TrainingOptions(
        folder=Path(os.path.commonpath(images)),
        images=images,
        output=folder,
        backbone=backbone,
        recipe=_RECIPE,
        patches=MOST_PATCHES // len(images),
    )
    resume = (options.work / checkpoints.FILE_NAME).exists()
    quiet = replace(listener, on_error=lambda path, error: None)  # indexing reports them
    return train_vocabulary(replace(options, resume=resume), quiet)
