"""What the analyses want to know of a gallery on disk: how often it uses which word, and bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import EvaluationError, WrongUse
from bm25v.gallery import Gallery
from bm25v.gallery.results import Info
from bm25v.research import zipf


@dataclass(frozen=True)
class Counted:
    """A gallery's facts and in how many of its pictures each word is."""

    info: Info
    df_v: NDArray[np.int64]
    dim: int  # of a dense vector

    @property
    def zipf(self) -> zipf.Zipf:
        """How its words are spread."""
        try:
            return zipf.analyse(self.df_v, self.info.pictures)
        except EvaluationError as error:
            raise EvaluationError(f"{self.info.path}: {error}") from None


def count(path: Path) -> Counted:
    """Read a gallery."""
    with Gallery.open(path) as gallery:
        info, snapshot = gallery.info(), gallery.snapshot()
    if not info.pictures:
        raise WrongUse(f"there are no pictures in {path}: index some first")
    df_v = snapshot.searcher.statistics.df_v
    if not df_v.any():
        raise EvaluationError(f"no picture in {path} has a word: there is nothing to count")
    return Counted(info, df_v, snapshot.dense_ne.shape[1])


def names(paths: Sequence[Path]) -> list[str]:
    """Return short names for galleries: without folders and endings where that tells them apart.

    >>> names([Path("/data/pets.bm25v"), Path("dtd.bm25v")])
    ['pets', 'dtd']
    >>> names([Path("a/pets.bm25v"), Path("b/pets.bm25v")])
    ['a/pets.bm25v', 'b/pets.bm25v']
    """
    short = [path.stem for path in paths]
    return short if len(set(short)) == len(short) else [str(path) for path in paths]
