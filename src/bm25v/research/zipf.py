"""How word frequencies are distributed: the paper's analysis in section 5."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import EvaluationError, InvalidOption
from bm25v.gallery import Gallery
from bm25v.index.bm25 import Statistics
from bm25v.research.tables import Cells, format_share
from bm25v.store.bags import RowArray
from bm25v.store.base import GalleryInfo

_FULL_ROWS = 10_000  # at most: more would not change a mean


@dataclass(frozen=True)
class ZipfFit:
    """A power law fitted to the active words: those in at least one image."""

    n_images: int
    df_r: NDArray[np.int64]  # document frequencies by rank, the most frequent word first
    alpha: float  # df is proportional to rank ** -alpha
    scale: float  # the fitted df at rank 1
    r2: float  # of the fit, in logarithms
    head: float  # share of the active words that are in more than half of the images
    tail: float  # … in less than a tenth of the images
    high_idf: float  # … with an IDF above 2

    @property
    def active_words(self) -> int:
        return len(self.df_r)

    @property
    def fitted_df_r(self) -> NDArray[np.float64]:
        return np.asarray(self.scale * np.arange(1.0, self.active_words + 1) ** -self.alpha)

    def to_dict(self) -> dict[str, Any]:
        return {
            "n_images": self.n_images,
            "alpha": self.alpha,
            "scale": self.scale,
            "r2": self.r2,
            "head": self.head,
            "tail": self.tail,
            "share_idf_above_2": self.high_idf,
            "active": self.active_words,
            "df_by_rank": self.df_r.tolist(),
        }


def fit_zipf(df_v: NDArray[np.integer], images: int) -> ZipfFit:
    """Fit a power law to document frequencies: least squares of log df over log rank.

    >>> fit = fit_zipf(np.array([0, 25, 100, 50, 33, 0]), images=100)
    >>> fit.active_words, round(fit.alpha, 2), fit.head, fit.tail, fit.high_idf
    (4, 1.0, 0.25, 0.0, 0.0)
    """
    df_r = -np.sort(-df_v[df_v > 0].astype(np.int64))
    if len(df_r) < 2:
        raise EvaluationError(f"a power law needs at least 2 active words, not {len(df_r)}")
    x, y = np.log(np.arange(1, len(df_r) + 1)), np.log(df_r)
    slope = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()
    intercept = y.mean() - slope * x.mean()
    residual, variance = ((y - intercept - slope * x) ** 2).sum(), ((y - y.mean()) ** 2).sum()
    idf_r = Statistics(images, df_r, 0).idf(np.arange(len(df_r)))
    return ZipfFit(
        n_images=images,
        df_r=df_r,
        alpha=float(-slope),
        scale=float(np.exp(intercept)),
        r2=float(1 - residual / variance) if df_r[0] > df_r[-1] else 1.0,  # a flat line fits
        head=float((df_r > 0.5 * images).mean()),
        tail=float((df_r < 0.1 * images).mean()),
        high_idf=float((idf_r > 2.0).mean()),
    )


def zipf_table(fits: Mapping[str, ZipfFit]) -> Cells:
    """Return a row for each collection, and one with what the paper found."""
    header = ["gallery", "images", "active words", "α", "R²", "head", "tail", "IDF > 2"]
    rows = []
    for name, fit in fits.items():
        counts = [f"{fit.n_images:,}", f"{fit.active_words:,}"]
        shares = [f"{fit.head:.2%}", f"{fit.tail:.1%}", f"{fit.high_idf:.1%}"]
        rows.append([name, *counts, f"{fit.alpha:.2f}", format_share(fit.r2), *shares])
    counts, shares = ["", "527–3,240"], ["0.25–1.83%", "", "96–99.7%"]
    paper = ["the paper's seven sets", *counts, "1.20–2.32", ".917–.973", *shares]
    return header, [*rows, paper]


@dataclass(frozen=True)
class GalleryFrequencies:
    info: GalleryInfo
    df_v: NDArray[np.int64]
    dim: int  # width of a dense vector
    full_rows: RowArray  # full bags of some of its images

    def fit_zipf(self) -> ZipfFit:
        """Fit a power law; errors name the gallery."""
        try:
            return fit_zipf(self.df_v, self.info.n_images)
        except EvaluationError as error:
            raise EvaluationError(f"{self.info.path}: {error}") from None


def read_frequencies(path: Path) -> GalleryFrequencies:
    with Gallery.open(path) as gallery:
        info, snapshot = gallery.info(), gallery.local.snapshot()
    if not info.n_images:
        raise InvalidOption(f"the gallery {path} has no images: index some first")
    df_v = snapshot.searcher.statistics.df_v
    if not df_v.any():
        raise EvaluationError(f"no image of the gallery {path} has a word to count")
    rows = snapshot.rows
    full_rows = snapshot.full_bags[rows[:: -(-len(rows) // _FULL_ROWS)]]
    return GalleryFrequencies(info, df_v, snapshot.dense_ne.shape[1], full_rows)
