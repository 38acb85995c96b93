"""A tiny backbone without weights, for tests and examples: colours and edges of a 7 × 7 grid."""

import numpy as np

from bm25v.backbones.protocol import CPU_BATCH, Features, Floats, Image
from bm25v.images import resize_image

_SIDE = 56
_GRID = 7


class ToyBackbone:
    """Describe each patch by its colours, coarse and fine; deterministic and fast.

    >>> toy = ToyBackbone()
    >>> features = toy.forward(toy.prepare(np.zeros((90, 120, 3), dtype=np.uint8)))
    >>> features.patches_pd.shape, features.dense_e.shape
    ((49, 12), (12,))
    """

    name = "toy"
    fingerprint = "toy-1"
    input_size = _SIDE
    grid = (_GRID, _GRID)
    patch_dim = 12
    dense_dim = 12
    batch = CPU_BATCH

    def load(self) -> None:
        """Do nothing: there are no weights."""

    def prepare(self, image_hwc: Image) -> Floats:
        """Return a picture as a (56, 56, 3) array between -1 and 1."""
        small = resize_image(image_hwc, width=_SIDE, height=_SIDE)
        return small.astype(np.float32) / 127.5 - 1

    def forward(self, pixels: Floats) -> Features:
        """Return the mean colour of each patch's four quarters."""
        cell = _SIDE // _GRID // 2
        quarters = pixels.reshape(_GRID, 2, cell, _GRID, 2, cell, 3).mean(axis=(2, 5))
        patches_pd = quarters.transpose(0, 2, 1, 3, 4).reshape(_GRID * _GRID, 12)
        return Features(np.ascontiguousarray(patches_pd), self.pooled(patches_pd.mean(axis=0)))

    def pooled(self, mean_d: Floats) -> Floats:
        """Return the dense vector of patches with this mean."""
        return mean_d + np.float32(1e-3)

    def forward_batch(self, batch: list[Floats]) -> list[Features]:
        """Return the features of prepared pictures, one after the other."""
        return [self.forward(pixels) for pixels in batch]
