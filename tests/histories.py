"""Galleries with random histories, written without image files and encoding.

This is fast, and every row is known to the last bit.
"""

import random
from collections.abc import Iterator
from datetime import datetime
from itertools import chain, islice
from pathlib import Path

import numpy as np

from bm25v.gallery import Gallery
from bm25v.images import Metadata
from bm25v.index.bm25 import WeightedWords, reference_scores
from bm25v.search.combine import combine_bags
from bm25v.store.files import FileState
from bm25v.store.local.rows import RowFiles
from bm25v.store.local.writer import Writer
from bm25v.vocabulary.bag import Bag
from tests.conftest import stored_bag, stored_full_bag
from tests.soak.history import get_full_bag
from tests.soak.history import make_encoding as make_encoding  # exported

N_IMAGES = 40  # different images that are added and removed

Contents = dict[str, int]  # what a gallery should contain: for each path the number of its image
Rows = dict[str, tuple[bytes, ...]]  # for each path its bag, dense vector and full bag


def image_number(path: str) -> int:
    """Return the number of the image at a path; the file name starts with it."""
    return int(Path(path).name.split("-")[0])


def image_date(number: int) -> datetime:
    """Return an image's date: of every third image the time of its file, else its EXIF date."""
    return datetime(1970 if number % 3 == 0 else 2020, 1, 1 + number % 31, 12)


def image_size(number: int) -> tuple[int, int]:
    """Return the width and height of an image."""
    return 100 + number, 50 + number


def change_randomly(rng: random.Random, contents: Contents) -> Contents:
    """Return the contents after some images were added, removed or moved."""
    changed = dict(contents)
    for _ in range(rng.randint(1, 6)):
        number = rng.randrange(N_IMAGES)
        path, other_path = (f"/photos/{number}-{letter}.png" for letter in rng.sample("ab", 2))
        if path not in changed:
            changed[path] = number
        elif rng.random() < 0.5:
            del changed[path]
        else:
            changed[other_path] = changed.pop(path)
    return changed


def random_sessions(seed: int, contents: Contents) -> Iterator[list[Contents]]:
    """Yield the commits of one writer after the other, without end; no commits mean compaction."""
    rng = random.Random(seed)
    while True:
        commits = []
        for _ in range(rng.randint(0, 4)):
            contents = change_randomly(rng, contents)
            commits.append(contents)
        yield commits


def write_contents(writer: Writer, contents: Contents) -> None:
    """Make a gallery have these contents, in the ways that indexing does; without a commit."""
    for path, number in contents.items():
        taken = image_date(number) if image_date(number).year == 2020 else None
        metadata = Metadata(*image_size(number), taken)
        mtime_ns = 0 if taken is not None else int(image_date(number).timestamp()) * 10**9
        content = number.to_bytes(16, "big")
        file = FileState(path, content, 1000 + number, mtime_ns, metadata)
        same = writer.catalog.with_content(file.content)
        if writer.catalog.at_path(path) is not None:
            continue
        if same is None:
            writer.put(file, make_encoding(number))
        elif same.live and same.path in contents:
            writer.put_copy(file, same.row)
        else:  # it was moved, or it is restored
            writer.move(same.row, file)
    for record in list(writer.catalog.images()):
        if record.path not in contents:
            writer.remove(record.row)


def run_session(folder: Path, commits: list[Contents]) -> Iterator[Contents]:
    """Open a writer and commit these contents, or compact; yield each after its commit."""
    with Writer(folder) as writer:
        if not commits:
            writer.compact()
        for contents in commits:
            write_contents(writer, contents)
            writer.n_pending += 1  # commit even if nothing has changed
            writer.commit()
            yield contents


def fill_gallery(folder: Path, seed: int = 0, commits: int = 12) -> Contents:
    """Make a gallery with a random history without compaction; return its contents."""
    Gallery.create(folder, vocabulary="toy").close()
    versions = islice(chain.from_iterable(random_sessions(seed, {})), commits)
    return list(run_session(folder, list(versions)))[-1]


def full_bag(number: int) -> Bag:
    """Return the words of an image's full bag with their tf, as BM25 reads them."""
    return get_full_bag(make_encoding(number)).bag


def expected_rows(contents: Contents) -> Rows:
    """Return the bytes that the rows of a gallery with these contents should have."""
    rows = {}
    for path, number in contents.items():
        encoding = make_encoding(number)
        dense_e = encoding.dense_e.astype(np.float16)
        arrays = (*encoding.bag, dense_e, *get_full_bag(encoding))
        rows[path] = tuple(array.tobytes() for array in arrays)
    return rows


def stored_rows(gallery: Gallery) -> Rows:
    """Return the bytes of all rows of a gallery that is not written to meanwhile."""
    snapshot = gallery.local.snapshot()
    rows = snapshot.rows.tolist()
    paths = gallery.local.catalog.paths_of(rows, snapshot.state.generation)
    stored = {}
    for row, path in zip(rows, paths, strict=True):
        bag, full_bag = stored_bag(snapshot, row), stored_full_bag(snapshot, row)
        arrays = (*bag, snapshot.dense_ne[row], *full_bag)
        stored[path] = tuple(array.tobytes() for array in arrays)
    return stored


def check_contents(folder: Path, *versions: Contents) -> Contents:
    """Assert that a gallery is intact and has one of these contents; return them."""
    with Gallery.open(folder) as gallery:
        assert gallery.problems() == []
        rows = stored_rows(gallery)
        assert len(rows) == len(gallery)
        matching = [contents for contents in versions if expected_rows(contents) == rows]
        assert matching, "the gallery has none of the expected contents"
        check_scores(gallery, matching[0])
        return matching[0]


def check_scores(gallery: Gallery, contents: Contents) -> None:
    """Assert that searches by words return the scores of the reference."""
    number, k = len(contents) % N_IMAGES, len(contents) + 1
    query = make_encoding(number)
    by_index = gallery.search(query, k=k, mode="sparse")
    bags = [make_encoding(number).bag for number in contents.values()]
    scores = reference_scores(bags, WeightedWords.from_bag(query.bag))
    expected = {path: s for path, s in zip(contents, scores, strict=True) if s is not None}
    assert {hit.path: hit.score for hit in by_index} == expected
    by_words = gallery.search(query, k=k, mode="words")
    words = combine_bags([full_bag(number)], by_strength=True)
    scores = reference_scores([full_bag(number) for number in contents.values()], words)
    expected = {path: s for path, s in zip(contents, scores, strict=True) if s is not None}
    assert {hit.path: hit.score for hit in by_words} == expected


def check_row_files(folder: Path) -> None:
    """Assert that a gallery has no row files but the current ones."""
    with Gallery.open(folder) as gallery:
        generation = gallery.local.snapshot().state.generation
        files = RowFiles.of(folder, gallery.local.catalog.meta, generation)
    assert set(folder.glob("*.rows")) == {file.path for file in files}
