"""What a change costs: in a gallery on disk, from its start until a search can see it."""

import itertools
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from bm25v.gallery import Gallery
from bm25v.gallery.writer import Writer
from bm25v.research.bench.filling import file_state, make_gallery
from bm25v.research.bench.pictures import Pictures

_ROUNDS = 10  # of single changes
_BATCHES = 3
_MANY = 1_000  # pictures in a batch


@dataclass(frozen=True)
class Updates:
    """Milliseconds, medians."""

    add_ms: float  # a picture, encoded already, until it is durable and seen by the next search
    remove_ms: float  # a picture, likewise
    refresh_ms: float  # until a reader sees a batch of 1,000 that was committed


def time_updates(pictures: Pictures, others: Pictures, k: int) -> Updates:
    """Add the other pictures to a gallery, over and over, and remove some of those it had."""
    with tempfile.TemporaryDirectory() as scratch:
        make_gallery(Path(scratch), pictures)
        with Gallery.open(scratch) as gallery:
            return _time(gallery, others, k)


def _time(gallery: Gallery, others: Pictures, k: int) -> Updates:
    query = others.queries()[0].query
    old, new = itertools.count(), itertools.count(len(gallery))

    def search() -> None:
        gallery.snapshot().searcher.search(query, k)

    def add(n: int = 1) -> None:
        with Writer(gallery.path) as writer:
            for number in itertools.islice(new, n):
                row = number % len(others)
                dense_e = others.dense_ne[row].astype(np.float32)
                writer.put(file_state(number), others.bag(row), dense_e)
            writer.commit()

    def remove() -> None:
        gallery.remove(file_state(next(old)).path)

    gallery.snapshot().searcher.build()
    search()
    searched = median(_ms(search) for _ in range(_ROUNDS))
    added = median(_ms(add, search) for _ in range(_ROUNDS))
    removed = median(_ms(remove, search) for _ in range(_ROUNDS))
    refreshed = []
    for _ in range(_BATCHES):
        add(_MANY)
        refreshed.append(_ms(gallery.snapshot))
    return Updates(added - searched, removed - searched, median(refreshed))


def _ms(*actions: Callable[[], object]) -> float:
    start = time.perf_counter()
    for action in actions:
        action()
    return (time.perf_counter() - start) * 1e3
