"""Text towers: the half of a SigLIP or CLIP model that turns texts into vectors.

In: texts. Out: vectors of length 1 that compare with the dense vectors of the model's vision half.
Not this module's job: which words or images a text finds.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bm25v.backbones import checkpoint
from bm25v.backbones.protocol import Floats
from bm25v.errors import BackboneError

_BATCH_SIZE = 64  # texts
_CACHE_SIZE = 8192  # texts; each search compares its text with all word names again


class _Family(NamedTuple):
    architecture: str  # transformers' class of the text tower
    vectors: str  # the attribute of the model's outputs that holds the vectors
    is_padded: bool  # to the longest text the model takes and without a mask, as in its training


_SIGLIP = _Family("SiglipTextModel", "pooler_output", True)
_FAMILIES = {
    "siglip": _SIGLIP,  # also the SigLIP 2 checkpoints of one fixed size
    "siglip2": _SIGLIP._replace(architecture="Siglip2TextModel"),
    "clip": _Family("CLIPTextModelWithProjection", "text_embeds", False),
}


class TextTower:
    """The text half of a model; it keeps the vectors of recent texts. Threads may share it."""

    def __init__(
        self, name: str, model: Any, tokenizer: Any, family: _Family, max_tokens: int
    ) -> None:
        self.name = name
        self._model = model
        self._tokenizer = tokenizer
        self._family = family
        self._max_tokens = max_tokens
        self._lock = threading.Lock()
        self._cache: OrderedDict[str, Floats] = OrderedDict()  # the least recently used one first

    def embed(self, texts: Sequence[str]) -> Floats:
        """Return a vector of length 1 for each text, one per row; long texts are cut off."""
        keys = [text.lower() for text in texts]
        with self._lock:
            vectors = {key: self._cache[key] for key in keys if key in self._cache}
            new = [key for key in dict.fromkeys(keys) if key not in vectors]
            for start in range(0, len(new), _BATCH_SIZE):
                batch = new[start : start + _BATCH_SIZE]
                vectors.update(zip(batch, self._embed_batch(batch), strict=True))
            for key, vector_e in vectors.items():
                self._cache[key] = vector_e
                self._cache.move_to_end(key)
            while len(self._cache) > _CACHE_SIZE:
                self._cache.popitem(last=False)
        return np.stack([vectors[key] for key in keys])

    def _embed_batch(self, texts: list[str]) -> Floats:
        torch = checkpoint.import_extra("torch", self.name)
        with torch.inference_mode():
            outputs = self._model(**self._tokenize(texts))
        vectors_te = getattr(outputs, self._family.vectors).float().numpy()
        lengths = np.linalg.norm(vectors_te, axis=1, keepdims=True)
        return np.asarray(vectors_te / np.maximum(lengths, 1e-12), dtype=np.float32)

    def _tokenize(self, texts: list[str]) -> dict[str, Any]:
        is_padded = self._family.is_padded
        tokens = self._tokenizer(
            texts,
            padding="max_length" if is_padded else True,
            truncation=True,
            max_length=self._max_tokens,
            return_tensors="pt",
        )
        inputs = ["input_ids"] if is_padded else ["input_ids", "attention_mask"]
        return {key: tokens[key] for key in inputs}


def has_text_tower(backbone_name: str) -> bool:
    """Return whether a backbone has a text tower, without loading any weights.

    >>> has_text_tower("tinyvit-5m")
    False
    """
    source, _ = checkpoint.split_layer(backbone_name)
    return checkpoint.is_model(source) and _find_family(checkpoint.find_model(source)) is not None


def load_text_tower(backbone_name: str) -> TextTower:
    """Return the text tower of a backbone, with its weights."""
    source, _ = checkpoint.split_layer(backbone_name)
    folder = checkpoint.find_model(source) if checkpoint.is_model(source) else None
    family = None if folder is None else _find_family(folder)
    if folder is None or family is None:
        raise BackboneError(
            f"the backbone {backbone_name} has no text tower, so it cannot encode texts: use a "
            "vocabulary made with a SigLIP or CLIP model, such as google/siglip2-base-patch16-224"
        )
    checkpoint.fetch_tokenizer_files(source, folder)
    checkpoint.find_weight_files(source, folder)
    config = checkpoint.read_config(backbone_name, folder)
    text_config = config.text_config
    if hasattr(config, "projection_dim"):  # CLIP keeps it for both towers in the outer config
        text_config.projection_dim = config.projection_dim
    return TextTower(
        backbone_name,
        checkpoint.load_tower(backbone_name, folder, family.architecture, text_config),
        checkpoint.load_tokenizer(backbone_name, folder),
        family,
        int(text_config.max_position_embeddings),
    )


def _find_family(folder: Path) -> _Family | None:
    model_type = checkpoint.read_json(folder / "config.json").get("model_type", "")
    return _FAMILIES.get(model_type)
