"""ROxford5k and RParis6k: buildings, with the revisited ground truth.

The ground truth is published as a pickle; the same content as JSON is read as well. Queries are not
part of the gallery, and only the boxed part of their image is searched for.
"""

import math
from pathlib import Path
from typing import Any

from bm25v.research.datasets.dataset import Item, PixelBox, RevisitedTruth
from bm25v.research.datasets.layout import DatasetFolder, DatasetLayout, DatasetParts
from bm25v.research.datasets.plain_pickle import PickleRefused, load_plain
from bm25v.schema import SchemaError, parse_object, show_value


def _read(folder: DatasetFolder, name: str) -> DatasetParts:
    file, content = _read_ground_truth(folder, f"gnd_{name}")
    try:
        gallery = [_image_path(folder, image) for image in content["imlist"]]
        queries = [
            Item(_image_path(folder, image), "", _truth(truth, gallery))
            for image, truth in zip(content["qimlist"], content["gnd"], strict=True)
        ]
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        folder.fail(f"{file} is not the revisited ground truth ({show_value(str(error))})")
    return DatasetParts(
        "gallery: imlist, queries: the boxes of qimlist",
        [Item(path, "") for path in gallery],
        queries,
    )


def _read_ground_truth(folder: DatasetFolder, stem: str) -> tuple[str, Any]:
    """Return the name and the content of the ground truth's file."""
    if (folder.root / f"{stem}.json").is_file():
        file = f"{stem}.json"
        try:
            return file, parse_object(folder.read_bytes(file))
        except SchemaError as error:
            folder.fail(f"{file} cannot be used: {error}")
    file = f"{stem}.pkl"
    try:
        return file, load_plain(folder.read_bytes(file))
    except PickleRefused as error:
        folder.fail(f"{file} {error}")


def _image_path(folder: DatasetFolder, name: Any) -> Path:
    if not isinstance(name, str):
        raise TypeError(f"{show_value(name)} is not a name")
    return folder.root / "jpg" / f"{name}.jpg"


def _truth(truth: Any, gallery: list[Path]) -> RevisitedTruth:
    def paths(kind: str) -> frozenset[Path]:
        rows = [int(row) for row in truth[kind]]
        if any(row < 0 for row in rows):
            raise IndexError(f"{kind} has a negative row")
        return frozenset(gallery[row] for row in rows)

    box = PixelBox(*(float(edge) for edge in truth["bbx"]))
    if not all(map(math.isfinite, box)):
        raise ValueError("bbx has an edge that is not finite")
    return RevisitedTruth(box, paths("easy"), paths("hard"), paths("junk"))


def _layout(title: str, name: str) -> DatasetLayout:
    return DatasetLayout(
        title=title,
        folder=name,
        files=f"gnd_{name}.pkl (or gnd_{name}.json) and all images directly in jpg/",
        homepage="the page of Revisiting Oxford and Paris (cmp.felk.cvut.cz/revisitop), the images "
        "on the Oxford VGG pages of the Oxford and Paris buildings",
        read=lambda folder: _read(folder, name),
    )


LANDMARKS = {
    "roxford5k": _layout("ROxford5k", "roxford5k"),
    "rparis6k": _layout("RParis6k", "rparis6k"),
}
