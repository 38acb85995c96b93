"""Names the words of a vocabulary by what a classifier sees in a gallery's images, or checks names.

The teacher looks only at images that are among the strongest of a word. The names of the images'
folders are labels of the whole image.
"""

import math
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
from make_concepts import find_table
from numpy.typing import NDArray
from teacher import Teacher

from bm25v import images
from bm25v.backbones.protocol import Floats
from bm25v.cli.options import PathType
from bm25v.cli.progress import progress_bar
from bm25v.errors import ImageError, InvalidOption
from bm25v.gallery import Gallery
from bm25v.index.bm25 import Bm25Parameters, Statistics
from bm25v.progress import Progress, no_progress, show_downloads
from bm25v.store.bags import RowArray
from bm25v.store.local.snapshot import Snapshot
from bm25v.threads import available_cpus
from bm25v.vocabulary.bag import LEVELS, dequantise
from bm25v.vocabulary.concepts import ConceptTable
from bm25v.vocabulary.names import format_names
from bm25v.vocabulary.naming import (
    MIN_IMAGES,
    Counts,
    Labels,
    Observations,
    Occurrences,
    choose_labels,
    disambiguate_names,
    find_occurrences,
    keep_confirmed,
    share_of_labels,
    with_ancestors,
)

MIN_SHARE = 0.4  # of the occurrences, less one standard error
CONFIRMED = 0.6  # of the occurrences: a name that a word already has
CLASSES = 3  # of a patch, at most
MIN_PROBABILITY = 0.05  # of the second and third
CHECKED = 8  # images of each word in a check
SHOWN = 5  # words of an image that count most, as hits show them

_SIDE = 448  # pixels: images are decoded no larger than needed
_NO_CLASS = -1
_CHUNK_ROWS = 16_384

Classes = NDArray[np.int16]


class WordName(NamedTuple):
    word: int
    name: str
    share: float  # of the occurrences that show it
    images: int  # the occurrences
    elsewhere: float  # the share among the occurrences of all words


@dataclass(frozen=True)
class FolderLabels(Labels):
    """The concepts of a table, then names of folders that are no concepts."""

    _folders: dict[str, int] = field(default_factory=dict)

    def add(self, text: str) -> int | None:
        """Return the label of a folder's name, a new one if need be; None if it names nothing."""
        if text[:9] in self._ids:
            return self._ids[text[:9]]
        label = re.sub(r"[\W_]+", " ", text).strip().lower()
        if not re.fullmatch(r"[^\d]{3,100}", label):
            return None
        for name in (label, label.removesuffix("s")):
            if name in self._concepts:
                return self._concepts[name]
        return self._folders.setdefault(label, len(self.table.concepts) + len(self._folders))

    @property
    def names(self) -> list[str]:
        return [*super().names, *self._folders]

    @property
    def may_name(self) -> NDArray[np.bool_]:
        return np.concatenate([super().may_name, np.ones(len(self._folders), bool)])

    def ancestors(self, label: int) -> tuple[int, ...]:
        return super().ancestors(label) if label < len(self.table.concepts) else (label,)

    @cached_property
    def _ids(self) -> Mapping[str, int]:
        return {concept.id: i for i, concept in enumerate(self.table.concepts)}

    @cached_property
    def _concepts(self) -> Mapping[str, int]:
        concepts = reversed(list(enumerate(self.table.concepts)))
        return {name.lower(): i for i, concept in concepts for name in concept.names}


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
    gallery: Gallery, table: ConceptTable, *, progress: Progress = no_progress
) -> list[WordName]:
    """Return names for words by what the gallery's images show, by word.

    Names that the vocabulary suggests are kept where these images confirm them.
    """
    snapshot, full_bags = _read_full_bags(gallery)
    n_words = gallery.vocabulary.n_words
    occurrences = find_occurrences(full_bags, snapshot.rows, n_words=n_words)
    labels = FolderLabels(table)
    teacher = _ObservedImages(gallery, snapshot, occurrences.rows_o, progress)
    known = gallery.vocabulary.suggested_names
    return name_words(*teacher.observe(occurrences, labels), labels, known)


def name_words(
    occurrences: Occurrences,
    observations: Observations,
    labels: Labels,
    known: Mapping[int, str] | None = None,
) -> list[WordName]:
    """Return names for the words whose occurrences mostly show one label, by word.

    Other words keep a `known` name if most of their occurrences confirm it.
    """
    n_v = occurrences.counts_v
    shares = check_names(occurrences, observations, labels, known or {})
    confirmed = {word: share for word, share in shares.items() if n_v[word] >= MIN_IMAGES}
    chosen = keep_confirmed(labels, known or {}, confirmed, at_least=CONFIRMED)
    chosen |= choose_labels(occurrences, observations, labels, min_share=MIN_SHARE)
    elsewhere_t = share_of_labels(occurrences, observations, labels)
    return [
        WordName(
            word, name, chosen[word].share, int(n_v[word]), float(elsewhere_t[chosen[word].label])
        )
        for word, name in disambiguate_names(chosen, labels).items()
    ]


def check_names(
    occurrences: Occurrences, observations: Observations, labels: Labels, names: Mapping[int, str]
) -> dict[int, float]:
    """Return, for each named word with an occurrence, the share that show what it is named after.

    Words that are named after nothing that can be observed are left out.
    """
    n_v = occurrences.counts_v
    label_v = np.full(len(n_v), -1)
    for word, label in labels.find_named(names).items():
        label_v[word] = label
    words_s = occurrences.words_o[observations.occurrences]
    is_right_s = label_v[words_s] == observations.labels
    right_v = np.bincount(words_s[is_right_s], minlength=len(n_v))
    words = np.flatnonzero((label_v >= 0) & (n_v > 0))
    return dict(zip(words.tolist(), (right_v[words] / n_v[words]).tolist(), strict=True))


def check_gallery(
    gallery: Gallery, table: ConceptTable, *, progress: Progress = no_progress
) -> NameCheck:
    """Return how well the names of words fit the images of a gallery."""
    snapshot, full_bags = _read_full_bags(gallery)
    n_words = gallery.vocabulary.n_words
    strongest = find_occurrences(full_bags, snapshot.rows, n_words=n_words, n=CHECKED)
    shown = find_shown(full_bags, snapshot.rows, strongest.df_v)
    labels = FolderLabels(table)
    rows = np.concatenate([strongest.rows_o, shown.rows_o])
    teacher = _ObservedImages(gallery, snapshot, rows, progress)
    df_v = snapshot.searcher.statistics.df_v
    names = {word: name for word, name in gallery.word_names.items() if df_v[word]}
    return measure_names(
        teacher.observe(strongest, labels),
        teacher.observe(shown, labels),
        labels,
        names,
        n_words=int(np.count_nonzero(df_v)),
    )


def measure_names(
    strongest: tuple[Occurrences, Observations],
    shown: tuple[Occurrences, Observations],
    labels: Labels,
    names: Mapping[int, str],
    *,
    n_words: int,
) -> NameCheck:
    """Return how well names of some of `n_words` fit, from what both occurrences show."""
    right = check_names(*strongest, labels, names)
    share_t = share_of_labels(*strongest, labels)
    named_after = labels.find_named(names)
    shown_right = check_names(*shown, labels, names)
    n_shown_v = shown[0].counts_v
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
    chunks = []
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
        chunks.append((words.astype(np.int64), row_nk[is_word_nk], patches.astype(np.int64)))
    words, row, patches = (np.concatenate(parts) for parts in zip(*chunks, strict=True))
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


def _read_full_bags(gallery: Gallery) -> tuple[Snapshot, RowArray]:
    snapshot = gallery.local.snapshot()
    if not len(snapshot.rows):
        raise InvalidOption(f"{gallery.path} has no images: index some first")
    return snapshot, snapshot.full_bags


class _ObservedImages:
    """What the teacher sees in some images of a gallery; it looks at each once."""

    def __init__(
        self, gallery: Gallery, snapshot: Snapshot, rows: Counts, progress: Progress
    ) -> None:
        self._rows = np.unique(rows)
        self._grid = gallery.vocabulary.backbone.grid
        all_paths = snapshot.catalog.all_paths(snapshot.state.generation)
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

    def observe(
        self, occurrences: Occurrences, labels: FolderLabels
    ) -> tuple[Occurrences, Observations]:
        """Return the occurrences in images that could be read, and the labels of each."""
        at_o = np.searchsorted(self._rows, occurrences.rows_o)
        patches_o = _move_patches(occurrences.patches_o, self._grid, self._teacher_grid)
        read_o = np.flatnonzero(self._is_read_n[at_o])
        classes_ok = self._classes_npk[at_o[read_o], patches_o[read_o]].astype(np.int64)
        folder_n = [-1 if label is None else label for label in self._label_folders(labels)]
        folder_o = np.array(folder_n, np.int64)[at_o[read_o]]
        columns = [*classes_ok.T, folder_o]
        pairs = [(read_o[column >= 0], column[column >= 0]) for column in columns]
        observations = with_ancestors(labels, pairs)
        kept, numbers = np.unique(observations.occurrences, return_inverse=True)
        words_o, rows_o, patches_o = (array[kept] for array in occurrences[:3])
        kept_occurrences = Occurrences(words_o, rows_o, patches_o, occurrences.df_v)
        return kept_occurrences, Observations(numbers, observations.labels)

    def _label_folders(self, labels: FolderLabels) -> list[int | None]:
        """Return the label of each image's folder; None if all are in one folder."""
        folders = [os.path.basename(os.path.dirname(path)) for path in self._paths]
        if len(set(folders)) < 2:
            return [None] * len(folders)
        known = {folder: labels.add(folder) for folder in dict.fromkeys(folders)}
        return [known[folder] for folder in folders]


def _classify(teacher: Teacher, path: str) -> Classes | None:
    try:
        return choose_classes(teacher.classify_patches(images.decode_image(path, short_side=_SIDE)))
    except ImageError:
        return None


def _move_patches(patches_o: Counts, grid: tuple[int, int], to: tuple[int, int]) -> Counts:
    """Return the patches of another grid that cover the same positions."""
    y, x = np.divmod(patches_o, grid[1])
    return np.asarray(
        (2 * y + 1) * to[0] // (2 * grid[0]) * to[1] + (2 * x + 1) * to[1] // (2 * grid[1])
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


@click.group()
def main() -> None:
    """Suggest names for the words of a gallery's vocabulary, or check those that they have."""


@main.command()
@click.argument("gallery")
@click.option("-o", "--output", required=True, type=PathType(dir_okay=False, path_type=Path))
def suggest(gallery: str, output: Path) -> None:
    """Write names for words as a table, such as a vocabulary's suggested.tsv."""
    with Gallery.open(gallery) as opened, progress_bar() as progress:
        suggested = suggest_from_gallery(opened, find_table(), progress=progress)
        fingerprint = opened.vocabulary.fingerprint
    names = {name.word: name.name for name in suggested}
    notes = {
        name.word: f"{name.share:.0%} of {name.images} images, {name.elsewhere:.1%} elsewhere"
        for name in suggested
    }
    output.write_text(format_names(names, vocabulary=fingerprint, notes=notes), encoding="utf-8")
    print(f"{output}: {len(names):,} names")


@main.command()
@click.argument("gallery")
def check(gallery: str) -> None:
    """Measure how well the names of words fit the images of a gallery."""
    with Gallery.open(gallery) as opened, progress_bar() as progress:
        result = check_gallery(opened, find_table(), progress=progress)
    print(f"{result.named:,} of {result.words:,} words named, {result.checked:,} of them checked")
    print(
        f"right in {result.right:.1%} of the {CHECKED} images with most of a word, "
        f"by chance {result.chance:.1%}"
    )
    print(
        f"of {SHOWN} words of an image {result.shown_named:.1%} have a name, "
        f"right in {result.shown_right:.1%} of those"
    )


if __name__ == "__main__":
    main()
