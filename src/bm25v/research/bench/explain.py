"""`bm25v bench explain`: how long do an explanation and the statistics of words take?

In: image files; a number of synthetic images. Out: milliseconds per hit, and seconds to count the
words of a gallery.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from bm25v import backbones
from bm25v.api import Gallery
from bm25v.errors import WrongUse
from bm25v.explanations.drawing import draw
from bm25v.gallery.writer import Writer
from bm25v.pages.explanation_page import render_explanation
from bm25v.progress import Progress, no_progress
from bm25v.research.bench.workload import (
    K_POST,
    N_WORDS,
    SyntheticImages,
    synthetic_file,
    write_gallery,
)
from bm25v.sae.model import SparseAutoEncoder
from bm25v.vocabulary import Vocabulary

_MAX_IMAGES = 50  # in the gallery whose hits are explained


@dataclass(frozen=True)
class ExplainTimes:
    """Milliseconds per hit, medians; the search has already encoded the query."""

    hits: int
    forward_ms: float  # one forward pass of the hit
    explain_ms: float  # its words and their patches in both images, with a forward pass
    page_ms: float  # the explanation as an HTML page
    sheet_ms: float  # the explanation as an image

    @property
    def added_ms(self) -> float:
        """The time of an explanation without its forward pass."""
        return self.explain_ms - self.forward_ms


@dataclass(frozen=True)
class WordCountTimes:
    """Seconds to count the words of a gallery of synthetic images."""

    images: int
    words: int  # in use
    first_s: float  # all words, for the first time
    again_s: float  # without a change since
    renewed_s: float  # after an image was added
    word_s: float  # the images of the most frequent word

    def to_dict(self) -> dict[str, float]:
        """Return the times as plain values."""
        times = dict(vars(self))
        return {"pictures": times.pop("images"), **times}


def time_explanations(
    paths: Sequence[Path],
    *,
    vocabulary: str = "default",
    hits: int = 20,
    progress: Progress = no_progress,
) -> ExplainTimes:
    """Search for the first image among the others, and explain each hit."""
    if len(paths) < 2:
        raise WrongUse(f"a search needs at least 2 images, not {len(paths)}: give another folder")
    query, *others = paths[: _MAX_IMAGES + 1]
    steps = ("forward", "explain", "page", "sheet")
    ms: dict[str, list[float]] = {step: [] for step in steps}
    with (
        tempfile.TemporaryDirectory() as scratch,
        Gallery.create(Path(scratch) / "gallery", vocabulary=vocabulary) as gallery,
    ):
        gallery.add(others, progress=progress)
        encoding = gallery.vocabulary.encode(query)
        results = gallery.search(encoding, k=hits, mode="dense").hits
        if not results:
            raise WrongUse("none of the images can be read: give a folder with readable ones")
        for hit in [results[0], *results]:  # the first one twice, to warm up
            pixels = gallery.vocabulary.prepare(hit.path)
            moments = [time.perf_counter()]
            gallery.vocabulary.backbone.forward(pixels)
            moments.append(time.perf_counter())
            explanation = gallery.explain(query, hit.path, encoding=encoding)
            moments.append(time.perf_counter())
            render_explanation(explanation)
            moments.append(time.perf_counter())
            draw(explanation)
            moments.append(time.perf_counter())
            for step, seconds in zip(steps, np.diff(moments).tolist(), strict=True):
                ms[step].append(seconds * 1e3)
    medians = {f"{step}_ms": median(values[1:]) for step, values in ms.items()}
    return ExplainTimes(len(results), **medians)


def time_word_counts(n: int, *, seed: int = 0) -> WordCountTimes:
    """Time counting the words of a gallery of synthetic images."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        vocabulary = _synthetic_vocabulary(folder / "words.vocab")
        synthetic = SyntheticImages(vocabulary.backbone.dense_dim, seed)
        gallery_path, new_image = folder / "gallery", synthetic.draw_queries(1)
        gallery_path.mkdir()
        write_gallery(
            gallery_path,
            synthetic.draw_images(n),
            vocabulary=str(folder / "words.vocab"),
            fingerprint=vocabulary.fingerprint,
        )
        with Gallery.open(gallery_path) as gallery:
            first_s = _seconds(gallery.words)
            again_s = _seconds(gallery.words)
            with Writer(gallery_path) as writer:
                writer.put(synthetic_file(n), new_image.encoding(0))
                writer.commit()
            renewed_s = _seconds(gallery.words)
            words = gallery.words()
            most_frequent = max(words, key=lambda word: word.df).word
            word_s = _seconds(lambda: gallery.word(most_frequent))
    return WordCountTimes(n, len(words), first_s, again_s, renewed_s, word_s)


def _synthetic_vocabulary(folder: Path) -> Vocabulary:
    """Save a random vocabulary with as many words as synthetic images have, and load it."""
    backbone = backbones.load_backbone("toy")
    shape = (N_WORDS, backbone.patch_dim)
    atoms_vd = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    zeros_v, zeros_d = np.zeros(N_WORDS, np.float32), np.zeros(backbone.patch_dim, np.float32)
    sae = SparseAutoEncoder(np.ascontiguousarray(atoms_vd.T), zeros_v, atoms_vd, zeros_d, k=8)
    Vocabulary.build("synthetic", backbone=backbone, sae=sae, k_post=K_POST).save(folder)
    return Vocabulary.load(folder)


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
