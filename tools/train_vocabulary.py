"""Trains a vocabulary on photos that `encode_photos.py` has encoded, instead of on image files.

The first shard of each folder, 1,024 random photos, is held out to measure the result and to find
stop words. A run that was stopped continues if it is started again with the same options.
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
from numpy.typing import NDArray

from bm25v.backbones import load_backbone
from bm25v.cli.options import COUNT, FILE, FOLDER, output_option
from bm25v.cli.progress import training_display
from bm25v.files import make_folder
from bm25v.sae.model import SparseAutoEncoder
from bm25v.training import checkpoints
from bm25v.training.patches import WINDOW_BYTES, Halves, read_arrays
from bm25v.training.quality import choose_stop_words
from bm25v.training.recipe import Recipe, count_steps
from bm25v.training.run import train_steps
from bm25v.training.trainer import check_patches, describe_run, start_trainer
from bm25v.vocabulary import Vocabulary

_BACKBONE = "tinyvit-5m"  # that of `encode_photos.py`
_GRID = 49  # patches of a photo


class Shard(NamedTuple):
    path: Path
    rows: NDArray[np.int64]  # of the photos that may be used

    def read(self) -> Halves:
        return read_arrays(self.path, "patches")["patches"][self.rows]


class MixedWindows:
    """Patches in parts that fit in memory; each has some shards of every folder."""

    def __init__(self, folders: Sequence[Sequence[Shard]], dim: int) -> None:
        self.n_photos = sum(len(shard.rows) for shards in folders for shard in shards)
        self._dim = dim
        n = max(1, round(self.n_photos * _GRID * dim * 2 / WINDOW_BYTES))
        self._windows = [[s for shards in folders for s in shards[w::n]] for w in range(n)]

    def __len__(self) -> int:
        return len(self._windows)

    def n_patches(self, window: int) -> int:
        return sum(len(shard.rows) for shard in self._windows[window]) * _GRID

    def read(self, window: int) -> Halves:
        parts = [shard.read().reshape(-1, self._dim) for shard in self._windows[window]]
        return np.concatenate(parts)


def list_shards(folder: Path, skipped: frozenset[str]) -> list[Shard]:
    """Return a folder's shards without some photos: by name, or by its part after the last "-"."""
    shards = []
    for path in sorted(folder.glob("shard-*.npz")):
        names = read_arrays(path, "names")["names"].tolist()
        rows = [row for row, name in enumerate(names) if name.split("-")[-1] not in skipped]
        shards.append(Shard(path, np.array(rows, np.int64)))
    if len(shards) < 2:
        raise click.UsageError(f"{folder} has too few encoded photos: encode more")
    return shards


def find_stop_words(sae: SparseAutoEncoder, photos_npd: Halves) -> tuple[int, ...]:
    """Return the words that most photos have."""
    images_v = np.zeros(sae.n_words, dtype=np.int64)
    for patches_pd in photos_npd:
        codes = sae.encode(patches_pd.astype(np.float32))
        images_v[np.unique(codes.words_pk[codes.activations_pk > 0])] += 1
    return choose_stop_words(images_v, len(photos_npd))


@click.command()
@click.argument("encoded", nargs=-1, required=True, type=FOLDER)
@output_option("The folder of the vocabulary.", FOLDER, is_required=True)
@click.option("--expansion", default=32, type=COUNT, help="Words per feature dimension.")
@click.option("--k", default=24, type=COUNT, help="Active words per patch.")
@click.option("--epochs", default=2.0, type=click.FloatRange(0, min_open=True))
@click.option("--skip", type=FILE, help="Names of photos that must not be used, one in a line.")
@click.option("--about", default="", help="Describes the photos in the report.")
def main(
    encoded: tuple[Path, ...],
    output: Path,
    expansion: int,
    k: int,
    epochs: float,
    skip: Path | None,
    about: str,
) -> None:
    """Train a vocabulary on some folders of encoded photos; one given twice counts twice."""
    start = time.perf_counter()
    skipped = frozenset(skip.read_text("utf-8").split() if skip else ())
    backbone = load_backbone(_BACKBONE)
    shards = {folder: list_shards(folder, skipped) for folder in dict.fromkeys(encoded)}
    windows = MixedWindows([shards[folder][1:] for folder in encoded], backbone.patch_dim)
    held_out_npd = np.concatenate([parts[0].read() for parts in shards.values()])
    recipe = Recipe(expansion=expansion, k=k, epochs=math.ceil(epochs))
    if not epochs.is_integer():
        per_epoch = count_steps(windows, replace(recipe, epochs=1))
        recipe = replace(recipe, steps=max(1, round(epochs * per_epoch)))
    check_patches(windows.n_photos * _GRID, backbone.patch_dim, recipe)
    settings = [asdict(recipe), list(map(str, encoded)), windows.n_photos]
    key = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
    output = Path(os.path.abspath(output))
    work = output.parent / f"{output.name}.work"
    trainer = start_trainer(windows, recipe)
    if (work / checkpoints.FILE_NAME).exists():
        checkpoints.check_checkpoint(work, key=key)
        trainer.restore(checkpoints.load_checkpoint(work))
    with training_display() as listener:
        train_steps(trainer, windows, work, key=key, listener=listener)
    sae = trainer.autoencoder()
    held_out_nd = held_out_npd.reshape(-1, backbone.patch_dim)
    report = {
        "data": {
            "about": about or ", ".join(folder.name for folder in shards),
            "n_images": sum(len(shard.rows) for parts in shards.values() for shard in parts),
            "views": "1: whole",
            "patches_per_view": None,
            "patches": windows.n_photos * _GRID,
        },
        "training": {
            **describe_run(trainer, sae, [held_out_nd]),
            "processes": 1,
            "seconds": round(time.perf_counter() - start, 1),
        },
    }
    vocabulary = Vocabulary.build(
        output.stem,
        backbone=backbone,
        sae=sae,
        stop_words=find_stop_words(sae, held_out_npd),
        report=report,
    )
    make_folder(output)
    checkpoints.copy_log(work, output)
    vocabulary.save(output)
    checkpoints.delete_run(work)


if __name__ == "__main__":
    main()
