"""Two backbones as one: the patches of the first, the dense vectors of both.

The dense vector is that of the first followed by that of the second, each of length 1. So the
cosine of two images is the mean of the two cosines, and the first values of a vector compare with
what the first backbone computes alone.
"""

import hashlib

import numpy as np

from bm25v.backbones.protocol import Backbone, Features, Floats, ImageArray
from bm25v.dense import normalise


class PairedBackbone:
    """A backbone with the patches of one model, for words, and the dense vectors of two.

    >>> from bm25v.backbones.toy import ToyBackbone
    >>> pair = PairedBackbone(ToyBackbone(), ToyBackbone())
    >>> features = pair.forward(pair.prepare_image(np.zeros((90, 120, 3), dtype=np.uint8)))
    >>> pair.name, features.patches_pd.shape, features.dense_e.shape
    ('toy+toy', (49, 12), (24,))
    """

    def __init__(self, first: Backbone, second: Backbone) -> None:
        self.first, self.second = first, second
        self.name, self.definition = f"{first.name}+{second.name}", first.definition
        self.fingerprint = pair_fingerprints(first.fingerprint, second.fingerprint)
        self.input_size = max(first.input_size, second.input_size)
        self.batch_size = first.batch_size
        empty = np.zeros((1, 1, 3), np.uint8)
        self._shapes = [backbone.prepare_image(empty).shape for backbone in (first, second)]

    @property
    def grid(self) -> tuple[int, int]:
        return self.first.grid

    @property
    def patch_dim(self) -> int:
        return self.first.patch_dim

    @property
    def dense_dim(self) -> int:
        return self.first.dense_dim + self.second.dense_dim

    def load_weights(self) -> None:
        self.first.load_weights()
        self.second.load_weights()

    def prepare_image(self, image_hwc: ImageArray) -> Floats:
        """Return an image as the inputs of both models, one after the other."""
        inputs = (self.first.prepare_image(image_hwc), self.second.prepare_image(image_hwc))
        return np.concatenate([pixels.ravel() for pixels in inputs])

    def forward(self, pixels: Floats) -> Features:
        return self.forward_batch([pixels])[0]

    def forward_batch(self, batch: list[Floats]) -> list[Features]:
        first_shape, second_shape = self._shapes
        n_first = int(np.prod(first_shape))
        first = self.first.forward_batch([p[:n_first].reshape(first_shape) for p in batch])
        second = self.second.forward_batch([p[n_first:].reshape(second_shape) for p in batch])
        return [
            Features(
                own.patches_pd, np.concatenate([normalise(own.dense_e), normalise(other.dense_e)])
            )
            for own, other in zip(first, second, strict=True)
        ]

    def pool_dense(self, mean_d: Floats) -> Floats | None:
        """Return the first backbone's dense vector: patches say nothing about the second one."""
        return self.first.pool_dense(mean_d)


def pair_fingerprints(first: str, second: str) -> str:
    return hashlib.sha256(f"{first} {second}".encode()).hexdigest()[:16]
