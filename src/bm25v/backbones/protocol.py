"""What every backbone offers."""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]  # (H, W, 3), upright RGB
Floats = NDArray[np.float32]

CPU_BATCH = 4  # the passes gain nothing from a batch there, but the words that are made of them do


class Features(NamedTuple):
    """What one forward pass says of one picture."""

    patches_pd: Floats  # a row a patch, in reading order of the grid
    dense_e: Floats  # the whole picture


class Backbone(Protocol):
    """A frozen vision model: pictures in, patch features and one dense vector of each out."""

    @property
    def name(self) -> str:
        """The name it is loaded by."""

    @property
    def fingerprint(self) -> str:
        """A hash of all that decides its output: weights, chosen layer, preprocessing."""

    @property
    def input_size(self) -> int:
        """The side of the square, in pixels, that every picture is resized to."""

    @property
    def grid(self) -> tuple[int, int]:
        """Patches in rows and columns; they cover the whole picture."""

    @property
    def patch_dim(self) -> int:
        """D, the width of a patch feature."""

    @property
    def dense_dim(self) -> int:
        """E, the width of the dense vector."""

    @property
    def batch(self) -> int:
        """How many pictures are best handed over at once; known before the weights are read."""

    def load(self) -> object:
        """Read the weights now rather than at the first forward pass."""

    def prepare(self, image_hwc: Image) -> Floats:
        """Return a picture, of any size, as the model takes it."""

    def forward(self, pixels: Floats) -> Features:
        """Return what the model says of a prepared picture; safe to call from several threads."""

    def pooled(self, mean_d: Floats) -> Floats | None:
        """Return the dense vector of patches with this mean; None if it is not made of the mean."""

    def forward_batch(self, batch: list[Floats]) -> list[Features]:
        """Return what the model says of each prepared picture; safe like `forward`."""
