"""Whether indexing is as fast as the backbone: forward passes alone, and indexing, alternately."""

import argparse
import itertools
import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from workload import print_table

from bm25v import demo, images
from bm25v.backbones import downloads
from bm25v.errors import ImageError
from bm25v.gallery import Gallery
from bm25v.threads import available_cpus
from bm25v.vocabulary import Vocabulary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="images [default: the demo's photos]")
    parser.add_argument("--vocabulary", default="default")
    parser.add_argument("--n", type=int, default=200, help="images")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if options.folder is None:
            options.folder = Path(scratch) / "photos"
            demo.unpack(downloads.read_file(demo.PHOTOS), options.folder)
        paths = list(itertools.islice(images.find_images(options.folder), options.n))
        n, seconds = time_encoding(paths, options.vocabulary, options.rounds, Path(scratch))
    overhead = seconds["index"] / seconds["forward"] - 1
    if options.json:
        figures = {"n_images": n, "rounds": options.rounds, "seconds": seconds}
        print(json.dumps({**figures, "overhead": overhead}, indent=2))
        return
    speeds = {name: f"{n * options.rounds / spent:.1f}" for name, spent in seconds.items()}
    rows = [("forward passes", speeds["forward"]), ("indexing", speeds["index"])]
    print_table((f"{n} images", "images/s"), rows)
    print(f"indexing takes {overhead:+.1%} longer")


def time_encoding(
    paths: list[Path], vocabulary: str, rounds: int, scratch: Path
) -> tuple[int, dict[str, float]]:
    """Return the number of readable images, and the total seconds of forward passes and indexing.

    Both use the same images and number of threads.
    """
    loaded = Vocabulary.load(vocabulary)
    inputs = {}
    for path in paths:
        try:
            inputs[path] = loaded.backbone.prepare_image(loaded.decode(path))
        except ImageError as error:
            print(f"{path} is skipped: {error}", file=sys.stderr)
    if not inputs:
        sys.exit("none of the images can be read: give a folder with readable ones")
    loaded.backbone.load_weights()
    seconds = {"forward": 0.0, "index": 0.0}
    with ThreadPoolExecutor(available_cpus()) as pool:
        for number in range(rounds):
            start = time.perf_counter()
            list(pool.map(loaded.backbone.forward, inputs.values()))
            seconds["forward"] += time.perf_counter() - start
            with Gallery.create(scratch / f"{number}.bm25v", vocabulary=vocabulary) as gallery:
                gallery.vocabulary.backbone.load_weights()  # not timed: once per run
                start = time.perf_counter()
                gallery.add(list(inputs))
                seconds["index"] += time.perf_counter() - start
    return len(inputs), seconds


if __name__ == "__main__":
    main()
