"""The files of a gallery in, whether they are exactly those of a version out.

No other process may write meanwhile.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bm25v.api import Gallery
from bm25v.gallery.rows import bag_file, dense_file
from bm25v.research.bench.soak.history import Images, Version


def match_contents(folder: Path, images: Images, versions: Sequence[Version]) -> Version | None:
    """Return the version that a gallery has: every catalogue entry, and every bit of every row."""
    with Gallery.open(folder) as gallery:
        return next((v for v in versions if _has_version(gallery, images, v)), None)


def find_stray_files(folder: Path) -> list[str]:
    """Return the names of row files that do not belong to the gallery any more."""
    with Gallery.open(folder) as gallery:
        location = (folder, gallery.store.catalog.meta, gallery.store.snapshot().state.generation)
    current = {bag_file(*location).path, dense_file(*location).path}
    return sorted(path.name for path in set(folder.glob("*.rows")) - current)


def _has_version(gallery: Gallery, images: Images, version: Version) -> bool:
    snapshot, numbers = gallery.store.snapshot(), version.numbers
    records = [
        (record.path, record.content, record.size, record.mtime_ns, record.live)
        for record in gallery.store.catalog.records()
    ]
    expected = [
        (file.path, file.content, file.size, file.mtime_ns, row.is_live)
        for row in version.rows
        for file in (row.file,)
    ]
    return (
        snapshot.state.generation == version.generation
        and records == expected
        and np.array_equal(snapshot.rows, version.live_rows)
        and np.array_equal(snapshot.bags["words"], images.words_nk[numbers])
        and np.array_equal(snapshot.bags["tf"], images.tf_nk[numbers])
        and np.array_equal(snapshot.dense_ne, images.dense_ne[numbers])
    )
