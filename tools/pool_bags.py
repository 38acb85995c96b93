"""Pools the patches of encoded photos into the full bags of a vocabulary."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from bm25v.backbones import Features
from bm25v.cli.progress import progress_bar
from bm25v.store.bags import RowArray, full_bag_layout, write_full_bag
from bm25v.threads import available_cpus
from bm25v.training.patches import read_arrays, write_arrays
from bm25v.vocabulary import Vocabulary

_BATCH = 16  # photos


def read_bags(folder: Path) -> RowArray:
    """Return the full bags that this script has written, in the order of the photos."""
    return np.concatenate(
        [read_arrays(path, "bags")["bags"] for path in sorted(folder.glob("shard-*.npz"))]
    )


def pool_shard(path: Path, vocabulary: Vocabulary, pool: ThreadPoolExecutor) -> NDArray[np.generic]:
    patches_npd = read_arrays(path, "patches")["patches"].astype(np.float32)
    n_patches = patches_npd.shape[1]
    layout = full_bag_layout(vocabulary.full_bag_words, vocabulary.n_words, n_patches)
    bags = np.zeros(len(patches_npd), layout)
    no_vector = np.ones(vocabulary.backbone.dense_dim, np.float32)

    def pool_batch(start: int) -> None:
        photos = [Features(p, no_vector) for p in patches_npd[start : start + _BATCH]]
        for row, encoding in enumerate(vocabulary.encode_features(photos), start):
            write_full_bag(bags[row], encoding.full_bag)

    list(pool.map(pool_batch, range(0, len(bags), _BATCH)))
    return bags


@click.command()
@click.argument("encoded", type=click.types.Path(exists=True, path_type=Path))
@click.option("-v", "--vocabulary", default="default")
@click.option("-o", "--output", required=True, type=click.types.Path(path_type=Path))
def main(encoded: Path, vocabulary: str, output: Path) -> None:
    """Write the full bags of photos that encode_photos.py has encoded."""
    words = Vocabulary.load(vocabulary)
    output.mkdir(parents=True, exist_ok=True)
    shards = sorted(encoded.glob("shard-*.npz"))
    with (
        ThreadPoolExecutor(available_cpus()) as pool,
        progress_bar() as progress,
    ):
        for number, shard in enumerate(shards, start=1):
            target = output / shard.name
            if not target.exists():
                write_arrays(target, {"bags": pool_shard(shard, words, pool)})
            progress("pooling patches", number, len(shards))


if __name__ == "__main__":
    main()
