"""What a soaked gallery contains after each step, to the last bit and row by row.

All of it follows from seed and step: a step that a killed writer has not committed is repeated by
the next writer, with the same changes. So every process knows what each answer must be.
"""

import random
from collections import defaultdict
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.sae.model import Codes
from bm25v.store.files import FileState
from bm25v.store.local.writer import Writer
from bm25v.vocabulary import Encoding
from bm25v.vocabulary.bag import LEVELS, Bag, FullBag, full_bag_words

# Of the toy vocabulary, with which the gallery is made.
N_WORDS = 192
K_POST = 16
DENSE_DIM = 12
N_PATCHES = 49

_K_FULL = full_bag_words(N_WORDS, N_PATCHES)
_MORE_WORDS = 84  # of a full bag than of a bag, at most
_COMPACTION_SHARE = 0.03  # of the steps
_BULK_SHARE = 0.03  # of the steps: these add or remove many images at once
_CHANGES = (1, 1, 1, 2, 4, 8, 40)  # of one step
_NO_CODES = Codes(np.empty((0, 1), np.int32), np.empty((0, 1), np.float32))


@cache
def make_encoding(number: int) -> Encoding:
    """Return a random encoding of the toy vocabulary, a different one for each number.

    The full bag has the words of the bag and others.
    """
    rng = np.random.default_rng(number)
    n_words = 0 if number % 50 == 49 else int(rng.integers(8, K_POST + 1))
    words = np.sort(rng.choice(N_WORDS, n_words, replace=False)).astype(np.int32)
    bag = Bag(words, rng.integers(1, 500, n_words).astype(np.uint16))
    dense_e = rng.normal(size=DENSE_DIM).astype(np.float16).astype(np.float32)
    return Encoding(bag, dense_e, _NO_CODES, _make_full_bag(rng, bag))


def _make_full_bag(rng: np.random.Generator, bag: Bag) -> FullBag:
    others = np.setdiff1d(np.arange(N_WORDS), bag.words)
    n_more = int(rng.integers(0, _MORE_WORDS + 1)) if len(bag.words) else 0
    words = np.union1d(bag.words, rng.choice(others, n_more, replace=False)).astype(np.int32)
    levels = rng.integers(1, len(LEVELS), len(words)).astype(np.uint8)
    return FullBag(words, levels, rng.integers(0, N_PATCHES, len(words)).astype(np.uint16))


class Row(NamedTuple):
    """A row of the gallery: which image it holds, and the catalogue's entry for it."""

    number: int  # of the image: `make_encoding`
    path: str
    mtime_ns: int
    is_live: bool = True

    @property
    def file(self) -> FileState:
        content = self.number.to_bytes(16, "big")
        return FileState(
            path=self.path, content=content, size=1000 + self.number, mtime_ns=self.mtime_ns
        )


class Change(NamedTuple):
    """One call of a writer; `row` is the row that is copied, moved, restored or removed."""

    action: Literal["put", "copy", "move", "remove"]
    row: int
    new: Row

    def write(self, writer: Writer) -> None:
        if self.action == "put":
            writer.put(self.new.file, make_encoding(self.new.number))
        elif self.action == "copy":
            writer.put_copy(self.new.file, self.row)
        elif self.action == "move":
            writer.move(self.row, self.new.file)
        else:
            writer.remove(self.row)


@dataclass(frozen=True)
class Version:
    """The rows of the gallery after a step, with those of removed images."""

    step: int
    generation: int  # how many compactions had something to free
    rows: tuple[Row, ...]

    @cached_property
    def live_rows(self) -> NDArray[np.int64]:
        return np.array([i for i, row in enumerate(self.rows) if row.is_live], dtype=np.int64)

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """The number of each row's image, also of removed ones."""
        return np.array([row.number for row in self.rows], dtype=np.int64)


@dataclass(frozen=True)
class History:
    """All steps of a run.

    >>> history = History(seed=3, n_images=100)
    >>> version = history.at(60)
    >>> version.step, version == history.at(60)
    (60, True)
    """

    seed: int
    n_images: int  # different ones, and as many paths

    def is_compaction(self, step: int) -> bool:
        return step > 1 and self._rng(step).random() < _COMPACTION_SHARE

    def changes(self, version: Version) -> list[Change]:
        """Return the changes of the step after a version; a compaction has none."""
        step = version.step + 1
        if self.is_compaction(step):
            return []
        draft, rng = _Draft(version), self._rng(-step)
        if step == 1:
            for number in range(0, self.n_images, 2):
                draft.put(_path(number), number)
        elif rng.random() < _BULK_SHARE:
            self._change_many(draft, rng)
        else:
            for _ in range(rng.choice(_CHANGES)):
                self._change_randomly(draft, rng)
        return draft.changes

    def next(self, version: Version) -> Version:
        step, generation, rows = version.step + 1, version.generation, version.rows
        if self.is_compaction(step):
            live = tuple(row for row in rows if row.is_live)
            return Version(step, generation + (len(live) < len(rows)), live)
        changed = list(rows)
        for change in self.changes(version):
            if change.action in ("put", "copy"):
                changed.append(change.new)
            else:
                changed[change.row] = change.new
        return Version(step, generation, tuple(changed))

    def at(self, step: int) -> Version:
        """Return the version after a step, computed from the first step on."""
        version = EMPTY
        while version.step < step:
            version = self.next(version)
        return version

    def _change_many(self, draft: "_Draft", rng: random.Random) -> None:
        """Remove a third of the images, or sometimes all, or add a third."""
        n_removed = rng.choice((len(draft.at_path), *[len(draft.at_path) // 3] * 3, *[0] * 4))
        for path in rng.sample(sorted(draft.at_path), n_removed):
            draft.remove(path)
        if not n_removed:
            for number in rng.sample(range(self.n_images), self.n_images // 3):
                draft.put(_path(number), number)

    def _change_randomly(self, draft: "_Draft", rng: random.Random) -> None:
        """Add, update, copy, move, restore, touch or remove an image."""
        path, other_path = (_path(rng.randrange(self.n_images)) for _ in range(2))
        number = rng.randrange(self.n_images)
        if path not in draft.at_path:
            draft.put(path, number)
        elif rng.random() < 0.5:
            draft.remove(path)
        elif other_path not in draft.at_path:
            draft.move(draft.at_path[path], other_path)
        else:
            draft.put(path, number)

    def _rng(self, step: int) -> random.Random:
        return random.Random(f"{self.seed} {step}")


EMPTY = Version(0, 0, ())


class Versions:
    """The newest versions of a history; older ones are forgotten."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._versions = [EMPTY]

    def between(self, low: int, high: int) -> list[Version]:
        """Return the versions from one step to another, and forget all before the first."""
        while self._versions[-1].step < high:
            self._versions.append(self._history.next(self._versions[-1]))
            if self._versions[0].step < low:
                del self._versions[0]
        self._versions = [version for version in self._versions if version.step >= low]
        return [version for version in self._versions if version.step <= high]


class _Draft:
    """Collects the changes of one step, and makes them in the ways that indexing does."""

    def __init__(self, version: Version) -> None:
        self._step = version.step + 1
        self._rows = list(version.rows)
        self.changes: list[Change] = []
        self.at_path = {row.path: i for i, row in enumerate(self._rows) if row.is_live}
        self._with_number: defaultdict[int, list[int]] = defaultdict(list)
        for i, row in enumerate(self._rows):
            self._with_number[row.number].append(i)

    def put(self, path: str, number: int) -> None:
        row = self.at_path.get(path)
        if row is not None and self._rows[row].number == number:
            self.move(row, path)
            return
        if row is not None:
            self.remove(path)
        same = self._with_number[number]
        live = [row for row in same if self._rows[row].is_live]
        if same and not live:
            self.move(same[0], path)
            return
        new = Row(number, path, self._step)
        action: Literal["put", "copy"] = "copy" if live else "put"
        self.changes.append(Change(action, live[0] if live else -1, new))
        same.append(len(self._rows))
        self.at_path[path] = len(self._rows)
        self._rows.append(new)

    def move(self, row: int, path: str) -> None:
        """Give a row another path or time; restore it if it was removed."""
        if self._rows[row].is_live:
            del self.at_path[self._rows[row].path]
        new = Row(self._rows[row].number, path, self._step)
        self.changes.append(Change("move", row, new))
        self.at_path[path] = row
        self._rows[row] = new

    def remove(self, path: str) -> None:
        row = self.at_path.pop(path)
        self._rows[row] = self._rows[row]._replace(is_live=False)
        self.changes.append(Change("remove", row, self._rows[row]))


class Images:
    """All images of a history as arrays, one row per number."""

    def __init__(self, n: int) -> None:
        self.words_nk = np.zeros((n, K_POST), dtype=np.uint16)
        self.tf_nk = np.zeros((n, K_POST), dtype=np.uint16)
        self.tf_nv = np.zeros((n, N_WORDS), dtype=np.uint16)
        self.dense_ne = np.zeros((n, DENSE_DIM), dtype=np.float16)
        self.full_words_nk = np.zeros((n, _K_FULL), dtype=np.uint16)
        self.full_levels_nk = np.zeros((n, _K_FULL), dtype=np.uint8)
        self.full_patches_nk = np.zeros((n, _K_FULL), dtype=np.uint8)
        self.full_tf_nv = np.zeros((n, N_WORDS), dtype=np.uint16)
        for number in range(n):
            encoding = make_encoding(number)
            words, tf = encoding.bag
            self.words_nk[number, : len(words)] = words
            self.tf_nk[number, : len(tf)] = tf
            self.tf_nv[number, words] = tf
            self.dense_ne[number] = encoding.dense_e
            words, levels, patches = encoding.full_bag
            self.full_words_nk[number, : len(words)] = words
            self.full_levels_nk[number, : len(words)] = levels
            self.full_patches_nk[number, : len(words)] = patches
            self.full_tf_nv[number, words] = encoding.full_bag.bag.tf


def get_full_bag(encoding: Encoding) -> FullBag:
    return encoding.full_bag


def _path(number: int) -> str:
    return f"/photos/{number % 7}/{number}.jpg"
