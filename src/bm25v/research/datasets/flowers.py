"""Oxford Flowers-102: 102 kinds of flowers, which are published as numbers."""

from typing import Any

import numpy as np

from bm25v.research.datasets.dataset import Item
from bm25v.research.datasets.published import Parts, Source, Tree


def _read(tree: Tree) -> Parts:
    labels = _numbers(tree, "imagelabels.mat", "labels")
    return Parts(
        "gallery: train (val unused), queries: test",
        _items(tree, _numbers(tree, "setid.mat", "trnid"), labels),
        _items(tree, _numbers(tree, "setid.mat", "tstid"), labels),
    )


def _numbers(tree: Tree, file: str, name: str) -> list[int]:
    variables: dict[str, Any] = tree.matlab(file)
    if name not in variables:
        tree.refuse(f"{file} has no {name}")
    return [int(number) for number in np.atleast_1d(variables[name])]


def _items(tree: Tree, pictures: list[int], labels: list[int]) -> list[Item]:
    """Pair pictures, which are counted from 1, with their labels."""
    if strange := [number for number in pictures if not 1 <= number <= len(labels)]:
        tree.refuse(f"setid.mat has the picture {strange[0]}, imagelabels.mat has {len(labels)}")
    jpg = tree.root / "jpg"
    return [Item(jpg / f"image_{n:05d}.jpg", str(labels[n - 1])) for n in pictures]


FLOWERS = Source(
    title="Oxford Flowers-102",
    folder="flowers-102",
    layout="imagelabels.mat, setid.mat and jpg/image_00001.jpg …",
    home="the Oxford VGG page of the 102 flowers (robots.ox.ac.uk/~vgg/data/flowers/102)",
    read=_read,
)
