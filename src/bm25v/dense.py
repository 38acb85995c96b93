"""Scales vectors to length 1, so that their dot products are cosines."""

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

_Float = TypeVar("_Float", bound=np.floating)

_SHORTEST = 1e-12  # a vector of length 0 stays as it is


def normalise(vectors: NDArray[_Float]) -> NDArray[_Float]:
    """Return a vector, or each row of an array, with length 1.

    >>> normalise(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """
    if vectors.ndim < 2:
        length: Any = max(float(np.sqrt(vectors @ vectors)), _SHORTEST)
    else:
        length = np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), _SHORTEST)
    unit: NDArray[_Float] = vectors / length
    return unit
