"""Backbones that run in Hugging Face transformers: SigLIP, SigLIP 2, DINOv2, DINOv3, CLIP, ViT.

Patch features are the output of the chosen block, before any final norm and without class and
register tokens. The dense vector is the model's own pooling.
"""

import hashlib
import json
import logging
import math
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bm25v.backbones import checkpoint
from bm25v.backbones.protocol import CPU_BATCH_SIZE, Features, Floats, ImageArray
from bm25v.display import duration
from bm25v.errors import BackboneError, InvalidOption
from bm25v.threads import locked_cached_property

_GPU_BATCH_SIZE = 32
_IRRELEVANT_SETTINGS = {  # they describe how a config was written, not the model
    "_name_or_path",
    "architectures",
    "dtype",
    "id2label",
    "label2id",
    "torch_dtype",
    "transformers_version",
}
_OUT_OF_MEMORY = ("out of memory", "allocate memory", "not enough memory")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Family:
    """How one family of models differs from the others."""

    architecture: str  # transformers' class of the vision tower
    dense: str | None = "pooler_output"  # the output of dense vectors; None: the class token
    options: dict[str, Any] = field(default_factory=dict)  # for creating the model
    has_fixed_size: bool = False  # position embeddings are interpolated only on request
    takes_patches: bool = False  # instead of whole images


_SIGLIP = _Family("SiglipVisionModel", has_fixed_size=True)
_SIGLIP2 = _Family("Siglip2VisionModel", takes_patches=True)
_CLIP = _Family("CLIPVisionModelWithProjection", "image_embeds", has_fixed_size=True)
_CLIP_WITHOUT_PROJECTION = _Family("CLIPVisionModel", has_fixed_size=True)
_VIT = _Family("ViTModel", None, options={"add_pooling_layer": False}, has_fixed_size=True)
_FAMILIES = {
    "siglip": _SIGLIP,  # also the SigLIP 2 checkpoints of one fixed size
    "siglip_vision_model": _SIGLIP,
    "siglip2": _SIGLIP2,  # the NaFlex ones
    "siglip2_vision_model": _SIGLIP2,
    "dinov2": _Family("Dinov2Model"),
    "dinov2_with_registers": _Family("Dinov2WithRegistersModel"),
    "dinov3_vit": _Family("DINOv3ViTModel"),
    "clip": _CLIP,
    "clip_vision_model": _CLIP,
    "vit": _VIT,
}


class HuggingFaceBackbone:
    """A frozen model of the Hugging Face hub, or of a folder in its format.

    `layer` is the block whose output becomes patch features: 0 is the first, -1 the last and the
    default. `device` is cpu, cuda, cuda:1, mps …; by default the fastest on this machine. Weights
    are loaded on first use, and downloaded then with `download`; of a model with a text tower only
    the vision tower is loaded.
    """

    definition = None

    def __init__(
        self,
        name: str,
        *,
        layer: int | None = None,
        device: str | None = None,
        download: bool = False,
    ) -> None:
        self._source, named_layer = checkpoint.split_layer(name)
        self._download = download
        self._torch = checkpoint.import_extra("torch", name)
        checkpoint.import_extra("transformers", name)
        self._device = find_device(self._torch, device)
        self._folder = checkpoint.find_model(self._source, download=download)
        self._settings = checkpoint.read_json(self._folder / "config.json")
        self._family = _find_family(name, self._settings)
        self._config = checkpoint.read_tower_config(name, self._folder, "vision_config")
        if getattr(self._config, "vision_use_head", True) is False:
            raise BackboneError(
                f"the model in {self._folder} has no pooling head, so it gives no dense vector: "
                "use a model that has one"
            )
        blocks = self._config.num_hidden_layers
        chosen = next((n for n in (layer, named_layer) if n is not None), blocks - 1)
        if not -blocks <= chosen < blocks:
            raise BackboneError(
                f"{name} has no layer {chosen}: it has layers 0 to {blocks - 1} "
                f"(or -{blocks} to -1)"
            )
        self._layer = chosen % blocks
        if hasattr(self._config, "image_size"):
            self._image_size = int(self._config.image_size)
        else:  # NaFlex
            n_patches, side = self._config.num_patches, self._config.patch_size
            self._image_size = math.isqrt(n_patches) * int(side)
        self._preparation = checkpoint.read_preparation(self._folder, image_size=self._image_size)
        source = str(self._folder) if checkpoint.is_model_folder(self._source) else self._source
        self.name = source if self._layer == blocks - 1 else f"{source}#{self._layer}"
        self.input_size = self._preparation.side
        rows = self.input_size // self._config.patch_size
        self.grid = (rows, rows)
        self.patch_dim: int = self._config.hidden_size
        is_projected = self._family is _CLIP
        self.dense_dim: int = self._config.projection_dim if is_projected else self.patch_dim
        self.batch_size = CPU_BATCH_SIZE if self._device.type == "cpu" else _GPU_BATCH_SIZE
        self._lock = threading.Lock()
        self._batch_limit = 2**31  # images; lowered when a batch does not fit into memory

    @locked_cached_property
    def fingerprint(self) -> str:
        """A hash of weights, configuration, layer and preparation; the same on every device."""
        settings = self._settings.get("vision_config", self._settings)
        relevant = {key: settings[key] for key in settings.keys() - _IRRELEVANT_SETTINGS}
        weights = checkpoint.hash_weights(self._find_weight_files())
        architecture, described = self._family.architecture, json.dumps(relevant, sort_keys=True)
        identity = (architecture, described, weights, self._layer, self._preparation)
        return hashlib.sha256(repr(identity).encode()).hexdigest()[:16]

    def load_weights(self) -> Any:
        return self._model

    @locked_cached_property
    def _model(self) -> Any:
        self._find_weight_files()
        family, start = self._family, time.perf_counter()
        model = checkpoint.load_tower(
            self.name, self._folder, family.architecture, self._config, **family.options
        ).to(self._device)
        seconds = duration(time.perf_counter() - start)
        _log.info("loaded %s on %s in %s", self.name, self._device, seconds)
        return model

    def _find_weight_files(self) -> list[Path]:
        return checkpoint.find_weight_files(self._source, self._folder, download=self._download)

    def prepare_image(self, image_hwc: ImageArray) -> Floats:
        return self._preparation.prepare_image(image_hwc)

    def forward(self, pixels: Floats) -> Features:
        return self.forward_batch([pixels])[0]

    def pool_dense(self, mean_d: Floats) -> None:
        """Return None: these models pool by attention, or by a class token."""

    def forward_batch(self, batch: list[Floats]) -> list[Features]:
        """Return the features of prepared images, as many at a time as memory holds."""
        self.load_weights()
        features: list[Features] = []
        while len(features) < len(batch):
            chunk = batch[len(features) : len(features) + self._batch_limit]
            try:
                features += self._run(np.concatenate(chunk))
                continue
            except RuntimeError as error:
                if not any(sign in str(error).lower() for sign in _OUT_OF_MEMORY):
                    raise
                if len(chunk) == 1:
                    raise BackboneError(
                        f"{self.name} does not fit into the memory of {self._device}: "
                        "free some memory, or use device='cpu' or a smaller model"
                    ) from error
            # Only now are the tensors of the failed pass free: the error referred to them.
            self._batch_limit = len(chunk) // 2
            _log.warning(
                "%s images do not fit into the memory of %s at once: continuing with batches of %s",
                len(chunk),
                self._device,
                self._batch_limit,
            )
            if self._device.type == "cuda":
                self._torch.cuda.empty_cache()
        return features

    def _run(self, pixels_bchw: Floats) -> list[Features]:
        torch = self._torch
        block_outputs: list[Any] = []
        with self._lock, torch.inference_mode(), self._autocast():
            inputs = self._make_inputs(torch.from_numpy(pixels_bchw).to(self._device))
            # The list of blocks has another name in each family.
            lists = (m for m in self._model.modules() if isinstance(m, torch.nn.ModuleList))
            n_blocks = self._config.num_hidden_layers
            block = next(blocks for blocks in lists if len(blocks) == n_blocks)[self._layer]
            hook = block.register_forward_hook(
                lambda _block, _inputs, output: block_outputs.append(output)
            )
            try:
                outputs = self._model(**inputs)
            finally:
                hook.remove()
            tokens = block_outputs[0]
            if isinstance(tokens, tuple):  # in older versions of transformers
                tokens = tokens[0]
            # Class and register tokens come first in every family.
            patches_bpd = tokens[:, -self.grid[0] * self.grid[1] :].float().cpu().numpy()
            dense = self._family.dense
            dense_be = getattr(outputs, dense) if dense else outputs.last_hidden_state[:, 0]
            dense_be = dense_be.float().cpu().numpy()
        return [Features(*pair) for pair in zip(patches_bpd, dense_be, strict=True)]

    def _make_inputs(self, pixels_bchw: Any) -> dict[str, Any]:
        if self._family.takes_patches:
            torch, side = self._torch, self._config.patch_size
            n, device, (rows, columns) = len(pixels_bchw), pixels_bchw.device, self.grid
            cut = pixels_bchw.reshape(n, 3, rows, side, columns, side).permute(0, 2, 4, 3, 5, 1)
            return {
                "pixel_values": cut.reshape(n, rows * columns, -1),
                "pixel_attention_mask": torch.ones(
                    n, rows * columns, dtype=torch.int, device=device
                ),
                "spatial_shapes": torch.tensor([self.grid] * n),
            }
        inputs = {"pixel_values": pixels_bchw}
        if self._family.has_fixed_size and self.input_size != self._image_size:
            inputs["interpolate_pos_encoding"] = True
        return inputs

    def _autocast(self) -> Any:
        torch, device = self._torch, self._device.type
        has_bfloat16 = device != "mps" and (device != "cuda" or torch.cuda.is_bf16_supported())
        dtype = torch.bfloat16 if has_bfloat16 else torch.float16
        return torch.autocast(device, dtype=dtype, enabled=device != "cpu")


def find_device(torch: Any, name: str | None) -> Any:
    """Return torch's device of that name, or the fastest on this machine if it is None."""
    available = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    available += ["mps"] if torch.backends.mps.is_available() else []
    available += ["cpu"]
    if name is None:
        return torch.device(available[0])
    if name not in {*available, *(device.partition(":")[0] for device in available)}:
        raise InvalidOption(f"no device {name!r} on this machine, only: {', '.join(available)}")
    return torch.device(name)


def _find_family(name: str, settings: dict[str, Any]) -> _Family:
    model_type = settings.get("model_type")
    if model_type not in _FAMILIES:
        known = ", ".join(_FAMILIES)
        raise BackboneError(f"{name} is a model of type {model_type!r}; bm25v reads: {known}")
    if settings.get("architectures") == ["CLIPVisionModel"]:  # saved without the projection
        return _CLIP_WITHOUT_PROJECTION
    return _FAMILIES[model_type]
