"""ROxford5k and RParis6k: buildings, with the revisited ground truth.

It is published as a pickle, of which only plain values and numpy arrays are read. Of a query's
image, only the boxed part is searched for.
"""

import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from bm25v.research.datasets.dataset import Item, PixelBox, RevisitedTruth
from bm25v.research.datasets.layout import DatasetFolder, DatasetLayout, DatasetParts
from bm25v.schema import show_value

_ALLOWED = {
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("_codecs", "encode"),
    ("builtins", "bytes"),
    ("__builtin__", "bytes"),
    *(
        (f"numpy.{core}.multiarray", name)
        for core in ("core", "_core")
        for name in ("_reconstruct", "scalar")
    ),
    *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),
}


class PickleRefused(Exception):
    """A pickle is damaged, or contains more than plain values."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise PickleRefused(f"refers to {module}.{name}: only plain values are read")
        return super().find_class(module, name)


def load_plain(content: bytes) -> Any:
    """Return the value of a pickle that Python 2 or 3 has written.

    >>> load_plain(pickle.dumps({"easy": [1, 2]}))
    {'easy': [1, 2]}
    """
    try:
        return _PlainUnpickler(io.BytesIO(content), encoding="latin-1").load()
    except PickleRefused:
        raise
    except Exception as error:  # whatever a damaged pickle makes the unpickler raise
        raise PickleRefused(
            f"is not a pickle of plain values ({show_value(str(error))})"
        ) from error


def _read(folder: DatasetFolder, name: str) -> DatasetParts:
    file = f"gnd_{name}.pkl"
    try:
        content = load_plain(folder.read_bytes(file))
    except PickleRefused as error:
        folder.fail(f"{file} {error}")
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


def _image_path(folder: DatasetFolder, name: Any) -> Path:
    if not isinstance(name, str):
        raise TypeError(f"{show_value(name)} is not a name")
    return folder.root / "jpg" / f"{name}.jpg"


def _truth(truth: Any, gallery: list[Path]) -> RevisitedTruth:
    def paths(kind: str) -> frozenset[Path]:
        rows = [int(row) for row in np.ravel(truth[kind]).tolist()]
        if any(row < 0 for row in rows):
            raise IndexError(f"{kind} has a negative row")
        return frozenset(gallery[row] for row in rows)

    box = PixelBox(*(float(edge) for edge in np.ravel(truth["bbx"]).tolist()))
    if not all(map(math.isfinite, box)):
        raise ValueError("bbx has an edge that is not finite")
    return RevisitedTruth(box, paths("easy"), paths("hard"), paths("junk"))


def _layout(title: str, name: str) -> DatasetLayout:
    return DatasetLayout(
        title=title,
        folder=name,
        files=f"gnd_{name}.pkl and all images directly in jpg/",
        homepage="the page of Revisiting Oxford and Paris (cmp.felk.cvut.cz/revisitop), the images "
        "on the Oxford VGG pages of the Oxford and Paris buildings",
        read=lambda folder: _read(folder, name),
    )


LANDMARKS = {
    "roxford5k": _layout("ROxford5k", "roxford5k"),
    "rparis6k": _layout("RParis6k", "rparis6k"),
}
