"""Random histories of a gallery, without files and encoding: fast, and known to the last bit."""

import random
from collections.abc import Iterator
from functools import cache
from itertools import chain, islice
from pathlib import Path

import numpy as np

from bm25v.api import Gallery
from bm25v.gallery.rows import bag_file, dense_file
from bm25v.gallery.writer import FileState, Writer
from bm25v.index.bm25 import WeightedWords, reference_scores
from bm25v.sae.model import Codes
from bm25v.vocabulary import Encoding
from bm25v.vocabulary.bag import Bag

PICTURES = 40  # different ones that come and go

Model = dict[str, int]  # what a gallery should hold: the number of the picture at each path


@cache
def encoding(number: int) -> Encoding:
    """Return what the toy vocabulary might say of a picture."""
    rng = np.random.default_rng(number)
    words = np.sort(rng.choice(192, 12, replace=False)).astype(np.int32)
    bag = Bag(words, rng.integers(1, 500, 12).astype(np.uint16))
    dense_e = rng.normal(size=12).astype(np.float16).astype(np.float32)
    return Encoding(bag, dense_e, Codes(np.empty((0, 1), np.int32), np.empty((0, 1), np.float32)))


def number_at(path: str) -> int:
    """Return which picture is at a path: its name says so."""
    return int(Path(path).name.split("-")[0])


def changed(rng: random.Random, model: Model) -> Model:
    """Return what a gallery holds after some pictures came, went or moved."""
    after = dict(model)
    for _ in range(rng.randint(1, 6)):
        number = rng.randrange(PICTURES)
        here, there = (f"/photos/{number}-{letter}.png" for letter in rng.sample("ab", 2))
        if here not in after:
            after[here] = number
        elif rng.random() < 0.5:
            del after[here]
        else:
            after[there] = after.pop(here)
    return after


def sessions(seed: int, model: Model) -> Iterator[list[Model]]:
    """Give, without end, what one writer after the other commits; nothing to compact instead."""
    rng = random.Random(seed)
    while True:
        commits = []
        for _ in range(rng.randint(0, 4)):
            model = changed(rng, model)
            commits.append(model)
        yield commits


def write(writer: Writer, after: Model) -> None:
    """Bring a gallery to hold a model's pictures, in the ways indexing does; without a commit."""
    for path, number in after.items():
        file = FileState(path, number.to_bytes(16, "big"), 1000 + number, number)
        same = writer.catalog.with_content(file.content)
        if writer.catalog.at_path(path) is not None:
            continue
        if same is None:
            writer.put(file, encoding(number).bag, encoding(number).dense_e)
        elif same.live and same.path in after:
            writer.put_copy(file, same.row)
        else:  # it has moved, or comes back
            writer.move(same.row, file)
    for picture in list(writer.catalog.images()):
        if picture.path not in after:
            writer.remove(picture.row)


def committed(folder: Path, commits: list[Model]) -> Iterator[Model]:
    """Be one writer: commit these, or compact; give back each after its commit."""
    with Writer(folder) as writer:
        if not commits:
            writer.compact()
        for model in commits:
            write(writer, model)
            writer.n_pending += 1  # commit even where nothing has changed
            writer.commit()
            yield model


def filled(folder: Path, seed: int = 0, commits: int = 12) -> Model:
    """Make a gallery with a random history but no compaction in it, and return what it holds."""
    Gallery.create(folder, vocabulary="toy").close()
    models = islice(chain.from_iterable(sessions(seed, {})), commits)
    return list(committed(folder, list(models)))[-1]


Bits = dict[str, tuple[bytes, bytes, bytes]]


def bits(model: Model) -> Bits:
    """Return the words, frequencies and dense vector that each path should have."""
    return {path: _bits(encoding(number)) for path, number in model.items()}


def _bits(found: Encoding) -> tuple[bytes, bytes, bytes]:
    dense = found.dense_e.astype(np.float16)
    return found.bag.words.tobytes(), found.bag.tf.tobytes(), dense.tobytes()


def stored_bits(gallery: Gallery) -> Bits:
    """Return the same as it is in a gallery that nobody writes to."""
    snapshot = gallery.store.snapshot()
    rows = snapshot.rows.tolist()
    paths = gallery.store.catalog.paths_of(rows, snapshot.state.generation)
    assert paths is not None
    found = {}
    for row, path in zip(rows, paths, strict=True):
        bag = snapshot.bag(row)
        found[path] = (bag.words.tobytes(), bag.tf.tobytes(), snapshot.dense_ne[row].tobytes())
    return found


def held(folder: Path, *models: Model) -> Model:
    """Expect a gallery to be whole and to hold one of the models, and return that one."""
    with Gallery.open(folder) as gallery:
        assert gallery.problems() == []
        found = stored_bits(gallery)
        assert len(found) == len(gallery)
        fitting = [model for model in models if bits(model) == found]
        assert fitting, "neither the state before nor the one after"
        assert_found(gallery, fitting[0])
        return fitting[0]


def assert_found(gallery: Gallery, model: Model) -> None:
    """Expect a search to give the plain formula's scores."""
    wish = encoding(len(model) % PICTURES)
    results = gallery.search(wish, k=len(model) + 1, mode="sparse")
    bags = [encoding(number).bag for number in model.values()]
    scores = reference_scores(bags, WeightedWords.from_bag(wish.bag))
    expected = {path: s for path, s in zip(model, scores, strict=True) if s is not None}
    assert {hit.path: hit.score for hit in results} == expected


def assert_tidy(folder: Path) -> None:
    """Expect no row files but those that count."""
    with Gallery.open(folder) as gallery:
        generation = gallery.store.snapshot().state.generation
        meta = gallery.store.catalog.meta
    current = {make(folder, meta, generation).path for make in (bag_file, dense_file)}
    assert set(folder.glob("*.rows")) == current
