"""Compiles every loop before it is needed, by searches of a gallery of two images.

To the compiler, read-only columns of a file with several rows are a type of their own, so arrays
in memory would not do. The compiled code stays in numba's cache.
"""

import os
import tempfile
from pathlib import Path

import numpy as np

from bm25v.gallery import Gallery
from bm25v.privacy import own_process

_NICENESS = 10  # of a process that compiles for others


def precompile() -> None:
    """Compile the loops of the first and of the second stage."""
    dark, light = (np.full((64, 64, 3), grey, dtype=np.uint8) for grey in (50, 200))
    with (
        tempfile.TemporaryDirectory() as folder,
        Gallery.create(Path(folder) / "gallery.bm25v", vocabulary="toy") as gallery,
    ):
        gallery.add([("dark", dark), ("light", light)])
        gallery.local.snapshot().searcher.build_index()
        gallery.store.read(lambda view: view.find_examples([0], 1, 1))
        gallery.search(dark)
        gallery.search(dark, mode="sparse", min_coverage=0.1)
        gallery.search(dark, min_coverage=0.1)
    from bm25v.compiler import note_compiled
    from bm25v.index.kernels import search_block

    note_compiled(search_block)


def main() -> None:
    """Compile for other processes, and leave the processor to them."""
    own_process()
    if hasattr(os, "nice"):  # Windows: no such function
        os.nice(_NICENESS)
    precompile()
