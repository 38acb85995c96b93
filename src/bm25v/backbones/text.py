"""Text towers: the half of a SigLIP or CLIP model that turns texts into vectors.

The vectors have length 1 and compare with the dense vectors of the model's vision half.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bm25v.backbones import checkpoint
from bm25v.backbones.protocol import Floats
from bm25v.dense import normalise
from bm25v.errors import BackboneError

_BATCH_SIZE = 64  # texts
CACHE_SIZE = 8192  # texts; each search compares its text with all word names again


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
    """The text half of a model; it keeps the vectors of recent texts. Threads may share it.

    `compute` returns the vectors of some texts in lower case, one per row.
    """

    def __init__(self, name: str, compute: Callable[[list[str]], Floats]) -> None:
        self.name = name
        self._compute = compute
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
                vectors.update(zip(batch, self._compute(batch), strict=True))
            for key, vector_e in vectors.items():
                self._cache[key] = vector_e
                self._cache.move_to_end(key)
            while len(self._cache) > CACHE_SIZE:
                self._cache.popitem(last=False)
        return np.stack([vectors[key] for key in keys])


def has_text_tower(backbone_name: str) -> bool:
    """Return whether a backbone has a text tower, without loading any weights.

    >>> has_text_tower("tinyvit-5m")
    False
    """
    return _find_tower(backbone_name) is not None


def load_text_tower(backbone_name: str) -> TextTower:
    tower = _find_tower(backbone_name)
    if tower is None:
        raise BackboneError(
            f"the backbone {backbone_name} has no text tower, so it cannot encode texts: use a "
            "vocabulary made with a SigLIP or CLIP model, such as google/siglip2-base-patch16-224"
        )
    source, folder, family = tower
    tokenizer = checkpoint.load_tokenizer(backbone_name, source, folder)
    config = checkpoint.read_tower_config(backbone_name, folder, "text_config")
    checkpoint.find_weight_files(source, folder)
    model = checkpoint.load_tower(backbone_name, folder, family.architecture, config)
    torch = checkpoint.import_extra("torch", backbone_name)

    def compute(texts: list[str]) -> Floats:
        tokens = tokenizer(
            texts,
            padding="max_length" if family.is_padded else True,
            truncation=True,
            max_length=int(config.max_position_embeddings),
            return_tensors="pt",
        )
        inputs = ["input_ids"] if family.is_padded else ["input_ids", "attention_mask"]
        with torch.inference_mode():
            outputs = model(**{key: tokens[key] for key in inputs})
        vectors_te = getattr(outputs, family.vectors).float().numpy()
        return np.asarray(normalise(vectors_te), dtype=np.float32)

    return TextTower(backbone_name, compute)


def _find_tower(backbone_name: str) -> tuple[str, Path, _Family] | None:
    """Return a model's source, its folder and its family; None if it has no text tower."""
    source, _ = checkpoint.split_layer(backbone_name)
    if not checkpoint.is_model(source):
        return None
    folder = checkpoint.find_model(source)
    model_type = checkpoint.read_json(folder / "config.json").get("model_type", "")
    return (source, folder, _FAMILIES[model_type]) if model_type in _FAMILIES else None
