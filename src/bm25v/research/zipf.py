"""How words are spread over pictures: the paper's analysis of document frequencies (section 5).

In: in how many pictures each word is. Out: the exponent of a power law and how well it fits, and
the shares of words that are everywhere, rare, or telling. Not this room's job: drawing (`charts`).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import EvaluationError
from bm25v.index.statistics import Statistics

HEAD, TAIL, TELLING_IDF = 0.5, 0.1, 2.0


@dataclass(frozen=True)
class Zipf:
    """The words that are in any picture at all, frequent ones first."""

    pictures: int
    df_r: NDArray[np.int64]  # by rank
    alpha: float  # df falls like rank ** -alpha
    scale: float  # the fitted df at rank 1
    r2: float  # of the fit, in logarithms
    head: float  # share of words in more than half of the pictures
    tail: float  # … in less than a tenth
    telling: float  # … with an IDF above 2

    @property
    def active(self) -> int:
        """Words that are in any picture at all."""
        return len(self.df_r)

    @property
    def fitted_r(self) -> NDArray[np.float64]:
        """What the power law says, by rank."""
        return np.asarray(self.scale * np.arange(1.0, self.active + 1) ** -self.alpha)


def analyse(df_v: NDArray[np.integer], pictures: int) -> Zipf:
    """Fit a power law to document frequencies: least squares of log df over log rank.

    >>> found = analyse(np.array([0, 25, 100, 50, 33, 0]), pictures=100)
    >>> found.active, round(found.alpha, 2), found.head, found.tail, found.telling
    (4, 1.0, 0.25, 0.0, 0.0)
    """
    df_r = -np.sort(-df_v[df_v > 0].astype(np.int64))
    if len(df_r) < 2:
        raise EvaluationError(f"{len(df_r)} words are in any picture: a fit needs at least 2")
    if df_r[0] > pictures:
        raise EvaluationError(f"a word is in {df_r[0]:,} pictures, but there are {pictures:,}")
    x, y = np.log(np.arange(1, len(df_r) + 1)), np.log(df_r)
    slope = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()
    intercept = y.mean() - slope * x.mean()
    left, spread = ((y - intercept - slope * x) ** 2).sum(), ((y - y.mean()) ** 2).sum()
    idf = Statistics(pictures, df_r, 0).idf(np.arange(len(df_r)))
    return Zipf(
        pictures=pictures,
        df_r=df_r,
        alpha=float(-slope),
        scale=float(np.exp(intercept)),
        r2=float(1 - left / spread) if df_r[0] > df_r[-1] else 1.0,  # a flat line fits exactly
        head=float((df_r > HEAD * pictures).mean()),
        tail=float((df_r < TAIL * pictures).mean()),
        telling=float((idf > TELLING_IDF).mean()),
    )
