"""Sparse auto-encoders of other projects: their files in, a `SparseAutoEncoder` out.

Each project has its own files, and its own steps before and after the two matrices. Those steps are
folded into the weights, so that the paper's formulas hold for all of them:

    h = topk(relu(z @ W_enc + b_enc), k)        z_hat = h @ W_dec + b_dec

What cannot be expressed so is refused: gates, thresholds, inputs normalised patch by patch.
Pickled code in the files is never run. Only `.pt` files need torch. `reading` has what the formats
share. Not this package's job: which backbone the features came from.
"""

import os
from pathlib import Path

from bm25v.errors import VocabularyError, WrongUse
from bm25v.sae.formats import dictionary_learning, overcomplete, saelens, saev, sparsify
from bm25v.sae.formats.saelens import export_saelens
from bm25v.sae.model import SparseAutoEncoder

__all__ = ["FORMATS", "export_saelens", "load", "recognise"]

FORMATS = {
    "saelens": saelens.FORMAT,
    "sparsify": sparsify.FORMAT,
    "saev": saev.FORMAT,
    "dictionary_learning": dictionary_learning.FORMAT,
    "overcomplete": overcomplete.FORMAT,
}


def load(
    path: str | os.PathLike[str], *, format: str | None = None, k: int | None = None
) -> SparseAutoEncoder:
    """Read an auto-encoder in another project's format; by default its files decide which.

    `k` overrides the stored one, and is required where a project stores none.

    >>> import tempfile, numpy as np
    >>> sae = SparseAutoEncoder(np.eye(3, 4, dtype=np.float32), np.zeros(4, np.float32),
    ...                         np.eye(4, 3, dtype=np.float32), np.zeros(3, np.float32), k=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export_saelens(sae, folder)
    ...     recognise(folder), load(folder).k, load(folder, k=1).k
    ('saelens', 2, 1)
    """
    path = Path(path)
    if format is None:
        format = recognise(path)
    elif format not in FORMATS:
        raise WrongUse(f"unknown format {format!r}: give one of {', '.join(FORMATS)}")
    file = FORMATS[format].find(path)
    if file is None:
        raise VocabularyError(
            f"{path} is not in the format {format} ({FORMATS[format].layout}); {_contents(path)}"
        )
    return FORMATS[format].read(file, k)


def recognise(path: str | os.PathLike[str]) -> str:
    """Return the name of the format that a folder or file is in."""
    path = Path(path)
    if (path / "vocabulary.json").is_file():
        raise VocabularyError(f"{path} is already a bm25v vocabulary: use it without importing it")
    for name, format in FORMATS.items():
        if format.find(path) is not None:
            return name
    known = "; ".join(f"{name} ({format.layout})" for name, format in FORMATS.items())
    raise VocabularyError(
        f"{path} has no auto-encoder in a known format; {_contents(path)}; known formats: {known}"
    )


def _contents(path: Path) -> str:
    if not path.exists():
        return "there is no such file or folder"
    if not path.is_dir():
        return "it is a file"
    names = sorted(entry.name for entry in path.iterdir())
    if not names:
        return "the folder is empty"
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"the folder contains {', '.join(names[:5])}{more}"
