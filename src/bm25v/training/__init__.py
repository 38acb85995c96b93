"""Images → vocabulary: everything that trains, and needs torch to do so (extra `[train]`).

`run` trains a vocabulary on a folder of images, `refit` improves the decoder of one. Both read
patches from `extraction`, which `feature_store` may keep on disk. `trainer` is one training run of
a sparse auto-encoder, step by step, by the settings of a `recipe`; `checkpoints` writes its state,
log and curves; `quality` measures the result; `word_samples` collects examples of its words.
"""

import importlib
from typing import TYPE_CHECKING, Any

from bm25v.errors import MissingExtra
from bm25v.privacy import prepare_torch

if TYPE_CHECKING:
    from bm25v.training.refit import refit_vocabulary
    from bm25v.training.run import Listener, TrainingOptions, train_vocabulary

__all__ = ["Listener", "TrainingOptions", "refit_vocabulary", "train_vocabulary"]

_MODULES = {
    "Listener": "bm25v.training.run",
    "TrainingOptions": "bm25v.training.run",
    "refit_vocabulary": "bm25v.training.refit",
    "train_vocabulary": "bm25v.training.run",
}


def __getattr__(name: str) -> Any:
    """Import on first use: `feature_store` and `recipe` are also used without torch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    prepare_torch()
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingExtra("training a vocabulary", "train") from error
    return getattr(importlib.import_module(_MODULES[name]), name)
