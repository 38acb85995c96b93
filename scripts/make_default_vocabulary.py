"""Make the vocabulary that is shipped: `python scripts/make_default_vocabulary.py FOLDER`.

In: a folder of pictures, broad and unlabelled. Out: `src/bm25v/vocabularies/default`, whose own
report says what it was made from and how. Each picture is seen whole, mirrored, and twice in part.
"""

import argparse
import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bm25v import backbones, images
from bm25v.backbones import Backbone
from bm25v.errors import ImageError
from bm25v.sae.train import Recipe, train
from bm25v.vocabulary import DEFAULT, Vocabulary

VIEWS = "whole, mirrored, and two random parts of 25 to 70 % of the area, mirrored half of the time"
N_VIEWS = 4
OUTPUT = Path(__file__).parent.parent / "src" / "bm25v" / "vocabularies" / DEFAULT
RECIPE = Recipe(learning_rate=4e-3)

Pixels = NDArray[np.uint8]


def views(image: Pixels, seed: int) -> Iterator[Pixels]:
    """Give the ways in which one picture is seen."""
    yield image
    yield image[:, ::-1]
    rng = np.random.default_rng(seed)
    height, width = image.shape[:2]
    for _ in range(N_VIEWS - 2):
        side = np.sqrt(rng.uniform(0.25, 0.7))
        h, w = max(1, round(height * side)), max(1, round(width * side))
        y, x = rng.integers(height - h + 1), rng.integers(width - w + 1)
        part = image[y : y + h, x : x + w]
        yield part[:, ::-1] if rng.random() < 0.5 else part


def patch_features(backbone: Backbone, paths: list[Path]) -> NDArray[np.float16]:
    """Return the patches of all views of all readable pictures, as rows."""

    def of_one(job: tuple[int, Path]) -> list[NDArray[np.float16]]:
        seed, path = job
        try:
            image = images.decode(path, short_side=2 * backbone.input_size)
        except ImageError as error:
            print(f"left out: {path}: {error}")
            return []
        seen = (np.ascontiguousarray(view) for view in views(image, seed))
        passes = (backbone.forward(backbone.prepare(view)) for view in seen)
        return [features.patches_pd.astype(np.float16) for features in passes]

    blocks: list[NDArray[np.float16]] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done, found in enumerate(pool.map(of_one, enumerate(paths)), start=1):
            blocks += found
            print(f"\r{done:,} of {len(paths):,} pictures", end="", flush=True)
    print()
    return np.concatenate(blocks)


def main() -> None:
    """Extract, train, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--about", required=True, help="what the pictures are, in a sentence")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--limit", type=int, help="use only so many pictures, to try it out")
    wish = parser.parse_args()
    backbone = backbones.load("tinyvit-5m")
    paths = list(itertools.islice(images.find(wish.folder), wish.limit))
    patches = patch_features(backbone, paths)

    def show(step: int, steps: int, fvu: float) -> None:
        print(f"\rstep {step} of {steps}, FVU {fvu:.3f}", end="", flush=True)

    trained = train(patches, RECIPE, show)
    print()
    data = {"about": wish.about, "pictures": len(paths), "views": VIEWS, "patches": len(patches)}
    report = {"data": data, "training": trained.report}
    sae = trained.autoencoder()
    Vocabulary.build(DEFAULT, backbone=backbone, sae=sae, report=report).save(wish.output)
    print(f"{wish.output}: FVU {trained.report['fvu']:.3f} on held-out patches")


if __name__ == "__main__":
    main()
