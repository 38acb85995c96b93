"""How often each word is active, and some words with their best pictures: a vocabulary's samples.

Training leaves them in the vocabulary's folder, as the pictures may be gone later.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import VocabularyError

FORMAT = 1
FILE_NAME = "words.safetensors"


class Box(NamedTuple):
    """A part of a picture, in shares of its width and height."""

    left: float
    top: float
    width: float
    height: float


class Example(NamedTuple):
    """A part of a picture around the patch where a word is strongest."""

    jpeg: bytes
    activation: float
    patch: Box  # where the patch is in this part


class SampleWord(NamedTuple):
    """One word with the pictures that it is strongest in, best first."""

    word: int
    pictures: int  # of all that were looked at, those that have the word
    heat_map: bytes  # the first of them whole, a JPEG that glows where the word is
    examples: tuple[Example, ...]


@dataclass(frozen=True)
class Samples:
    """What was seen of a vocabulary's words in some pictures."""

    pictures: int
    patches: int
    counts_v: NDArray[np.uint32]  # patches that activate each word
    words: tuple[SampleWord, ...]  # from frequent to rare

    def save(self, folder: Path) -> None:
        """Write the samples into a vocabulary's folder."""
        from safetensors.numpy import save

        jpegs = [
            jpeg
            for word in self.words
            for jpeg in (word.heat_map, *(e.jpeg for e in word.examples))
        ]
        tensors: dict[str, NDArray[Any]] = {
            "counts": self.counts_v,
            "jpegs": np.frombuffer(b"".join(jpegs), dtype=np.uint8),
            "jpeg_sizes": np.array([len(jpeg) for jpeg in jpegs], dtype=np.uint32),
        }
        words = [
            {
                "word": word.word,
                "pictures": word.pictures,
                "examples": [{"activation": e.activation, "patch": e.patch} for e in word.examples],
            }
            for word in self.words
        ]
        seen = {"pictures": self.pictures, "patches": self.patches, "words": words}
        content = save(tensors, {"format": str(FORMAT), "samples": json.dumps(seen)})
        (folder / FILE_NAME).write_bytes(content)

    @classmethod
    def load(cls, folder: Path) -> "Samples | None":
        """Return the samples in a vocabulary's folder, or None if it has none."""
        from safetensors import SafetensorError, safe_open

        path = folder / FILE_NAME
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata()
                if int(metadata["format"]) > FORMAT:
                    raise VocabularyError(f"{path} was written by a newer bm25v: upgrade bm25v")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return _read(json.loads(metadata["samples"]), tensors)
        except (OSError, KeyError, TypeError, ValueError, StopIteration, SafetensorError) as error:
            raise VocabularyError(f"{path} is damaged: delete it ({error!r})") from error


def _read(seen: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> Samples:
    ends = np.cumsum(tensors["jpeg_sizes"], dtype=np.int64)
    jpegs = (part.tobytes() for part in np.split(tensors["jpegs"], ends))
    words = []
    for word in seen["words"]:
        heat_map = next(jpegs)
        examples = tuple(
            Example(next(jpegs), float(e["activation"]), Box(*map(float, e["patch"])))
            for e in word["examples"]
        )
        words.append(SampleWord(int(word["word"]), int(word["pictures"]), heat_map, examples))
    return Samples(int(seen["pictures"]), int(seen["patches"]), tensors["counts"], tuple(words))
