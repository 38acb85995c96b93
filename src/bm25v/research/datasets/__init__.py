"""Reads image collections for evaluation: published data sets and folders of class folders.

Nothing is downloaded, and no file can run code.
"""

import os
from pathlib import Path

from bm25v.errors import InvalidOption
from bm25v.research.datasets.dataset import (
    Dataset,
    Item,
    PixelBox,
    RevisitedTruth,
    drop_unreadable,
    summarize_problem,
)
from bm25v.research.datasets.landmarks import LANDMARKS
from bm25v.research.datasets.layout import CLASS_FOLDERS, DatasetFolder
from bm25v.research.datasets.published import PUBLISHED

__all__ = ["DATASETS", "Dataset", "Item", "PixelBox", "RevisitedTruth", "drop_unreadable", "load"]

DATASETS = {**PUBLISHED, **LANDMARKS, "folder": CLASS_FOLDERS}


def load(name: str, data: str | os.PathLike[str]) -> Dataset:
    """Read a data set from its folder, or from a folder that holds it under its usual name.

    For "folder", the folders `train` and `test` are the gallery and the queries; if there are none,
    each image is a query for the others of its class.
    """
    if name not in DATASETS:
        raise InvalidOption(
            f"there is no data set {name!r}; choose from {', '.join(DATASETS)}, where 'folder' is "
            "any folder of class folders"
        )
    layout = DATASETS[name]
    folder = DatasetFolder(Path(data), layout)
    parts = layout.read(folder)
    listed = dict.fromkeys(item.path for item in parts.gallery + parts.queries)
    missing = dict.fromkeys(path for path in listed if not path.is_file())
    gallery = [item for item in parts.gallery if item.path not in missing]
    queries = [item for item in parts.queries if item.path not in missing]
    if not gallery or not queries:
        folder.fail(
            f"the gallery has {len(gallery):,} images, there are {len(queries):,} queries, and "
            f"{len(missing):,} more images are listed but missing"
        )
    missing_names = (path.relative_to(folder.root).as_posix() for path in missing)
    notes = [*parts.notes, *summarize_problem("missing and left out", missing_names)]
    return Dataset(name, folder.root, parts.protocol, gallery, queries, notes)
