"""`bm25v bench encode`: is indexing as fast as the backbone?

In: image files. Out: the time of bare forward passes and the time of indexing the same images.
"""

import shutil
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bm25v.api import Gallery
from bm25v.errors import ImageError, WrongUse
from bm25v.progress import Progress, no_progress
from bm25v.threads import available_cpus
from bm25v.vocabulary import Vocabulary


@dataclass(frozen=True)
class EncodeTimes:
    """Total seconds of all rounds over the same images."""

    images: int
    rounds: int
    forward_seconds: float
    index_seconds: float

    @property
    def overhead(self) -> float:
        """What decoding, words and storage add: 0.1 means that indexing took 10 % longer."""
        return self.index_seconds / self.forward_seconds - 1


def time_encoding(
    paths: Sequence[Path],
    *,
    vocabulary: str = "default",
    dense: str | None = None,
    rounds: int = 3,
    progress: Progress = no_progress,
) -> EncodeTimes:
    """Time forward passes and indexing in turn, with the same images and number of threads."""
    loaded = Vocabulary.load(vocabulary).with_dense(dense)
    inputs = []
    readable = []
    for path in paths:
        try:
            inputs.append(loaded.backbone.prepare_image(loaded.decode(path)))
            readable.append(path)
        except ImageError:
            continue
    if not inputs:
        raise WrongUse("none of the images can be read: give a folder with readable ones")
    forward = index = 0.0
    loaded.backbone.load_weights()
    with ThreadPoolExecutor(available_cpus()) as pool, tempfile.TemporaryDirectory() as scratch:
        gallery_path = Path(scratch) / "gallery"
        for done in range(rounds):
            progress("timing", done, rounds)
            start = time.perf_counter()
            list(pool.map(loaded.backbone.forward, inputs))
            forward += time.perf_counter() - start
            gallery = Gallery.create(gallery_path, vocabulary=vocabulary, dense=dense)
            gallery.vocabulary.backbone.load_weights()  # not timed: once per run, not per image
            start = time.perf_counter()
            gallery.add(readable)
            index += time.perf_counter() - start
            gallery.close()
            shutil.rmtree(gallery_path)
    return EncodeTimes(len(readable), rounds, forward, index)
