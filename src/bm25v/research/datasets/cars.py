"""Stanford Cars-196: 196 models of cars."""

from typing import Any

import numpy as np

from bm25v.research.datasets.dataset import Item
from bm25v.research.datasets.published import Parts, Source, Tree

_TEST = "cars_test_annos_withlabels.mat"  # published apart from the devkit, which has no classes


def _read(tree: Tree) -> Parts:
    test = f"devkit/{_TEST}" if (tree.root / "devkit" / _TEST).is_file() else _TEST
    names = _variable(tree, "devkit/cars_meta.mat", "class_names").tolist()
    return Parts(
        "gallery: train, queries: test",
        _items(tree, "devkit/cars_train_annos.mat", "cars_train", names),
        _items(tree, test, "cars_test", names),
    )


def _items(tree: Tree, file: str, folder: str, names: list[str]) -> list[Item]:
    annotations = _variable(tree, file, "annotations")
    if not {"fname", "class"} <= set(annotations.dtype.names or ()):
        tree.refuse(f"{file} says no classes")
    items = []
    for one in annotations:
        number = int(one["class"])
        if not 1 <= number <= len(names):
            tree.refuse(f"{file} has the class {number}, devkit/cars_meta.mat has {len(names)}")
        items.append(Item(tree.root / folder / str(one["fname"]), str(names[number - 1])))
    return items


def _variable(tree: Tree, file: str, name: str) -> Any:
    variables = tree.matlab(file)
    if name not in variables:
        tree.refuse(f"{file} has no {name}")
    return np.atleast_1d(variables[name])


CARS = Source(
    title="Stanford Cars-196",
    folder="stanford_cars",
    layout="cars_train/, cars_test/, devkit/cars_train_annos.mat, devkit/cars_meta.mat and "
    f"{_TEST}",
    home="Jonathan Krause's page of the Cars dataset (ai.stanford.edu/~jkrause/cars)",
    read=_read,
)
