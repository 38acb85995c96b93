"""What photos and their parts are called: everyday nouns that the lexicon tells apart well.

They are in labels.txt. A lexicon has more words, but many of them are no names (“standing”), too
narrow, or seen everywhere.
"""

from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import NamedTuple

import numpy as np

from bm25v.backbones.protocol import Floats
from bm25v.dense import normalise
from bm25v.vocabulary.lexicon import Lexicon
from bm25v.vocabulary.phrases import split_text

_RARITY = 0.9  # standard deviations, of a label that is ten times as rare


@cache
def list_labels() -> tuple[str, ...]:
    """Return all labels."""
    text = resources.files("bm25v.vocabulary").joinpath("labels.txt").read_text(encoding="utf-8")
    names = (name for line in text.splitlines() if line[0] != "#" for name in line.split())
    return tuple(name.replace("_", " ") for name in names)


class Labels(NamedTuple):
    """The labels that a lexicon has."""

    lexicon: Lexicon
    names: Sequence[str]
    entries: Sequence[int]

    @classmethod
    def of(cls, lexicon: Lexicon) -> "Labels":
        found = {name: lexicon.find(split_text(name)) for name in list_labels()}
        known = {name: entry for name, entry in found.items() if entry is not None}
        return cls(lexicon, list(known), list(known.values()))

    @property
    def rarity_t(self) -> Floats:
        """How much more a rare label must be shown than a frequent one, to be as likely."""
        numbers_t = np.array(self.entries)  # frequent entries come first
        return np.asarray(_RARITY * np.log10(1 + numbers_t / 100), np.float32)

    def measure(self, vectors_ne: Floats) -> Floats:
        """Return how much images or parts show each label, by their dense vectors.

        In standard deviations over the photos that the lexicon was learned from.
        """
        means_t = self.lexicon.tensors["means"][self.entries, 0]
        vectors_ne = normalise(vectors_ne[:, : self.lexicon.dense_dim])
        return np.asarray(vectors_ne @ self.lexicon.directions(self.entries).T - means_t)
