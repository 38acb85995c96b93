"""Galleries on disk of pictures that are encoded already, or made up."""

import hashlib
import os
from contextlib import closing
from pathlib import Path

from bm25v.gallery import rows as row_files
from bm25v.gallery.catalog import FILE_NAME, Catalog, ImageRecord, Meta
from bm25v.gallery.writer import FileState
from bm25v.research.bench.pictures import Pictures


def make_gallery(
    folder: Path, pictures: Pictures, *, vocabulary: str = "none", fingerprint: str = "none"
) -> None:
    """Make a gallery; its dense vectors are one large hole, as nothing that is timed reads them."""
    k_post = pictures.bags.dtype["words"].shape[0]
    meta = Meta(vocabulary, fingerprint, "none", pictures.n_words, k_post, pictures.dim)
    bags, dense = (make(folder, meta, 0) for make in (row_files.bag_file, row_files.dense_file))
    for file in (bags, dense):
        file.create()
    with bags.path.open("ab") as opened:
        pictures.bags.tofile(opened)
    os.truncate(dense.path, row_files.HEADER_BYTES + len(pictures) * dense.dtype.itemsize)
    Catalog.create(folder / FILE_NAME, meta)
    with closing(Catalog(folder / FILE_NAME, write=True)) as catalog:
        catalog.begin()
        for row in range(len(pictures)):
            catalog.insert(ImageRecord(row, *file_state(row), checksum=0))
        catalog.commit()


def file_state(number: int) -> FileState:
    """Return a made-up file, another one for each number."""
    content = hashlib.blake2b(number.to_bytes(8, "little"), digest_size=16).digest()
    return FileState(f"/pictures/{number // 1000}/{number}.jpg", content, 0, 0)
