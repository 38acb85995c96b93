"""The text towers of models that have one: texts in, vectors in the space of pictures out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bm25v.backbones import checkpoint, towers
from bm25v.backbones.protocol import Floats
from bm25v.errors import BackboneError

_BATCH = 64  # texts at once


class _Family(NamedTuple):
    architecture: str  # transformers' class of the text tower
    vectors: str  # where the model's answer has them
    is_padded: bool  # to the longest text the model takes, and without a mask, as it was trained


_SIGLIP = _Family("SiglipTextModel", "pooler_output", True)
_FAMILIES = {
    "siglip": _SIGLIP,  # also the SigLIP 2 checkpoints of one fixed size
    "siglip2": _SIGLIP._replace(architecture="Siglip2TextModel"),
    "clip": _Family("CLIPTextModelWithProjection", "text_embeds", False),
}


class TextTower:
    """The half of a model that reads texts; its vectors compare with the backbone's dense ones."""

    def __init__(
        self, name: str, model: Any, tokenizer: Any, family: _Family, longest: int
    ) -> None:
        self.name = name
        self._model = model
        self._tokenizer = tokenizer
        self._family = family
        self._longest = longest  # tokens
        self._known: dict[str, Floats] = {}  # names are asked for again with every text

    def embed(self, texts: Sequence[str]) -> Floats:
        """Return a vector of length 1 for each text, a row each; what is too long is cut off."""
        wanted = [text.lower() for text in texts]
        new = [text for text in dict.fromkeys(wanted) if text not in self._known]
        for start in range(0, len(new), _BATCH):
            some = new[start : start + _BATCH]
            self._known.update(zip(some, self._read(some), strict=True))
        return np.stack([self._known[text] for text in wanted])

    def _read(self, texts: list[str]) -> Floats:
        torch = checkpoint.imported("torch", self.name)
        with torch.inference_mode():
            answer = self._model(**self._tokens(texts))
        vectors_te = getattr(answer, self._family.vectors).float().numpy()
        lengths = np.linalg.norm(vectors_te, axis=1, keepdims=True)
        return np.asarray(vectors_te / np.maximum(lengths, 1e-12), dtype=np.float32)

    def _tokens(self, texts: list[str]) -> dict[str, Any]:
        padding = "max_length" if self._family.is_padded else True
        found = self._tokenizer(
            texts, padding=padding, truncation=True, max_length=self._longest, return_tensors="pt"
        )
        wanted = ["input_ids"] if self._family.is_padded else ["input_ids", "attention_mask"]
        return {key: found[key] for key in wanted}


def has_tower(name: str) -> bool:
    """Tell whether a backbone has a text tower, without reading any weights.

    >>> has_tower("tinyvit-5m")
    False
    """
    source, _ = checkpoint.split_layer(name)
    return checkpoint.is_model(source) and _family(checkpoint.find(source)) is not None


def load(name: str) -> TextTower:
    """Return the text tower of a backbone, by the backbone's name."""
    source, _ = checkpoint.split_layer(name)
    if not checkpoint.is_model(source):
        raise BackboneError(_no_tower(name))
    folder = checkpoint.find(source)
    family = _family(folder)
    if family is None:
        raise BackboneError(_no_tower(name))
    checkpoint.fetch_tokenizer(source, folder)
    checkpoint.weight_files(source, folder)
    whole = towers.configuration(name, folder)
    config = whole.text_config
    if hasattr(whole, "projection_dim"):  # CLIP's towers share the outer one
        config.projection_dim = whole.projection_dim
    model = towers.read(name, folder, family.architecture, config)
    tokenizer = towers.tokenizer(name, folder)
    return TextTower(name, model, tokenizer, family, int(config.max_position_embeddings))


def _family(folder: Path) -> _Family | None:
    kind = checkpoint.read_json(folder / "config.json").get("model_type", "")
    return _FAMILIES.get(kind)


def _no_tower(name: str) -> str:
    return (
        f"the backbone {name} has no text tower, so it understands no text: take a vocabulary "
        "made with a SigLIP or CLIP model, such as google/siglip2-base-patch16-224"
    )
