"""Encodes photos once for everything that is learned from them: patches, vectors, classes.

Photos are in random order, in shards of 1,024; shards that exist are kept, so a run that was
stopped continues where it was.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
from numpy.typing import NDArray
from teacher import Teacher

from bm25v import images
from bm25v.backbones import load_backbone
from bm25v.backbones.protocol import Floats
from bm25v.cli.progress import progress_bar
from bm25v.errors import ImageError
from bm25v.threads import available_cpus
from bm25v.training.patches import read_arrays, write_arrays

SHARD = 1024


class Photos(NamedTuple):
    """What is known about some photos, in one order, but for their patches."""

    names: NDArray[np.str_]  # of files, without their ending
    dense: Floats  # vectors of length 1
    logits: NDArray[np.float16]  # of MobileNetV2, for the 1,000 classes of ImageNet


def read_photos(folder: Path) -> Photos:
    """Return all photos of a folder that this script has written."""
    parts = [read_arrays(path, *Photos._fields) for path in sorted(folder.glob("shard-*.npz"))]
    return Photos(*(np.concatenate([part[field] for part in parts]) for field in Photos._fields))


def encode_shard(paths: list[Path], pool: ThreadPoolExecutor) -> dict[str, NDArray[np.generic]]:
    backbone, teacher = load_backbone("tinyvit-5m"), Teacher()

    def encode(path: Path) -> tuple[str, Floats, Floats, Floats] | None:
        try:
            image_hwc = images.decode_image(path, short_side=2 * backbone.input_size)
        except ImageError:
            return None
        features = backbone.forward(backbone.prepare_image(image_hwc))
        logits_c = teacher.classify_features(teacher.forward(image_hwc).mean(axis=0))
        return path.stem, features.patches_pd, features.dense_e, logits_c

    backbone.load_weights()
    encoded = [photo for photo in pool.map(encode, paths) if photo is not None]
    names, patches, dense, logits = zip(*encoded, strict=True)
    return {
        "names": np.array(names),
        "patches": np.array(patches, np.float16),
        "dense": np.array(dense, np.float32),
        "logits": np.array(logits, np.float16),
    }


@click.command()
@click.argument("photos", nargs=-1, required=True, type=click.types.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.types.Path(path_type=Path))
def main(photos: tuple[Path, ...], output: Path) -> None:
    """Encode all photos of some folders."""
    paths = sorted(path for folder in photos for path in images.find_images(folder))
    order = np.random.default_rng(0).permutation(len(paths)).tolist()
    output.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(available_cpus()) as pool, progress_bar() as progress:
        for number, start in enumerate(range(0, len(paths), SHARD)):
            path = output / f"shard-{number:05d}.npz"
            if not path.exists():
                shard = [paths[i] for i in order[start : start + SHARD]]
                write_arrays(path, encode_shard(shard, pool))
            progress("encoding photos", min(start + SHARD, len(paths)), len(paths))


if __name__ == "__main__":
    main()
