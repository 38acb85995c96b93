"""Does indexing run at the backbone's speed? Bare forward passes against the whole way."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bm25v.errors import ImageError, WrongUse
from bm25v.gallery import Gallery
from bm25v.vocabulary import Vocabulary


@dataclass(frozen=True)
class EncodeTimes:
    """Seconds for the same pictures; overhead 0.1 means that indexing took 10 % longer."""

    pictures: int
    rounds: int
    forward_seconds: float
    index_seconds: float

    @property
    def overhead(self) -> float:
        """What decoding, words and storage add to the bare forward passes."""
        return self.index_seconds / self.forward_seconds - 1


def time_encoding(
    paths: Sequence[Path],
    *,
    vocabulary: str = "default",
    rounds: int = 3,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> EncodeTimes:
    """Time both ways in turn, over the same pictures and as many threads."""
    loaded = Vocabulary.load(vocabulary)
    inputs = []
    readable = []
    for path in paths:
        try:
            inputs.append(loaded.backbone.prepare(loaded.decode(path)))
            readable.append(path)
        except ImageError:
            continue
    if not inputs:
        raise WrongUse("no readable pictures to time with")
    forward = index = 0.0
    loaded.backbone.load()
    with ThreadPoolExecutor(os.cpu_count()) as pool, tempfile.TemporaryDirectory() as scratch:
        gallery_path = Path(scratch) / "gallery"
        for done in range(rounds):
            progress(done, rounds)
            start = time.perf_counter()
            list(pool.map(loaded.backbone.forward, inputs))
            forward += time.perf_counter() - start
            gallery = Gallery.create(gallery_path, vocabulary=vocabulary)
            gallery.vocabulary.backbone.load()  # not timed: it is done once a run, not a picture
            start = time.perf_counter()
            gallery.add(readable)
            index += time.perf_counter() - start
            gallery.close()
            shutil.rmtree(gallery_path)
    return EncodeTimes(len(readable), rounds, forward, index)
