"""Images and galleries that the tests make themselves."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import settings
from numpy.typing import NDArray
from PIL import Image

from bm25v.backbones.protocol import Features, Floats
from bm25v.backbones.toy import ToyBackbone
from bm25v.gallery import Gallery
from bm25v.search.encode import EncodedQuery
from bm25v.search.encode import encode as encode_query
from bm25v.search.query import Query
from bm25v.store.local.snapshot import Snapshot
from bm25v.vocabulary.bag import Bag, FullBag, to_levels
from tests.browser import CHROMIUM, Browser, browser

if TYPE_CHECKING:
    from tests.http_server import Client
    from tests.qdrant_nodes import Cluster

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts background jobs so
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # else processes of tests ignore it too
os.environ.pop("COLUMNS", None)  # pytest-xdist sets it; tests choose the width themselves
settings.register_profile("bm25v", deadline=None)  # other programs may slow the machine down
settings.load_profile("bm25v")


def make_image(seed: int, *, side: int = 64) -> Image.Image:
    """Return an image of coarse coloured blocks, a different one for each seed."""
    blocks = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(blocks).resize((side, side), Image.Resampling.NEAREST)


def make_pixels(seed: int) -> NDArray[np.uint8]:
    """Return the pixels of `make_image`."""
    return np.asarray(make_image(seed))


class RecordingBackbone(ToyBackbone):
    """A toy backbone that records the sizes of its batches."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self.sizes: list[int] = []

    def forward_batch(self, batch: list[Floats]) -> list[Features]:
        self.sizes.append(len(batch))
        return super().forward_batch(batch)


def expand_bag(bag: Bag) -> FullBag:
    """Return a full bag with the words of a bag, all in the first patch."""
    return FullBag(bag.words, to_levels(bag.tf), np.zeros(len(bag.words), dtype=np.uint16))


def _make_folder(path: Path, n: int) -> Path:
    path.mkdir()
    for seed in range(n):
        make_image(seed).save(path / f"{seed}.png")
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of twelve images, 0.png to 11.png."""
    return _make_folder(tmp_path / "photos", 12)


@pytest.fixture
def training_images(tmp_path: Path) -> Path:
    """A folder of forty images, enough to train on."""
    return _make_folder(tmp_path / "training", 40)


@pytest.fixture
def make_gallery(tmp_path: Path) -> Callable[[str], Gallery]:
    """A function that makes an empty gallery with the toy vocabulary."""
    return lambda name: Gallery.create(tmp_path / name, vocabulary="toy")


@pytest.fixture
def gallery(photos: Path, make_gallery: Callable[[str], Gallery]) -> Gallery:
    """A gallery of the twelve images."""
    gallery = make_gallery("gallery.bm25v")
    gallery.add(photos)
    return gallery


@pytest.fixture
def client(gallery: Gallery, tmp_path: Path) -> Iterator["Client"]:
    """A client of a server that may change the gallery."""
    from tests.http_server import serving

    with serving(gallery, tmp_path / "cache", writable=True) as client:
        yield client


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A tab of a browser without a window."""
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 600 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)]
    try:
        is_mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except OSError:  # no such command
        is_mounted = False
    if not is_mounted:
        pytest.skip("mounting a small disk needs Linux and root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def encode(gallery: Gallery, image: Any = None, **options: Any) -> EncodedQuery:
    """Return the encoded query of a search in a gallery."""
    query = Query.of(image, **options)
    return gallery.store.read(lambda view: encode_query(query, view, gallery._named_vocabulary))


def find_row(gallery: Gallery, path: str | Path) -> int:
    """Return the row of an image in the files of a gallery."""
    snapshot = gallery.local.snapshot()
    return snapshot.find([str(path)])[str(path)].row


def stored_bag(snapshot: Snapshot, row: int) -> Bag:
    """Return the bag that the index has of a row."""
    return snapshot.images(snapshot.rows).read_bag(row, full=False)


def stored_full_bag(snapshot: Snapshot, row: int) -> FullBag:
    """Return the full bag of a row."""
    return snapshot.images(snapshot.rows).read_full_bag(row)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Cluster"]:
    """Three nodes of Qdrant, if `make cluster` has brought a server."""
    from tests.qdrant_nodes import BINARY, start_cluster

    if BINARY not in os.environ:
        pytest.skip("needs a Qdrant server: run `make cluster`")
    with start_cluster(Path(os.environ[BINARY]), tmp_path_factory.mktemp("nodes")) as cluster:
        yield cluster
