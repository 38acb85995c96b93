"""English words and phrases as directions in the dense space and as visual words.

The table was learned from captioned photos (`tools/`), so that a text is understood without a
model. An entry has a direction d over the dense vector x of an image, and up to 64 visual words
with weights c over f, what BM25 gives for each. How much an image shows the entry is
d · x + c · f − mean, in standard deviations over the photos that the table was learned from.

    lexicon.txt           one entry per line: its names, separated by tabs
    lexicon.safetensors   directions, visual words, weights and means; 8 bits where they are enough
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from bm25v.display import first_line
from bm25v.errors import VocabularyError
from bm25v.files import read_limited, replace_file
from bm25v.vocabulary.phrases import PhraseIndex, Token

T = TypeVar("T")

# What an entry was learned from: captions; what a classifier says about photos; the meaning of
# words, by a text encoder, for those that no caption has.
CAPTIONS, CLASSES, MEANING = range(3)

NAMES = "lexicon.txt"
TENSORS = "lexicon.safetensors"
FORMAT = 1

_MAX_BYTES = 64_000_000
_LARGEST = 1e6  # of numbers, whose products are then finite
_HEADER = re.compile(r"# bm25v lexicon, format ([0-9]{1,9}), vocabulary (\w{1,64})")
_TYPES: Mapping[str, tuple[str, int]] = {  # of each tensor, and how many axes it has
    "directions": ("int8", 2),
    "direction_scales": ("float32", 1),
    "words": ("uint16", 2),
    "word_weights": ("int8", 2),
    "word_scales": ("float32", 1),
    "weights": ("float32", 1),
    "means": ("float32", 2),
    "learned_from": ("uint8", 1),
    "bounds": ("float32", 1),
}


class Entry(NamedTuple):
    """What an entry adds to a query."""

    label: str
    direction_e: NDArray[np.float32]
    words: NDArray[np.int32]  # visual words, ascending
    word_weights: NDArray[np.float64]
    weight: float  # among the other entries of a text
    means: tuple[float, float]  # of its two parts, over the photos it was learned from
    learned_from: int


@dataclass(frozen=True, eq=False)
class Lexicon:
    """A table of entries; those learned from captions come first, the most frequent ones first."""

    names: Sequence[tuple[str, ...]]  # of each entry, as `make_key` writes them
    tensors: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.names)

    @property
    def dense_dim(self) -> int:
        return int(self.tensors["directions"].shape[1])

    @cached_property
    def index(self) -> PhraseIndex:
        entries: dict[str, tuple[int, ...]] = {}
        for number, names in enumerate(self.names):
            for name in names:
                entries.setdefault(name, (number,))
        return PhraseIndex(entries)

    def find(self, tokens: Sequence[Token]) -> int | None:
        """Return the entry that a run of tokens names."""
        numbers = self.index.find(tokens)
        return numbers[0] if numbers else None

    def is_estimated(self, number: int) -> bool:
        return bool(self.tensors["learned_from"][number] == MEANING)

    def __getitem__(self, number: int) -> Entry:
        t = self.tensors
        words, weights = t["words"][number], t["word_weights"][number]
        order = np.argsort(words, kind="stable")
        order = order[weights[order] != 0]
        return Entry(
            self.names[number][0],
            t["directions"][number] * t["direction_scales"][number],
            words[order].astype(np.int32),
            weights[order] * np.float64(t["word_scales"][number]),
            float(t["weights"][number]),
            (float(t["means"][number, 0]), float(t["means"][number, 1])),
            int(t["learned_from"][number]),
        )

    def find_bounds(self, weight: float) -> tuple[float, float]:
        """Return below which sum a text matches weakly, and from which on strongly.

        `weight` is the sum of the weights of the text's entries. Both were chosen with texts about
        what photos show, and about what they do not show (`tools/`).
        """
        weak, strong = self.tensors["bounds"].tolist()
        weak_below = weak * math.sqrt(weight)
        return weak_below, max(weak_below, strong * weight)

    def directions(self, numbers: Sequence[int]) -> NDArray[np.float32]:
        """Return the directions of some entries, one per row."""
        chosen = np.asarray(numbers, dtype=np.intp)
        scales_n1 = self.tensors["direction_scales"][chosen, None]
        return np.asarray(self.tensors["directions"][chosen] * scales_n1)

    def save(self, folder: Path, *, vocabulary: str, about: Sequence[str] = ()) -> None:
        """Write the table; `vocabulary` is the fingerprint of that whose words it has."""
        header = [f"bm25v lexicon, format {FORMAT}, vocabulary {vocabulary}", *about]
        lines = [*(f"# {line}" for line in header), *("\t".join(names) for names in self.names)]
        replace_file(folder / NAMES, "".join(f"{line}\n" for line in lines))
        tensors = {name: np.ascontiguousarray(self.tensors[name]) for name in _TYPES}
        replace_file(folder / TENSORS, safetensors.numpy.save(tensors))


def read_lexicon(folder: Path, *, vocabulary: str, n_words: int) -> Lexicon | None:
    """Return the lexicon of a vocabulary's folder; None if it has none."""
    path = folder / NAMES
    if not path.is_file():
        return None
    lines = _load(path, bytes.decode).splitlines()
    tensors = _load(folder / TENSORS, safetensors.numpy.load)
    header = _HEADER.fullmatch(lines[0]) if lines else None
    if header is None or int(header[1]) != FORMAT:
        _refuse(path, f"is not a lexicon of format {FORMAT}")
    if header[2] != vocabulary:
        _refuse(path, f"is for another vocabulary ({header[2]}, not {vocabulary})")
    names = [tuple(line.split("\t")) for line in lines if line[:1] != "#"]
    for name, (kind, n_axes) in _TYPES.items():
        tensor = tensors.get(name)
        if tensor is None or tensor.dtype != kind or tensor.ndim != n_axes:
            _refuse(folder / TENSORS, f"lacks {name}, of type {kind} with {n_axes} axes")
        if name != "bounds" and len(tensor) != len(names):
            _refuse(
                folder / TENSORS, f"has {len(tensor):,} rows of {name} for {len(names):,} names"
            )
        if kind == "float32" and not (np.abs(tensor) <= _LARGEST).all():
            _refuse(folder / TENSORS, f"has NaN, infinite or too large values in {name}")
    if not all(map(all, names)) or not names:
        _refuse(path, "has an entry without a name")
    same_width = tensors["words"].shape == tensors["word_weights"].shape
    if not same_width or tensors["words"].max(initial=0) >= n_words:
        _refuse(folder / TENSORS, f"has words that are none of the {n_words:,}")
    if tensors["means"].shape[1:] != (2,) or len(tensors["bounds"]) != 2:
        _refuse(folder / TENSORS, "has means or bounds of another shape")
    return Lexicon(names, tensors)


def _load(path: Path, parse: Callable[[bytes], T]) -> T:
    try:
        return parse(read_limited(path, _MAX_BYTES))
    except (OSError, ValueError, KeyError, safetensors.SafetensorError) as error:
        _refuse(path, f"cannot be read ({first_line(str(error))})")


def _refuse(path: Path, problem: str) -> NoReturn:
    raise VocabularyError(f"{path} {problem}: restore the file, or delete it to search without")
