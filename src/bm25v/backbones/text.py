"""Text towers: the half of a SigLIP or CLIP model that turns texts into vectors.

The vectors have length 1 and compare with the dense vectors of the model's vision half.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bm25v.backbones import checkpoint
from bm25v.backbones.protocol import Floats
from bm25v.dense import normalise
from bm25v.errors import BackboneError

_BATCH_SIZE = 64  # texts
CACHE_SIZE = 1024  # texts: a search is followed by others with the same one
_ARCHITECTURES = {  # transformers' class of the text tower, by the type of a model
    "siglip": "SiglipTextModel",  # also the SigLIP 2 checkpoints of one fixed size
    "siglip2": "Siglip2TextModel",
    "clip": "CLIPTextModelWithProjection",
}


class TextTower:
    """The text half of a model; it keeps the vectors of the last texts. Threads may share it.

    `compute` returns the vectors of some texts in lower case, one per row.
    """

    def __init__(self, compute: Callable[[list[str]], Floats]) -> None:
        self._compute = compute
        self._lock = threading.Lock()
        self._vectors: dict[str, Floats] = {}

    def embed(self, texts: Sequence[str]) -> Floats:
        """Return a vector of length 1 for each text, one per row; long texts are cut off."""
        keys = [text.lower() for text in texts]
        with self._lock:
            new = [key for key in dict.fromkeys(keys) if key not in self._vectors]
            for start in range(0, len(new), _BATCH_SIZE):
                batch = new[start : start + _BATCH_SIZE]
                self._vectors.update(zip(batch, self._compute(batch), strict=True))
            vectors_te = np.stack([self._vectors[key] for key in keys])
            for key in list(self._vectors)[:-CACHE_SIZE]:
                del self._vectors[key]
        return vectors_te


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
    source, folder, model_type = tower
    tokenizer = checkpoint.load_tokenizer(backbone_name, folder)
    config = checkpoint.read_tower_config(backbone_name, folder, "text_config")
    checkpoint.find_weight_files(source, folder)
    architecture, is_clip = _ARCHITECTURES[model_type], model_type == "clip"
    model = checkpoint.load_tower(backbone_name, folder, architecture, config)
    torch = checkpoint.import_extra("torch", backbone_name)

    def compute(texts: list[str]) -> Floats:
        # SigLIP was trained with texts of one length, padded and without a mask.
        tokens = tokenizer(
            texts,
            padding=True if is_clip else "max_length",
            truncation=True,
            max_length=int(config.max_position_embeddings),
            return_tensors="pt",
        )
        inputs = ["input_ids", "attention_mask"] if is_clip else ["input_ids"]
        with torch.inference_mode():
            outputs = model(**{key: tokens[key] for key in inputs})
        vectors_te = outputs.text_embeds if is_clip else outputs.pooler_output
        return np.asarray(normalise(vectors_te.float().numpy()), dtype=np.float32)

    return TextTower(compute)


def _find_tower(backbone_name: str) -> tuple[str, Path, str] | None:
    """Return a model's source, its folder and its type; None if it has no text tower."""
    source, _ = checkpoint.split_layer(backbone_name)
    if not checkpoint.is_model(source):
        return None
    folder = checkpoint.find_model(source)
    model_type = checkpoint.read_json(folder / "config.json").get("model_type", "")
    return (source, folder, model_type) if model_type in _ARCHITECTURES else None
