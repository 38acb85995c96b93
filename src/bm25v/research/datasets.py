"""Reads image collections for evaluation: published data sets and folders of class folders.

A published data set is read in the layout of its authors. If it also has a validation part, the
gallery is the train part alone, as in the paper. Nothing is downloaded, and no file can run code.
"""

import io
import math
import os
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bm25v import images
from bm25v.errors import InvalidOption
from bm25v.research.dataset import (
    Dataset,
    DatasetFolder,
    DatasetLayout,
    DatasetParts,
    Item,
    PixelBox,
    RevisitedTruth,
    summarize_problem,
)
from bm25v.schema import show_value

__all__ = ["DATASETS", "Dataset", "Item", "PixelBox", "RevisitedTruth", "load"]


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


# Class folders


def _read_class_folders(folder: DatasetFolder) -> DatasetParts:
    train, test = folder.root / "train", folder.root / "test"
    if not all(part.is_dir() and any(map(Path.is_dir, part.iterdir())) for part in (train, test)):
        items, notes = find_class_images(folder.root)
        return DatasetParts("leave-one-out", items, items, notes)
    gallery, gallery_notes = find_class_images(train)
    queries, query_notes = find_class_images(test)
    others = sorted(
        path.name for path in folder.root.iterdir() if path.is_dir() and path not in (train, test)
    )
    unused = summarize_problem("folders besides train and test, not used", others)
    notes = gallery_notes + query_notes + unused
    return DatasetParts("gallery: train, queries: test", gallery, queries, notes)


def find_class_images(folder: Path) -> tuple[list[Item], list[str]]:
    """Return the images in class folders, and notes about the rest."""
    items: list[Item] = []
    outside: list[str] = []
    unreadable: list[str] = []
    for path in images.find_images(
        folder, on_error=lambda path, error: unreadable.append(f"{path}: {error}")
    ):
        relative = path.relative_to(folder)
        if len(relative.parts) < 2:
            outside.append(str(relative))
        else:
            items.append(Item(path, relative.parts[0]))
    notes = summarize_problem("cannot be opened", unreadable)
    return items, notes + summarize_problem("in no class folder", outside)


# Published data sets with classes


def _published(
    title: str,
    folder: str,
    files: str,
    homepage: str,
    list_items: Callable[[DatasetFolder, str], list[Item]],
    *,
    parts: tuple[str, str] = ("train", "test"),
    unused: str = "",
) -> DatasetLayout:
    """Return a layout whose gallery and queries are two parts, listed in the same way."""

    def read(folder: DatasetFolder) -> DatasetParts:
        gallery, queries = (list_items(folder, part) for part in parts)
        note = f" ({unused} unused)" if unused else ""
        return DatasetParts(f"gallery: {parts[0]}{note}, queries: {parts[1]}", gallery, queries)

    return DatasetLayout(title, folder, files, homepage, read)


def _list_birds(folder: DatasetFolder, part: str) -> list[Item]:
    names, parts = folder.read_mapping("classes.txt"), folder.read_mapping("train_test_split.txt")
    labels = folder.read_mapping("image_class_labels.txt")
    items = []
    for number, path in folder.read_mapping("images.txt").items():
        flag = folder.look_up(parts, number, "train_test_split.txt")
        label = folder.look_up(labels, number, "image_class_labels.txt")
        if flag not in ("0", "1"):
            folder.fail(f"train_test_split.txt has {flag!r} for image {number}, not 0 or 1")
        if (flag == "1") == (part == "train"):
            name = folder.look_up(names, label, "classes.txt")
            items.append(Item(folder.root / "images" / path, name))
    return items


_CARS_TEST = "cars_test_annos_withlabels.mat"  # published apart from the devkit


def _list_cars(folder: DatasetFolder, part: str) -> list[Item]:
    meta, file = "devkit/cars_meta.mat", "devkit/cars_train_annos.mat"
    if part == "test":
        in_devkit = (folder.root / "devkit" / _CARS_TEST).is_file()
        file = f"devkit/{_CARS_TEST}" if in_devkit else _CARS_TEST
    names = dict(enumerate(folder.read_matlab(meta, "class_names").tolist(), start=1))
    annotations = folder.read_matlab(file, "annotations")
    if not {"fname", "class"} <= set(annotations.dtype.names or ()):
        folder.fail(f"{file} has no classes")
    return [
        Item(
            folder.root / f"cars_{part}" / str(annotation["fname"]),
            str(folder.look_up(names, int(annotation["class"]), meta)),
        )
        for annotation in annotations
    ]


def _list_aircraft(folder: DatasetFolder, part: str) -> list[Item]:
    variants = folder.read_mapping(f"data/images_variant_{part}.txt")
    images = folder.root / "data" / "images"
    return [Item(images / f"{name}.jpg", variant) for name, variant in variants.items()]


def _list_pets(folder: DatasetFolder, part: str) -> list[Item]:
    names = [row[0] for row in folder.read_table(f"annotations/{part}.txt", 4)]
    images = folder.root / "images"
    return [Item(images / f"{name}.jpg", name.rpartition("_")[0]) for name in names]


def _list_flowers(folder: DatasetFolder, part: str) -> list[Item]:
    file, variable = "imagelabels.mat", {"train": "trnid", "test": "tstid"}[part]
    labels = dict(enumerate(map(int, folder.read_matlab(file, "labels")), start=1))
    return [
        Item(
            folder.root / "jpg" / f"image_{number:05d}.jpg",
            str(folder.look_up(labels, number, file)),
        )
        for number in map(int, folder.read_matlab("setid.mat", variable))
    ]


def _list_textures(folder: DatasetFolder, part: str) -> list[Item]:
    paths = folder.read_lines(f"labels/{part}.txt")
    return [Item(folder.root / "images" / path, path.partition("/")[0]) for path in paths]


def _list_food(folder: DatasetFolder, part: str) -> list[Item]:
    paths = folder.read_lines(f"meta/{part}.txt")
    return [Item(folder.root / "images" / f"{path}.jpg", path.partition("/")[0]) for path in paths]


# ROxford5k and RParis6k: buildings, with the revisited ground truth. It is published as a pickle,
# of which only plain values and numpy arrays are read. Of a query's image, only the boxed part is
# searched for.

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


def _read_revisited(folder: DatasetFolder, name: str) -> DatasetParts:
    file = f"gnd_{name}.pkl"
    try:
        content = load_plain(folder.read_bytes(file))
    except PickleRefused as error:
        folder.fail(f"{file} {error}")
    try:
        gallery = [_image_path(folder, image) for image in content["imlist"]]
        queries = [
            Item(_image_path(folder, image), "", _read_truth(truth, gallery))
            for image, truth in zip(content["qimlist"], content["gnd"], strict=True)
        ]
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        folder.fail(f"{file} is not the revisited ground truth ({show_value(str(error))})")
    protocol = "gallery: imlist, queries: the boxes of qimlist"
    return DatasetParts(protocol, [Item(path, "") for path in gallery], queries)


def _image_path(folder: DatasetFolder, name: Any) -> Path:
    if not isinstance(name, str):
        raise TypeError(f"{show_value(name)} is not a name")
    return folder.root / "jpg" / f"{name}.jpg"


def _read_truth(truth: Any, gallery: list[Path]) -> RevisitedTruth:
    def paths(kind: str) -> frozenset[Path]:
        rows = [int(row) for row in np.ravel(truth[kind]).tolist()]
        if any(row < 0 for row in rows):
            raise IndexError(f"{kind} has a negative row")
        return frozenset(gallery[row] for row in rows)

    box = PixelBox(*(float(edge) for edge in np.ravel(truth["bbx"]).tolist()))
    if not all(map(math.isfinite, box)):
        raise ValueError("bbx has an edge that is not finite")
    return RevisitedTruth(box, paths("easy"), paths("hard"), paths("junk"))


def _revisited(title: str) -> DatasetLayout:
    name = title.lower()
    return DatasetLayout(
        title,
        name,
        f"gnd_{name}.pkl and all images directly in jpg/",
        "the page of Revisiting Oxford and Paris (cmp.felk.cvut.cz/revisitop), the images on the "
        "Oxford VGG pages of the Oxford and Paris buildings",
        partial(_read_revisited, name=name),
    )


DATASETS = {
    "cub200": _published(
        "CUB-200-2011",
        "CUB_200_2011",
        "images.txt, train_test_split.txt, image_class_labels.txt, classes.txt and images/",
        "the Caltech vision group's page of CUB-200-2011 (vision.caltech.edu)",
        _list_birds,
    ),
    "cars196": _published(
        "Stanford Cars-196",
        "stanford_cars",
        "cars_train/, cars_test/, devkit/cars_train_annos.mat, devkit/cars_meta.mat and "
        f"{_CARS_TEST}",
        "Jonathan Krause's page of the Cars dataset (ai.stanford.edu/~jkrause/cars)",
        _list_cars,
    ),
    "aircraft": _published(
        "FGVC-Aircraft",
        "fgvc-aircraft-2013b",
        "data/images_variant_train.txt, data/images_variant_test.txt and data/images/",
        "the Oxford VGG page of FGVC-Aircraft (robots.ox.ac.uk/~vgg/data/fgvc-aircraft)",
        _list_aircraft,
        unused="val",
    ),
    "pets": _published(
        "Oxford-IIIT Pets",
        "oxford-iiit-pet",
        "annotations/trainval.txt, annotations/test.txt and images/",
        "the Oxford VGG page of the pet dataset (robots.ox.ac.uk/~vgg/data/pets)",
        _list_pets,
        parts=("trainval", "test"),
    ),
    "flowers102": _published(
        "Oxford Flowers-102",
        "flowers-102",
        "imagelabels.mat, setid.mat and jpg/image_00001.jpg …",
        "the Oxford VGG page of the 102 flowers (robots.ox.ac.uk/~vgg/data/flowers/102)",
        _list_flowers,
        unused="val",
    ),
    # The paper's 1,002 operations per query are 5 · 16² · N / V with V at most 3,240, so N is at
    # most 2,536: train1 has 1,880 images, with val1 it would be 3,760.
    "dtd": _published(
        "DTD",
        "dtd",
        "labels/train1.txt, labels/test1.txt and images/<texture>/",
        "the Oxford VGG page of describable textures (robots.ox.ac.uk/~vgg/data/dtd)",
        _list_textures,
        parts=("train1", "test1"),
        unused="val1",
    ),
    "food101": _published(
        "Food-101",
        "food-101",
        "meta/train.txt, meta/test.txt and images/<dish>/",
        "the ETH computer vision lab's page of Food-101 (data.vision.ee.ethz.ch)",
        _list_food,
    ),
    "roxford5k": _revisited("ROxford5k"),
    "rparis6k": _revisited("RParis6k"),
    "folder": DatasetLayout(
        "the data set",
        "",
        "class folders with images, or such folders in train/ and test/",
        "",
        _read_class_folders,
    ),
}
