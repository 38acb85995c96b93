"""ROxford5k and RParis6k: buildings, with the revisited ground truth.

The ground truth is published as a pickle; the same content as JSON is taken as well. Queries are
not part of the gallery, and only the boxed part of their picture asks.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bm25v.research.datasets.dataset import Box, Item, Landmark
from bm25v.research.datasets.pickles import Refused, load_plain
from bm25v.research.datasets.published import Parts, Source, Tree


def _reader(name: str) -> Callable[[Tree], Parts]:
    def read(tree: Tree) -> Parts:
        file, content = _ground_truth(tree, f"gnd_{name}")
        try:
            gallery = [_picture(tree, name) for name in content["imlist"]]
            queries = [
                Item(_picture(tree, name), "", _landmark(truth, gallery))
                for name, truth in zip(content["qimlist"], content["gnd"], strict=True)
            ]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            tree.refuse(f"{file} is not the revisited ground truth ({error!r})")
        return Parts(
            "gallery: imlist, queries: the boxes of qimlist",
            [Item(path, "") for path in gallery],
            queries,
        )

    return read


def _ground_truth(tree: Tree, stem: str) -> tuple[str, Any]:
    if (tree.root / f"{stem}.json").is_file():
        file = f"{stem}.json"
        try:
            return file, json.loads(tree.bytes_of(file))
        except (ValueError, RecursionError):
            tree.refuse(f"{file} is no JSON")
    file = f"{stem}.pkl"
    try:
        return file, load_plain(tree.bytes_of(file))
    except Refused as error:
        tree.refuse(f"{file} {error}")


def _picture(tree: Tree, name: Any) -> Path:
    if not isinstance(name, str):
        raise TypeError(f"{name!r} is no name")
    return tree.root / "jpg" / f"{name}.jpg"


def _landmark(truth: Any, gallery: list[Path]) -> Landmark:
    def answers(kind: str) -> frozenset[Path]:
        rows = [int(row) for row in truth[kind]]
        if any(row < 0 for row in rows):
            raise IndexError(f"{kind} has a negative row")
        return frozenset(gallery[row] for row in rows)

    return Landmark(
        Box(*(float(edge) for edge in truth["bbx"])),
        answers("easy"),
        answers("hard"),
        answers("junk"),
    )


def _source(title: str, name: str) -> Source:
    return Source(
        title=title,
        folder=name,
        layout=f"gnd_{name}.pkl (or gnd_{name}.json) and all pictures directly in jpg/",
        home="the page of Revisiting Oxford and Paris (cmp.felk.cvut.cz/revisitop), the pictures "
        "on the Oxford VGG pages of the Oxford and Paris buildings",
        read=_reader(name),
    )


OXFORD = _source("ROxford5k", "roxford5k")
PARIS = _source("RParis6k", "rparis6k")
