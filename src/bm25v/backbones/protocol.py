"""The protocol that every backbone implements."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

ImageArray = NDArray[np.uint8]  # (H, W, 3), upright RGB
Floats = NDArray[np.float32]

CPU_BATCH_SIZE = 4  # a batch makes no forward pass faster on a CPU, but the SAE is faster then


class Features(NamedTuple):
    """What one forward pass gives for one image."""

    patches_pd: Floats  # one row per patch, in reading order of the grid
    dense_e: Floats  # the whole image


class Backbone(Protocol):
    """A frozen vision model: images in, patch features and one dense vector per image out."""

    @property
    def name(self) -> str:
        """The name that `load_backbone` takes, unless there is a definition."""

    @property
    def definition(self) -> Mapping[str, Any] | None:
        """What `restore_backbone` needs beside the name, as JSON values; None for most models."""

    @property
    def fingerprint(self) -> str:
        """A hash of everything that decides its output: weights, chosen layer, preprocessing."""

    @property
    def input_size(self) -> int:
        """The side of the square, in pixels, that every image is resized to."""

    @property
    def grid(self) -> tuple[int, int]:
        """The rows and columns of patches; they cover the whole image."""

    @property
    def patch_dim(self) -> int:
        """D, the width of a patch feature."""

    @property
    def dense_dim(self) -> int:
        """E, the width of the dense vector."""

    @property
    def batch_size(self) -> int:
        """The best number of images per batch."""

    def load_weights(self) -> object:
        """Load the weights now rather than at the first forward pass."""

    def prepare_image(self, image_hwc: ImageArray) -> Floats:
        """Return an image of any size as the model's input."""

    def forward(self, pixels: Floats) -> Features:
        """Return the features of a prepared image; safe to call from several threads."""

    def forward_batch(self, batch: list[Floats]) -> list[Features]:
        """Return the features of each prepared image; safe to call from several threads."""

    def pool_dense(self, mean_d: Floats) -> Floats | None:
        """Return the dense vector of patches with this mean, or None.

        None means that the model computes its dense vector from something else than the mean.
        """
