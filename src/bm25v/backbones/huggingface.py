"""Backbones that run in Hugging Face transformers: SigLIP, SigLIP 2, DINOv2, DINOv3, CLIP, ViT.

Patch features are what the chosen block puts out, before any final norm and without class and
register tokens. The dense vector is the model's own pooling. Both come from one forward pass.
"""

import hashlib
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bm25v.backbones import checkpoint, devices, towers
from bm25v.backbones.protocol import CPU_BATCH, Features, Floats, Image
from bm25v.errors import BackboneError

_GPU_BATCH = 32


@dataclass(frozen=True)
class _Family:
    """What sets one kind of model apart from the others."""

    architecture: str  # transformers' class of the vision tower
    dense: Callable[[Any], Any]  # takes the dense vectors out of the model's answer
    options: dict[str, Any] = field(default_factory=dict)  # for making the model
    fixed_size: bool = False  # position embeddings are stretched only if asked
    patches_in: bool = False  # takes pictures cut into patches


def _pooled(answer: Any) -> Any:
    return answer.pooler_output


_SIGLIP = _Family("SiglipVisionModel", _pooled, fixed_size=True)
_SIGLIP2 = _Family("Siglip2VisionModel", _pooled, patches_in=True)
_CLIP = _Family("CLIPVisionModelWithProjection", lambda a: a.image_embeds, fixed_size=True)
_VIT = _Family(
    "ViTModel",
    lambda answer: answer.last_hidden_state[:, 0],
    options={"add_pooling_layer": False},
    fixed_size=True,
)
_FAMILIES = {
    "siglip": _SIGLIP,  # also the SigLIP 2 checkpoints of one fixed size
    "siglip_vision_model": _SIGLIP,
    "siglip2": _SIGLIP2,  # the NaFlex ones
    "siglip2_vision_model": _SIGLIP2,
    "dinov2": _Family("Dinov2Model", _pooled),
    "dinov2_with_registers": _Family("Dinov2WithRegistersModel", _pooled),
    "dinov3_vit": _Family("DINOv3ViTModel", _pooled),
    "clip": _CLIP,
    "clip_vision_model": _CLIP,
    "vit": _VIT,
}


class HuggingFaceBackbone:
    """A frozen model of the Hugging Face hub, or of a folder in its format.

    `layer` is the block whose output becomes patch features: 0 is the first, -1 the last and the
    default. `device` is cpu, cuda, cuda:1, mps …; by default the fastest there is. Weights are
    fetched and read on first use; only the vision tower of a two-tower model is kept.
    """

    def __init__(self, name: str, *, layer: int | None = None, device: str | None = None) -> None:
        self._source, named_layer = checkpoint.split_layer(name)
        self._torch = checkpoint.imported("torch", name)
        checkpoint.imported("transformers", name)
        self._device = devices.find(self._torch, device)
        self._folder = checkpoint.find(self._source)
        self._described = checkpoint.read_json(self._folder / "config.json")
        self._family = _family(name, self._described)
        self._config = _vision_config(name, self._folder)
        blocks = self._config.num_hidden_layers
        self._layer = _layer(name, named_layer if layer is None else layer, blocks)
        self._image_size = _image_size(self._config)
        self._preparation = checkpoint.preparation(self._folder, image_size=self._image_size)
        source = str(self._folder) if checkpoint.is_folder(self._source) else self._source
        self.name = source if self._layer == blocks - 1 else f"{source}#{self._layer}"
        self.input_size = self._preparation.side
        rows = self.input_size // self._config.patch_size
        self.grid = (rows, rows)
        self.patch_dim: int = self._config.hidden_size
        projected = self._family is _CLIP
        self.dense_dim: int = self._config.projection_dim if projected else self.patch_dim
        self.batch = CPU_BATCH if self._device.type == "cpu" else _GPU_BATCH
        self._lock = threading.Lock()
        self._model: Any = None
        self._most = 2**31  # pictures that fit into memory at once, as far as we know

    @cached_property
    def fingerprint(self) -> str:
        """A hash of weights, configuration, layer and preparation; the same on every device."""
        settings = checkpoint.vision_settings(self._described)
        weights = checkpoint.weights_hash(checkpoint.weight_files(self._source, self._folder))
        kind = self._family.architecture
        identity = (kind, settings, weights, self._layer, self._preparation)
        return hashlib.sha256(repr(identity).encode()).hexdigest()[:16]

    def load(self) -> Any:
        """Return the model, read on first use."""
        with self._lock:
            if self._model is None:
                self._model = self._read()
        return self._model

    def prepare(self, image_hwc: Image) -> Floats:
        """Return a picture as a normalised (1, 3, side, side) array."""
        return self._preparation.pixels(image_hwc)

    def forward(self, pixels: Floats) -> Features:
        """Return the patch features and the dense vector of a prepared picture."""
        return self.forward_batch([pixels])[0]

    def pooled(self, mean_d: Floats) -> None:
        """Return None: these models pool by attention, or have a token for it."""

    def forward_batch(self, batch: list[Floats]) -> list[Features]:
        """Return the features of prepared pictures, as many at a time as memory holds."""
        self.load()
        done: list[Features] = []
        while len(done) < len(batch):
            chunk = batch[len(done) : len(done) + self._most]
            try:
                done += self._run(np.concatenate(chunk))
                continue
            except RuntimeError as error:
                if not _out_of_memory(error):
                    raise
                if len(chunk) == 1:
                    raise BackboneError(
                        f"{self.name} does not fit into the memory of {self._device}: "
                        "free some, or take device='cpu' or a smaller model"
                    ) from error
            # Only here, with the error gone, are the tensors of the failed pass free.
            self._most = len(chunk) // 2
            if self._device.type == "cuda":
                self._torch.cuda.empty_cache()
        return done

    def _run(self, pixels_bchw: Floats) -> list[Features]:
        torch = self._torch
        caught: list[Any] = []
        with self._lock, torch.inference_mode(), self._precision():
            inputs = self._inputs(torch.from_numpy(pixels_bchw).to(self._device))
            block = _blocks(torch, self._model, self._config.num_hidden_layers)[self._layer]
            hook = block.register_forward_hook(
                lambda _block, _inputs, output: caught.append(output)
            )
            try:
                answer = self._model(**inputs)
            finally:
                hook.remove()
            # Older versions of transformers put a tuple out.
            tokens = caught[0][0] if isinstance(caught[0], tuple) else caught[0]
            # Class and register tokens come first in every family.
            patches_bpd = tokens[:, -self.grid[0] * self.grid[1] :].float().cpu().numpy()
            dense_be = self._family.dense(answer).float().cpu().numpy()
        return [Features(*pair) for pair in zip(patches_bpd, dense_be, strict=True)]

    def _inputs(self, pixels_bchw: Any) -> dict[str, Any]:
        if self._family.patches_in:
            return _cut(self._torch, pixels_bchw, self.grid, self._config.patch_size)
        inputs = {"pixel_values": pixels_bchw}
        if self._family.fixed_size and self.input_size != self._image_size:
            inputs["interpolate_pos_encoding"] = True
        return inputs

    def _precision(self) -> Any:
        torch, kind = self._torch, self._device.type
        bfloat = kind != "mps" and (kind != "cuda" or torch.cuda.is_bf16_supported())
        dtype = torch.bfloat16 if bfloat else torch.float16
        return torch.autocast(kind, dtype=dtype, enabled=kind != "cpu")

    def _read(self) -> Any:
        checkpoint.weight_files(self._source, self._folder)
        model = towers.read(
            self.name,
            self._folder,
            self._family.architecture,
            self._config,
            **self._family.options,
        )
        return model.to(self._device)


def _family(name: str, described: dict[str, Any]) -> _Family:
    kind = described.get("model_type")
    if kind not in _FAMILIES:
        known = ", ".join(_FAMILIES)
        raise BackboneError(f"{name} is a model of type {kind!r}; bm25v reads: {known}")
    return _FAMILIES[kind]


def _vision_config(name: str, folder: Path) -> Any:
    config = towers.configuration(name, folder)
    vision = getattr(config, "vision_config", config)
    if getattr(vision, "vision_use_head", True) is False:
        raise BackboneError(f"the model in {folder} has no pooling head, so no dense vector")
    if hasattr(config, "projection_dim"):  # CLIP's towers share the outer one
        vision.projection_dim = config.projection_dim
    return vision


def _image_size(config: Any) -> int:
    if hasattr(config, "image_size"):
        return int(config.image_size)
    return math.isqrt(config.num_patches) * int(config.patch_size)  # NaFlex


def _layer(name: str, layer: int | None, blocks: int) -> int:
    chosen = blocks - 1 if layer is None else layer
    if not -blocks <= chosen < blocks:
        raise BackboneError(
            f"{name} has no layer {chosen}: it has layers 0 to {blocks - 1} (or -{blocks} to -1)"
        )
    return chosen % blocks


def _blocks(torch: Any, model: Any, count: int) -> Any:
    """Return the list of transformer blocks, which every family keeps under another name."""
    lists = (m for m in model.modules() if isinstance(m, torch.nn.ModuleList))
    return next(blocks for blocks in lists if len(blocks) == count)


def _cut(torch: Any, pixels_bchw: Any, grid: tuple[int, int], patch: int) -> dict[str, Any]:
    """Cut pictures into flat patches, as NaFlex models take them."""
    rows, columns = grid
    count, device = pixels_bchw.shape[0], pixels_bchw.device
    cut = pixels_bchw.reshape(count, 3, rows, patch, columns, patch).permute(0, 2, 4, 3, 5, 1)
    return {
        "pixel_values": cut.reshape(count, rows * columns, -1),
        "pixel_attention_mask": torch.ones(count, rows * columns, dtype=torch.int, device=device),
        "spatial_shapes": torch.tensor([grid] * count),
    }


def _out_of_memory(error: RuntimeError) -> bool:
    words = str(error).lower()
    return "out of memory" in words or "allocate memory" in words or "not enough memory" in words
