"""A tiny backbone without weights, for tests and examples: the colours of a 7 × 7 grid."""

import numpy as np

from bm25v.backbones.protocol import CPU_BATCH_SIZE, Features, Floats, ImageArray
from bm25v.images import resize_image

_SIDE = 56
_GRID = 7


class ToyBackbone:
    """Describe each patch by the colours of its four quarters; deterministic and fast.

    >>> toy = ToyBackbone()
    >>> features = toy.forward(toy.prepare_image(np.zeros((90, 120, 3), dtype=np.uint8)))
    >>> features.patches_pd.shape, features.dense_e.shape
    ((49, 12), (12,))
    """

    name = "toy"
    definition = None
    fingerprint = "toy-1"
    input_size = _SIDE
    grid = (_GRID, _GRID)
    patch_dim = 12
    dense_dim = 12
    batch_size = CPU_BATCH_SIZE

    def load_weights(self) -> None: ...

    def prepare_image(self, image_hwc: ImageArray) -> Floats:
        small_hwc = resize_image(image_hwc, width=_SIDE, height=_SIDE)
        return small_hwc.astype(np.float32) / 127.5 - 1

    def forward(self, pixels: Floats) -> Features:
        cell = _SIDE // _GRID // 2
        quarters = pixels.reshape(_GRID, 2, cell, _GRID, 2, cell, 3).mean(axis=(2, 5))
        patches_pd = quarters.transpose(0, 2, 1, 3, 4).reshape(_GRID * _GRID, 12)
        return Features(np.ascontiguousarray(patches_pd), self.pool_dense(patches_pd.mean(axis=0)))

    def forward_batch(self, batch: list[Floats]) -> list[Features]:
        return [self.forward(pixels) for pixels in batch]

    def pool_dense(self, mean_d: Floats) -> Floats:
        return mean_d + np.float32(1e-3)
