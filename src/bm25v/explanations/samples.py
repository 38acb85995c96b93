"""A vocabulary's samples: how often each word is active, and what some of its words look like.

In and out: `words.safetensors` in the vocabulary's folder. Training writes it, because the training
images may be missing later. `choose_words` says which words are worth showing. Not this module's
job: gathering the samples.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import VocabularyError
from bm25v.files import replace_file
from bm25v.schema import check_values, listing, number, parse_object, show_value, table, whole

FORMAT = 1
WORDS = 24
EXAMPLES = 7  # images per word
FILE_NAME = "words.safetensors"

_ENOUGH_IMAGES = 4  # a word in fewer images has little to show
_COUNT = whole(0, 1 << 53)
_DESCRIPTION = {"pictures": _COUNT, "patches": _COUNT, "words": listing(table())}
_WORD = {"pictures": _COUNT, "examples": listing(table())}
_EXAMPLE = {"activation": number(0, 1e9), "patch": listing(number(-1e9, 1e9), 4)}


class PatchBox(NamedTuple):
    """Where a patch is in an image, as shares of its width and height."""

    left: float
    top: float
    width: float
    height: float


class Example(NamedTuple):
    """A part of an image around the patch where a word is strongest."""

    jpeg: bytes
    activation: float
    patch: PatchBox  # where the patch is in this part


class SampleWord(NamedTuple):
    """One word with the images in which it is strongest, best first."""

    word: int
    n_images: int  # how many of the sampled images have the word
    heat_map: bytes  # the best image, whole, with a heat map of the word; a JPEG
    examples: tuple[Example, ...]


@dataclass(frozen=True)
class Samples:
    """Statistics and examples of a vocabulary's words in some images."""

    n_images: int  # sampled images
    patches: int  # in all of them
    counts_v: NDArray[np.uint32]  # patches in which each word is active
    words: tuple[SampleWord, ...]  # from frequent to rare
    stop_words: tuple[int, ...] = ()  # in nearly all of the images; the vocabulary stores them

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
                "pictures": word.n_images,
                "examples": [{"activation": e.activation, "patch": e.patch} for e in word.examples],
            }
            for word in self.words
        ]
        description = {"pictures": self.n_images, "patches": self.patches, "words": words}
        content = save(tensors, {"format": str(FORMAT), "samples": json.dumps(description)})
        replace_file(folder / FILE_NAME, content)

    @classmethod
    def load(cls, folder: Path) -> "Samples | None":
        """Read the samples in a vocabulary's folder; None if it has none."""
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
            return _parse(parse_object(metadata["samples"].encode()), tensors)
        except (OSError, KeyError, TypeError, ValueError, StopIteration, SafetensorError) as error:
            raise VocabularyError(
                f"{path} is damaged: delete it ({show_value(str(error))})"
            ) from error


def choose_words(patches_v: NDArray[np.int64], images_v: NDArray[np.int64]) -> list[int]:
    """Return words spread evenly over the logarithm of their frequency, frequent ones first.

    >>> patches_v = 2 ** np.arange(12)
    >>> choose_words(patches_v, images_v=patches_v)
    [11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    """
    words = np.flatnonzero(images_v >= _ENOUGH_IMAGES)
    if len(words) < WORDS:
        words = np.flatnonzero(images_v)
    words = words[np.argsort(-patches_v[words], kind="stable")]
    if len(words) <= WORDS:
        return [int(word) for word in words]
    logs = np.log(patches_v[words])
    chosen: list[int] = []
    for target in np.linspace(logs[0], logs[-1], WORDS):
        distances = np.abs(logs - target)
        distances[chosen] = np.inf
        chosen.append(int(distances.argmin()))
    return [int(word) for word in words[sorted(chosen)]]


def _parse(description: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> Samples:
    counts_v, sizes = tensors["counts"], tensors["jpeg_sizes"]
    if (
        counts_v.dtype != np.uint32
        or sizes.dtype != np.uint32
        or tensors["jpegs"].dtype != np.uint8
    ):
        raise TypeError("arrays of other types")
    check_values(description, _DESCRIPTION)
    ends = np.cumsum(sizes, dtype=np.int64)
    jpegs = (part.tobytes() for part in np.split(tensors["jpegs"], ends))
    words = []
    for word in description["words"]:
        check_values(word, {"word": whole(0, len(counts_v) - 1), **_WORD})
        heat_map = next(jpegs)
        for example in word["examples"]:
            check_values(example, _EXAMPLE)
        examples = tuple(
            Example(next(jpegs), float(e["activation"]), PatchBox(*map(float, e["patch"])))
            for e in word["examples"]
        )
        words.append(SampleWord(word["word"], word["pictures"], heat_map, examples))
    return Samples(description["pictures"], description["patches"], counts_v, tuple(words))
