"""Patches of a picture are hidden: painted grey, or blurred.

The picture is squeezed to the backbone's square first. That is what the backbone does anyway, and
every patch of the grid becomes a rectangle of whole pixels.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from bm25v import images
from bm25v.backbones import Backbone

Way = Literal["grey", "blur"]
WAYS: tuple[Way, ...] = get_args(Way)
GREY = 128

Pixels = NDArray[np.uint8]  # (side, side, 3)


@dataclass(frozen=True)
class Canvas:
    """A picture, what stands in for its hidden parts, and the patch that each pixel is of."""

    picture_hwc: Pixels
    cover_hwc: Pixels
    patch_hw: NDArray[np.int64]

    @classmethod
    def of(cls, picture_hwc: Pixels, backbone: Backbone, way: Way) -> "Canvas":
        """Squeeze a picture to the backbone's square and make the cover."""
        side, (rows, columns) = backbone.input_size, backbone.grid
        square = images.resize_image(picture_hwc, width=side, height=side)
        row_h, column_w = (np.arange(side) * n // side for n in (rows, columns))
        cover = np.full_like(square, GREY) if way == "grey" else _blurred(square, side / rows / 2)
        return cls(square, cover, row_h[:, None] * columns + column_w)

    def without(self, hidden_p: NDArray[np.bool_]) -> Pixels:
        """Return the picture with some patches hidden, told by a flag for each."""
        return np.where(hidden_p[self.patch_hw][..., None], self.cover_hwc, self.picture_hwc)


def _blurred(square: Pixels, radius: float) -> Pixels:
    return np.array(Image.fromarray(square).filter(ImageFilter.GaussianBlur(radius)))
