"""Trains vocabularies; most of it needs torch (extra `[train]`).

`run` trains a vocabulary on a folder of images, whose `patches` may be kept on disk. `trainer` is
one training run of a sparse auto-encoder, step by step, by the settings of a `recipe`;
`checkpoints` writes its state, log and curves; `quality` measures the result.
"""

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bm25v.display import display_path
from bm25v.errors import MissingExtra
from bm25v.privacy import prepare_torch
from bm25v.progress import Progress, no_progress, show_downloads
from bm25v.training.recipe import Recipe
from bm25v.vocabulary import Vocabulary

if TYPE_CHECKING:
    from bm25v.training.run import Listener, TrainingOptions, train_vocabulary

__all__ = ["Listener", "TrainingOptions", "train", "train_vocabulary"]

_log = logging.getLogger(__name__)


def __getattr__(name: str) -> Any:
    """Import on first use: `train`, `patches` and `recipe` are imported without torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    prepare_torch()
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingExtra("training a vocabulary", "train") from error
    from bm25v.training import run

    return getattr(run, name)


def train(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    backbone: str = "tinyvit-5m",
    layer: int | None = None,
    device: str | None = None,
    recipe: Recipe | None = None,
    k_post: int = 16,
    views: int = 1,
    patches: int | None = None,
    about: str = "",
    resume: bool = False,
    activations: str | os.PathLike[str] | None = None,
    stream: bool = False,
    progress: Progress = no_progress,
) -> Vocabulary:
    """Train a vocabulary on a folder of images, write it to the folder `output`, and return it.

    It needs the extra `train`. Images that cannot be read are left out, with a warning in the log.

    backbone: a built-in backbone, a spec file (.toml), or a Hugging Face model: owner/name or a
        folder.
    layer: the block whose patch features are used; by default the last.
    device: cpu, cuda or mps, for training and for a Hugging Face model.
    recipe: how the sparse auto-encoder is trained; by default `Recipe()`.
    k_post: the number of words that are kept per image.
    views: how many versions of each image are used: whole, mirrored, then random parts.
    patches: the number of random patches per view; by default all.
    about: what the images are, for the report of the vocabulary.
    resume: continue an interrupted run with the same folder, output and options.
    activations: a folder that keeps the patch features for other runs.
    stream: compute the patch features again in each epoch, and store none.

    >>> import tempfile
    >>> from PIL import Image
    >>> images, output = Path(tempfile.mkdtemp()), Path(tempfile.mkdtemp()) / "small.vocab"
    >>> for n in range(20):
    ...     Image.effect_noise((64, 64), sigma=n).save(images / f"{n}.png")
    >>> small = Recipe(expansion=4, k=4, batch=128, epochs=1)
    >>> vocabulary = train(images, output, backbone="toy", recipe=small)
    >>> vocabulary.n_words
    48
    """
    from bm25v.training import Listener, TrainingOptions, train_vocabulary

    options = TrainingOptions(
        folder=Path(folder),
        output=Path(output),
        backbone=backbone,
        layer=layer,
        device=device,
        recipe=recipe or Recipe(),
        k_post=k_post,
        views=views,
        patches=patches,
        about=about,
        resume=resume,
        activations=None if activations is None else Path(activations),
        stream=stream,
    )
    listener = Listener(
        progress=progress,
        on_step=lambda figures, steps: progress("training", figures.step, steps),
        on_error=lambda path, error: _log.warning(
            "left out: %s: %s", display_path(str(path)), error
        ),
        on_message=_log.info,
    )
    with show_downloads(progress):
        return train_vocabulary(options, listener)
