"""Whether the strongest cell of a map is in the box of what the map should show.

The maps of one pass over an image are compared with those of the second pass, and with the middle
of the image. A file of boxes has lines `file,label,x,y,width,height`, as shares of the sides. The
query of a text explanation is the label, that of an image explanation another photo with the label.
A text that counts against its photo is left out, as its map shows what else there is.
"""

import argparse
import csv
import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from workload import print_table

from bm25v.explain import Explanation
from bm25v.explain.heatmaps import combine_maps
from bm25v.gallery import Gallery

Box = tuple[float, float, float, float]
Boxes = dict[str, dict[str, list[Box]]]  # by file and label
Grid = NDArray[np.float32]

_SMALL = 0.1  # of the image, all boxes of a label together
_MAPS = ("middle", "one pass", "second pass")


def read_boxes(path: Path) -> Boxes:
    boxes: Boxes = {}
    with path.open(newline="", encoding="utf-8") as file:
        for name, label, *sides in csv.reader(file):
            x, y, width, height = map(float, sides)
            boxes.setdefault(name, {}).setdefault(label, []).append((x, y, width, height))
    return boxes


def points_inside(grid: Grid, boxes: list[Box]) -> bool:
    row, column = np.unravel_index(int(grid.argmax()), grid.shape)
    x, y = (column + 0.5) / grid.shape[1], (row + 0.5) / grid.shape[0]
    return any(
        left <= x <= left + width and top <= y <= top + height for left, top, width, height in boxes
    )


def explain_all(
    gallery: Gallery, photos: Path, boxes: Boxes
) -> Iterator[tuple[str, Explanation, dict[str, list[Box]]]]:
    """Yield explanations, each with the boxes of labels that it may be about."""
    chosen = random.Random(0)
    for name, by_label in boxes.items():
        for label in by_label:
            explanation = gallery.explain(None, photos / name, text=label)
            if explanation.score > 0:
                yield "text", explanation, {label: by_label[label]}
            others = [other for other in boxes if other != name and label in boxes[other]]
            if others:
                query = chosen.choice(others)
                shared = {each: by_label[each] for each in by_label if each in boxes[query]}
                yield "image", gallery.explain(photos / query, photos / name), shared


def measure(gallery: Gallery, photos: Path, boxes: Boxes) -> dict[str, dict[str, float]]:
    tallies: dict[str, list[tuple[float, ...]]] = {}
    seconds = []
    for kind, coarse, by_label in explain_all(gallery, photos, boxes):
        start = time.process_time()
        pair = (coarse, coarse.fine)
        seconds.append(time.process_time() - start)
        every = [box for own in by_label.values() for box in own]
        tests = [(kind, every, [combine_maps(each)[1] for each in pair])]
        if kind == "image":
            known = boxes[Path(coarse.hit_path).name]
            tests += (
                ("group", known[group.label], [group.in_hit, fine.in_hit])
                for group, fine in zip(*(each.groups for each in pair), strict=True)
                if group.label in known and group.value > 0
            )
        for test, own, grids in tests:
            maps = [np.ones((1, 1), np.float32), *(grid for grid in grids if grid is not None)]
            if len(maps) == len(_MAPS):
                area = sum(width * height for _, _, width, height in own)
                inside = (points_inside(grid, own) for grid in maps)
                tallies.setdefault(test, []).append((area, *inside))
    figures: dict[str, dict[str, float]] = {}
    for test, rows in tallies.items():
        values = np.array(rows, dtype=float)
        small = values[values[:, 0] < _SMALL]
        figures[test] = {"n": len(values), "n_small": len(small)}
        for column, name in enumerate(_MAPS, start=1):
            figures[test][name] = float(values[:, column].mean())
            figures[test][f"{name}, small"] = float(small[:, column].mean())
    return figures | {"cpu": {"median_ms": 1e3 * float(np.median(seconds))}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", type=Path, help="a folder")
    parser.add_argument("boxes", type=Path, help="a CSV file")
    parser.add_argument("--vocabulary", default="default")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    boxes = read_boxes(options.boxes)
    with (
        tempfile.TemporaryDirectory() as folder,
        Gallery.create(Path(folder) / "g.bm25v", vocabulary=options.vocabulary) as gallery,
    ):
        gallery.add(options.photos)
        gallery.refresh()
        figures = measure(gallery, options.photos, boxes)
    if options.json:
        print(json.dumps(figures))
        return
    cpu = figures.pop("cpu")
    heads = [f"{name}{size}" for size in ("", ", small") for name in _MAPS]
    rows = [
        [test, f"{own['n']:.0f}", *(f"{own[head]:.3f}" for head in heads)]
        for test, own in figures.items()
    ]
    print_table(["query", "n", *heads], rows)
    print(f"second pass: {cpu['median_ms']:.0f} ms of CPU for each explanation, in the middle")


if __name__ == "__main__":
    main()
