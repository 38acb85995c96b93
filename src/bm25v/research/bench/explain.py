"""How long does it take to say why? One hit after a search, and the words of a whole gallery."""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from bm25v import backbones
from bm25v.errors import WrongUse
from bm25v.explain import explain
from bm25v.explain.drawing import draw
from bm25v.explain.page import page
from bm25v.gallery import Gallery
from bm25v.gallery.writer import Writer
from bm25v.research.bench.filling import file_state, make_gallery
from bm25v.research.bench.synthetic import K_POST, N_WORDS, World
from bm25v.sae.model import SparseAutoEncoder
from bm25v.vocabulary import Vocabulary

_MOST = 50  # pictures in the gallery whose hits are explained

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ExplainTimes:
    """Milliseconds a hit, medians; the query was encoded by the search."""

    hits: int
    forward_ms: float  # one forward pass of the hit
    explain_ms: float  # its words, and where they are in both pictures, that pass included
    page_ms: float  # and all of it as a page
    sheet_ms: float  # or as a picture

    @property
    def added_ms(self) -> float:
        """What explaining takes beside the forward pass."""
        return self.explain_ms - self.forward_ms


@dataclass(frozen=True)
class UsageTimes:
    """Seconds, of a gallery of made-up pictures."""

    pictures: int
    words: int  # in use
    first_s: float  # all words, counted for the first time
    again_s: float  # nothing has changed
    renewed_s: float  # after a picture was added
    word_s: float  # all about the word in most pictures


def time_explaining(
    paths: Sequence[Path],
    *,
    vocabulary: str = "default",
    hits: int = 20,
    progress: Progress = lambda done, total: None,
) -> ExplainTimes:
    """Search with the first picture among the others, and explain hits in turn."""
    if len(paths) < 2:
        raise WrongUse(f"{len(paths)} pictures: give a folder with at least 2")
    query, *others = paths[: _MOST + 1]
    ways = ("forward", "explain", "page", "sheet")
    ms: dict[str, list[float]] = {way: [] for way in ways}
    with (
        tempfile.TemporaryDirectory() as scratch,
        Gallery.create(Path(scratch) / "gallery", vocabulary=vocabulary) as gallery,
    ):
        gallery.add(others, progress=progress)
        encoding = gallery.vocabulary.encode(query)
        found = gallery.search_encoding(encoding, k=hits, mode="dense").hits
        if not found:
            raise WrongUse("no readable pictures to time with")
        for hit in [found[0], *found]:  # the first one twice, to warm up
            pixels = gallery.vocabulary.prepare(hit.path)
            moments = [time.perf_counter()]
            gallery.vocabulary.backbone.forward(pixels)
            moments.append(time.perf_counter())
            explanation = explain(gallery, query, hit.path, encoding=encoding)
            moments.append(time.perf_counter())
            page(explanation)
            moments.append(time.perf_counter())
            draw(explanation)
            moments.append(time.perf_counter())
            for way, seconds in zip(ways, np.diff(moments).tolist(), strict=True):
                ms[way].append(seconds * 1e3)
    middle = {f"{way}_ms": median(taken[1:]) for way, taken in ms.items()}
    return ExplainTimes(len(found), **middle)


def time_usage(n: int, *, seed: int = 0) -> UsageTimes:
    """Count the words of a gallery of made-up pictures."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        vocabulary = _vocabulary(folder / "words.vocab")
        world = World(vocabulary.backbone.dense_dim, seed)
        made, other = folder / "gallery", world.queries(1)
        made.mkdir()
        source, fingerprint = str(folder / "words.vocab"), vocabulary.fingerprint
        make_gallery(made, world.pictures(n), vocabulary=source, fingerprint=fingerprint)
        with Gallery.open(made) as gallery:
            first_s = _seconds(gallery.words)
            again_s = _seconds(gallery.words)
            with Writer(made) as writer:
                writer.put(file_state(n), other.bag(0), other.dense_ne[0].astype(np.float32))
                writer.commit()
            renewed_s = _seconds(gallery.words)
            words = gallery.words()
            common = max(words, key=lambda one: one.df).word
            word_s = _seconds(lambda: gallery.uses(common))
    return UsageTimes(n, len(words), first_s, again_s, renewed_s, word_s)


def _vocabulary(folder: Path) -> Vocabulary:
    """Make a vocabulary with as many words as made-up pictures have."""
    backbone = backbones.load("toy")
    shape = (N_WORDS, backbone.patch_dim)
    atoms_vd = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    zeros_v, zeros_d = np.zeros(N_WORDS, np.float32), np.zeros(backbone.patch_dim, np.float32)
    sae = SparseAutoEncoder(np.ascontiguousarray(atoms_vd.T), zeros_v, atoms_vd, zeros_d, k=8)
    Vocabulary.build("made up", backbone=backbone, sae=sae, k_post=K_POST).save(folder)
    return Vocabulary.load(folder)


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
