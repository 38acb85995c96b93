"""Published image collections, as they are laid out by their authors, become `Dataset` values.

In: a name and a folder. Out: gallery, queries, and everything that is wrong with them. `load` reads
the lists and sees which files are there, `checked` looks into every picture. Nothing is downloaded,
and no file can run code. Not this room's job: what a model sees in the pictures.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from bm25v.errors import WrongUse
from bm25v.research.datasets.aircraft import AIRCRAFT
from bm25v.research.datasets.birds import BIRDS
from bm25v.research.datasets.cars import CARS
from bm25v.research.datasets.contents import checked, sifted
from bm25v.research.datasets.dataset import Box, Dataset, Item, Landmark, report
from bm25v.research.datasets.flowers import FLOWERS
from bm25v.research.datasets.folders import FOLDER, IMAGENET, read_split
from bm25v.research.datasets.food import FOOD
from bm25v.research.datasets.landmarks import OXFORD, PARIS
from bm25v.research.datasets.pets import PETS
from bm25v.research.datasets.published import Tree
from bm25v.research.datasets.textures import TEXTURES

__all__ = ["SOURCES", "Box", "Dataset", "Item", "Landmark", "checked", "load", "sifted"]

SOURCES = {
    "cub200": BIRDS,
    "cars196": CARS,
    "aircraft": AIRCRAFT,
    "pets": PETS,
    "flowers102": FLOWERS,
    "dtd": TEXTURES,
    "food101": FOOD,
    "roxford5k": OXFORD,
    "rparis6k": PARIS,
    "imagenet": IMAGENET,
    "folder": FOLDER,
}


def load(
    name: str, data: str | os.PathLike[str], *, split: str | os.PathLike[str] | None = None
) -> Dataset:
    """Read a data set out of its folder, or out of a folder that holds it under its usual name.

    `split` is for "folder": a file with lines "path<TAB>gallery|query". Without one, `train` and
    `test` folders are the gallery and the queries, and else every picture asks for the others.
    """
    if name not in SOURCES:
        raise WrongUse(
            f"no data set {name!r}; there are: {', '.join(SOURCES)}; "
            "any other folder of class folders is a 'folder'"
        )
    if split is not None and name != "folder":
        raise WrongUse(f"{name} has a split of its own: leave out --split, or name it 'folder'")
    source = SOURCES[name]
    tree = Tree(Path(data), source)
    parts = source.read(tree) if split is None else read_split(tree, Path(split))
    asking = [] if parts.queries is None else parts.queries
    named = dict.fromkeys(item.path for item in parts.gallery + asking)
    missing = [path for path in named if not path.is_file()]
    gallery = _without(parts.gallery, missing)
    queries = gallery if parts.leave_one_out else _without(asking, missing)
    if not gallery or (parts.queries is not None and not queries):
        tree.refuse(
            f"there are {len(gallery):,} pictures to search and {len(queries):,} queries, "
            f"{len(missing):,} more are named but missing"
        )
    lost = (path.relative_to(tree.root).as_posix() for path in missing)
    return Dataset(
        name=name,
        folder=tree.root,
        protocol=parts.protocol,
        gallery=gallery,
        queries=queries,
        leave_one_out=parts.leave_one_out,
        split=None if split is None else Path(split),
        findings=[*parts.findings, *report("missing and left out", lost)],
    )


def _without(items: Iterable[Item], missing: Iterable[Path]) -> list[Item]:
    absent = set(missing)
    return [item for item in items if item.path not in absent]
