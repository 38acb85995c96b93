"""MobileNetV2 as a classifier of patches: logits of the 1,000 classes of ImageNet.

Its classifier is linear over the mean of the 7 × 7 patches, so the logits of an image, or of any
part of it, are the mean of those of its patches.
"""

import numpy as np
from numpy.typing import NDArray

from bm25v.backbones.onnx import MOBILENET, OnnxBackbone
from bm25v.backbones.onnx_model import create_session
from bm25v.backbones.protocol import Floats, ImageArray
from bm25v.threads import locked_cached_property

_CLASSIFIER = "mobilenetv20_output_pred_weight"


class Teacher:
    """MobileNetV2 as a classifier of patches; downloaded on first use."""

    def __init__(self) -> None:
        self._backbone = OnnxBackbone(MOBILENET)

    def forward(self, image_hwc: ImageArray) -> Floats:
        """Return the features of each patch, (49, 1280)."""
        return self._backbone.forward(self._backbone.prepare_image(image_hwc)).patches_pd

    def classify_features(self, features: NDArray[np.floating]) -> Floats:
        """Return the logits of features, or of means of features, along the last axis."""
        return np.asarray(features, np.float32) @ self._classifier_dc

    @locked_cached_property
    def _classifier_dc(self) -> Floats:
        session = create_session(*MOBILENET.read_model(), [_CLASSIFIER])
        side = MOBILENET.pixels.size
        pixels = np.zeros((1, 3, side, side), np.float32)  # a constant does not depend on them
        (weights,) = session.run([_CLASSIFIER], {session.get_inputs()[0].name: pixels})
        return np.ascontiguousarray(weights.reshape(weights.shape[0], -1).T)
