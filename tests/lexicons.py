"""Small lexicons with random directions, for vocabularies that tests make."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.lexicon import CAPTIONS, CLASSES, MEANING, Lexicon

ENTRIES = (  # the names of each
    ("cat",),
    ("dog", "domestic dog"),
    ("chair",),
    ("hot dog", "hotdog"),
    ("creme brulee",),
    ("bicycle", "bike"),
    ("bull terrier",),  # learned from classes
    ("knife",),
    ("grass",),
    ("holiday",),  # estimated
)
N_WORDS, DENSE_DIM = 192, 12  # of the toy vocabulary


def make_lexicon(
    names: Sequence[tuple[str, ...]] = ENTRIES,
    *,
    classes: Sequence[str] = ("bull terrier",),
    estimated: Sequence[str] = ("holiday",),
    words: int = 24,
    seed: int = 0,
) -> Lexicon:
    """Return a lexicon of random entries; `words` is how many visual words each has."""
    rng, n = np.random.default_rng(seed), len(names)
    tensors: dict[str, NDArray[Any]] = {
        "directions": rng.integers(-127, 128, (n, DENSE_DIM)).astype(np.int8),
        "direction_scales": rng.uniform(0.01, 0.02, n).astype(np.float32),
        "words": np.array([rng.permutation(N_WORDS)[:words] for _ in names], np.uint16),
        "word_weights": rng.integers(-100, 128, (n, words)).astype(np.int8),
        "word_scales": rng.uniform(0.001, 0.002, n).astype(np.float32),
        "weights": rng.uniform(0.5, 1.5, n).astype(np.float32),
        "means": rng.normal(0, 0.3, (n, 2)).astype(np.float32),
        "learned_from": np.array(
            [
                MEANING if name in estimated else CLASSES if name in classes else CAPTIONS
                for name, *_ in names
            ],
            np.uint8,
        ),
        "bounds": np.array([0.3, 0.6], np.float32),
    }
    return Lexicon(names, tensors)


def save_vocabulary(folder: Path, lexicon: Lexicon | None = None) -> Path:
    """Write the toy vocabulary with a lexicon as a folder."""
    toy = Vocabulary.load("toy")
    toy.save(folder)
    (lexicon or make_lexicon()).save(folder, vocabulary=toy.fingerprint, about=["made by a test"])
    return folder
