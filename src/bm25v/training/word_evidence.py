"""What the images of a gallery show where its words are strong: evidence for names of words.

In: an open gallery with full bags, and the table of concepts. Out: names for words, or how well the
names that words have fit. The teacher looks only at images that are among the strongest of a word.
The names of their folders are labels of the whole image. Not this module's job: choosing names
(`vocabulary.naming`), writing them.
"""

import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from bm25v import images
from bm25v.backbones.protocol import Floats
from bm25v.errors import ImageError, WrongUse
from bm25v.gallery.rows import RowArray
from bm25v.gallery.snapshot import Snapshot
from bm25v.gallery.store import GalleryStore
from bm25v.index.bm25 import Bm25Parameters, Statistics
from bm25v.progress import Progress, no_progress, show_downloads
from bm25v.threads import available_cpus
from bm25v.training.teacher import Teacher
from bm25v.vocabulary.bag import LEVELS, dequantise
from bm25v.vocabulary.concepts import ConceptTable
from bm25v.vocabulary.naming import (
    Counts,
    Occurrences,
    Seen,
    Things,
    WordName,
    check_names,
    collect_seen,
    find_occurrences,
    name_words,
)

CLASSES = 3  # of a patch, at most
MIN_PROBABILITY = 0.05  # of the second and third
CHECKED = 8  # images of each word in a check
SHOWN = 5  # words of an image that count most, as hits show them

_SIDE = 448  # pixels: images are decoded no larger than needed
_NO_CLASS = -1
_CHUNK_ROWS = 16_384

Classes = NDArray[np.int16]


@dataclass(frozen=True)
class NameCheck:
    """How well names fit in a gallery.

    A word is in use if an image has it in its index bag, that is among its strongest words.
    `right` is the mean share of the images with most of a word, over named words, that show what
    the word is named after, and `chance` the same for any image. `shown_right` is the share of the
    named words among those that count most in an image.
    """

    words: int  # in use
    named: int
    checked: int
    right: float
    chance: float
    shown_named: float
    shown_right: float


def suggest_from_gallery(
    store: GalleryStore, table: ConceptTable, *, progress: Progress = no_progress
) -> list[WordName]:
    """Return names for words by what the gallery's images show, by word.

    Names that the vocabulary suggests are kept where these images confirm them.
    """
    snapshot, full_bags = _read_full_bags(store)
    n_words = store.vocabulary.n_words
    occurrences = find_occurrences(full_bags, snapshot.rows, n_words=n_words)
    things = Things(table)
    observed = _Observations(store, snapshot, occurrences.rows_o, progress)
    return name_words(*observed.see(occurrences, things), things, store.vocabulary.suggested_names)


def check_gallery(
    store: GalleryStore, table: ConceptTable, *, progress: Progress = no_progress
) -> NameCheck:
    """Return how well the names of words fit the images of a gallery."""
    snapshot, full_bags = _read_full_bags(store)
    n_words = store.vocabulary.n_words
    strongest = find_occurrences(full_bags, snapshot.rows, n_words=n_words, n=CHECKED)
    shown = find_shown(full_bags, snapshot.rows, strongest.df_v)
    things = Things(table)
    rows = np.concatenate([strongest.rows_o, shown.rows_o])
    observed = _Observations(store, snapshot, rows, progress)
    df_v = snapshot.searcher.statistics.df_v
    names = {word: name for word, name in store.word_names.items() if df_v[word]}
    return measure_names(
        observed.see(strongest, things),
        observed.see(shown, things),
        things,
        names,
        n_words=int(np.count_nonzero(df_v)),
    )


def measure_names(
    strongest: tuple[Occurrences, Seen],
    shown: tuple[Occurrences, Seen],
    things: Things,
    names: Mapping[int, str],
    *,
    n_words: int,
) -> NameCheck:
    """Return how well names of some of `n_words` fit, from what is seen in both occurrences."""
    occurrences, seen = strongest
    right = check_names(*strongest, things, names)
    share_t = np.bincount(seen.things, minlength=len(things.names)) / max(1, len(seen.occurrences))
    share_t *= len(seen.occurrences) / max(1, len(occurrences.words_o))
    named_after = things.find_named(names)
    shown_right = check_names(*shown, things, names)
    n_shown_v = np.bincount(shown[0].words_o, minlength=len(occurrences.df_v))
    n_named = sum(int(n_shown_v[word]) for word in shown_right)
    n_right = sum(int(n_shown_v[word]) * share for word, share in shown_right.items())
    return NameCheck(
        words=n_words,
        named=len(names),
        checked=len(right),
        right=_mean(list(right.values())),
        chance=_mean([float(share_t[named_after[word]]) for word in right]),
        shown_named=n_named / max(1, int(n_shown_v.sum())),
        shown_right=n_right / max(1, n_named),
    )


def find_shown(full_bags: RowArray, rows: Counts, df_v: Counts) -> Occurrences:
    """Return the words that count most when each image is compared with itself."""
    idf_v = Statistics(len(rows), df_v, 0).idf(np.arange(len(df_v)))
    found = []
    for start in range(0, len(rows), _CHUNK_ROWS):
        chunk = full_bags[rows[start : start + _CHUNK_ROWS]]
        tf_nk = dequantise(LEVELS[chunk["levels"]])
        counts_nk = idf_v[chunk["words"]] * np.sqrt(tf_nk) * tf_nk / (tf_nk + Bm25Parameters.k1)
        top_nk = np.argsort(-counts_nk, axis=1, kind="stable")[:, :SHOWN]
        is_word_nk = np.take_along_axis(tf_nk, top_nk, axis=1) > 0
        row_nk = np.broadcast_to(rows[start : start + _CHUNK_ROWS, None], top_nk.shape)
        words, patches = (
            np.take_along_axis(chunk[name], top_nk, axis=1)[is_word_nk]
            for name in ("words", "patches")
        )
        found.append((words.astype(np.int64), row_nk[is_word_nk], patches.astype(np.int64)))
    words, row, patches = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return Occurrences(words, row, patches, df_v)


def choose_classes(logits_pc: Floats) -> Classes:
    """Return the most probable classes of each patch; -1 for those that are improbable.

    A patch alone is hard to recognise, so half of what counts is the whole image.
    """
    mixed_pc = 0.5 * (logits_pc + logits_pc.mean(axis=0))
    top_pk = np.argsort(-mixed_pc, axis=1, kind="stable")[:, :CLASSES]
    exp_pc = np.exp(mixed_pc - mixed_pc.max(axis=1, keepdims=True))
    probability_pk = np.take_along_axis(exp_pc / exp_pc.sum(axis=1, keepdims=True), top_pk, axis=1)
    is_kept_pk = (probability_pk >= MIN_PROBABILITY) | (np.arange(top_pk.shape[1]) == 0)
    return np.where(is_kept_pk, top_pk, _NO_CLASS).astype(np.int16)


def gather_seen(
    occurrences: Occurrences,
    at_o: Counts,
    classes_npk: Classes,
    labels: Sequence[int | None],
    things: Things,
) -> Seen:
    """Return what is seen: `at_o` is the position of each occurrence's image, -1 if not read."""
    read_o = np.flatnonzero(at_o >= 0)
    pairs = []
    for k in range(classes_npk.shape[2]):
        classes_o = classes_npk[at_o[read_o], occurrences.patches_o[read_o], k].astype(np.int64)
        pairs.append((read_o[classes_o >= 0], classes_o[classes_o >= 0]))
    label_o = np.array([-1 if label is None else label for label in labels], np.int64)[at_o[read_o]]
    pairs.append((read_o[label_o >= 0], label_o[label_o >= 0]))
    return collect_seen(things, pairs)


def drop_unseen(occurrences: Occurrences, seen: Seen) -> tuple[Occurrences, Seen]:
    """Return the occurrences in images that could be read."""
    kept, numbers = np.unique(seen.occurrences, return_inverse=True)
    words_o, rows_o, patches_o = (array[kept] for array in occurrences[:3])
    kept_occurrences = Occurrences(words_o, rows_o, patches_o, occurrences.df_v)
    return kept_occurrences, Seen(numbers, seen.things)


def _read_full_bags(store: GalleryStore) -> tuple[Snapshot, RowArray]:
    snapshot = store.snapshot()
    if snapshot.full_bags is None or not len(snapshot.rows):
        raise WrongUse(f"{store.path} has no full bags: index images first")
    return snapshot, snapshot.full_bags.rows


class _Observations:
    """What the teacher sees in some images of a gallery; it looks at each once."""

    def __init__(
        self, store: GalleryStore, snapshot: Snapshot, rows: Counts, progress: Progress
    ) -> None:
        self._rows = np.unique(rows)
        self._grid = store.vocabulary.backbone.grid
        all_paths = store.catalog.all_paths(snapshot.state.generation)
        self._paths = [all_paths[row] for row in self._rows.tolist()]
        teacher = Teacher()
        with show_downloads(progress):
            # Once, so that the model is loaded before all threads need it.
            teacher.classify_patches(np.zeros((8, 8, 3), np.uint8))
        self._teacher_grid = teacher.grid
        n = len(self._rows)
        self._classes_npk = np.full((n, math.prod(teacher.grid), CLASSES), _NO_CLASS, np.int16)
        self._is_read_n = np.zeros(n, bool)
        with ThreadPoolExecutor(available_cpus()) as pool:
            for at, classes_pk in enumerate(pool.map(partial(_classify, teacher), self._paths)):
                if classes_pk is not None:
                    self._classes_npk[at], self._is_read_n[at] = classes_pk, True
                progress("looking at images", at + 1, n)

    def see(self, occurrences: Occurrences, things: Things) -> tuple[Occurrences, Seen]:
        """Return the occurrences in images that could be read, and what is seen in each."""
        at_o = np.searchsorted(self._rows, occurrences.rows_o)
        patches_o = _move_patches(occurrences.patches_o, self._grid, self._teacher_grid)
        seen = gather_seen(
            occurrences._replace(patches_o=patches_o),
            np.where(self._is_read_n[at_o], at_o, -1),
            self._classes_npk,
            label_images(self._paths, things),
            things,
        )
        return drop_unseen(occurrences, seen)


def _classify(teacher: Teacher, path: str) -> Classes | None:
    try:
        return choose_classes(teacher.classify_patches(images.decode_image(path, short_side=_SIDE)))
    except ImageError:
        return None


def label_images(paths: Sequence[str], things: Things) -> list[int | None]:
    """Return the thing that each image's folder is named after; None if all are in one folder."""
    folders = [os.path.basename(os.path.dirname(path)) for path in paths]
    if len(set(folders)) < 2:
        return [None] * len(paths)
    known = {folder: things.add_label(folder) for folder in dict.fromkeys(folders)}
    return [known[folder] for folder in folders]


def _move_patches(patches_o: Counts, grid: tuple[int, int], to: tuple[int, int]) -> Counts:
    """Return the patches of another grid that cover the same positions."""
    y, x = np.divmod(patches_o, grid[1])
    return np.asarray(
        (2 * y + 1) * to[0] // (2 * grid[0]) * to[1] + (2 * x + 1) * to[1] // (2 * grid[1])
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
