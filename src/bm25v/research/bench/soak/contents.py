"""The files of a gallery in, whether they are exactly those of a version out.

No other process may write meanwhile.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bm25v.api import Gallery
from bm25v.gallery.rows import RowFiles
from bm25v.research.bench.soak.history import Images, Version


def match_contents(folder: Path, images: Images, versions: Sequence[Version]) -> Version | None:
    """Return the version that a gallery has: every catalogue entry, and every bit of every row."""
    with Gallery.open(folder) as gallery:
        return next((v for v in versions if _has_version(gallery, images, v)), None)


def find_stray_files(folder: Path) -> list[str]:
    """Return the names of row files that do not belong to the gallery any more."""
    with Gallery.open(folder) as gallery:
        store = gallery.store
        current = RowFiles.of(folder, store.catalog.meta, store.snapshot().state).paths
    return sorted(path.name for path in set(folder.glob("*.rows")) - current)


def _has_version(gallery: Gallery, images: Images, version: Version) -> bool:
    snapshot, numbers = gallery.store.snapshot(), version.numbers
    if snapshot.full_bags is None:
        return False
    full_rows = snapshot.full_bags.rows
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
        and np.array_equal(full_rows["words"], images.full_words_nk[numbers])
        and np.array_equal(full_rows["levels"], images.full_levels_nk[numbers])
        and np.array_equal(full_rows["patches"], images.full_patches_nk[numbers])
    )
