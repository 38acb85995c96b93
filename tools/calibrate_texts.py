"""Chooses which sums of a text are weak and strong matches, and checks them with other texts.

Everything is about photos that the entries of captions were not learned from. A text is one noun or
two. It is about what a collection shows if some of its photos have these nouns in their captions; a
photo is right if a caption of its has them. For texts about what a collection does not show,
photos of one topic are searched for nouns of the others. Bounds are chosen with one half of the
texts; the figures of the other half are printed too.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import safetensors.numpy
import scipy.sparse as sp
from captions import Reader
from make_lexicon import VALIDATION, Floats, Sources, open_lexicon, source_options
from numpy.typing import NDArray

from bm25v.files import replace_file
from bm25v.vocabulary.labels import list_labels
from bm25v.vocabulary.lexicon import TENSORS, Lexicon
from bm25v.vocabulary.phrases import split_text

_TOPICS = (
    "dog puppy cat kitten horse cow sheep goat elephant giraffe zebra lion bear bird duck goose",
    "pizza sandwich cake donut salad soup banana apple orange broccoli carrot bread cheese hot_dog",
    "car truck bus motorcycle bicycle train airplane boat ship helicopter tractor van taxi",
    "skateboard surfboard snowboard skier surfer tennis baseball frisbee kite soccer snowboarder",
    "toilet bathtub sink bed couch refrigerator oven stove microwave television laptop keyboard",
    "church tower bridge castle lighthouse statue skyscraper fountain mountain waterfall desert",
)
_MIN_PHOTOS = 5  # of a present text
_MAX_TEXTS = 150  # of one noun, and of two
_ABSENT = 60  # texts of one noun, and of two, for each topic
_WEAK_PRESENT = 0.06  # share of the texts about what is there that may be weak
_STRONG_RIGHT = 0.82  # share of the strong hits that are right, at least

Nouns = tuple[int, ...]


class Text(NamedTuple):
    """A text, the sums of all photos of a collection, and which of them are right."""

    nouns: Nouns
    weight: float
    sums_n: Floats
    is_right_n: NDArray[np.bool_]  # none, if the collection does not show it


def score_nouns(
    lexicon: Lexicon, numbers: Sequence[int], dense_ne: Floats, words_nv: sp.csr_matrix
) -> Floats:
    """Return the weighted sums of photos for entries, as a search computes them."""
    columns = []
    for number in numbers:
        entry = lexicon[number]
        by_words = words_nv[:, entry.words] @ entry.word_weights
        columns.append(entry.weight * (dense_ne @ entry.direction_e + by_words - sum(entry.means)))
    return np.stack(columns, axis=1).astype(np.float32)


def list_present(
    scores_nt: Floats, shown_nt: NDArray[np.bool_], weights_t: Floats
) -> Iterator[Text]:
    counts_t = shown_nt.sum(axis=0)
    single = [(t,) for t in np.flatnonzero(counts_t >= _MIN_PHOTOS).tolist()]
    pairs = [
        pair
        for pair in combinations([t for (t,) in single], 2)
        if shown_nt[:, pair].all(axis=1).sum() >= _MIN_PHOTOS
    ]
    rng = np.random.default_rng(0)
    for group in (single, pairs):
        for at in rng.permutation(len(group))[:_MAX_TEXTS].tolist():
            nouns = list(group[at])
            yield Text(
                group[at],
                float(weights_t[nouns].sum()),
                scores_nt[:, nouns].sum(axis=1),
                np.asarray(shown_nt[:, nouns].all(axis=1)),
            )


def list_absent(
    scores_nt: Floats,
    shown_nt: NDArray[np.bool_],
    weights_t: Floats,
    topics: Sequence[Sequence[int]],
) -> Iterator[Text]:
    rng = np.random.default_rng(0)
    for topic in topics:
        others = [t for other in topics if other is not topic for t in other]
        rows = shown_nt[:, list(topic)].any(axis=1) & ~shown_nt[:, others].any(axis=1)
        none = np.zeros(int(rows.sum()), bool)
        for n in (1, 2):
            for _ in range(_ABSENT):
                nouns = rng.choice(others, n, replace=False).tolist()
                sums_n = scores_nt[np.ix_(rows, nouns)].sum(axis=1)
                yield Text(tuple(nouns), float(weights_t[nouns].sum()), sums_n, none)


def choose_bounds(present: Sequence[Text]) -> tuple[float, float]:
    """Return the weak and the strong bound: see `Lexicon.find_bounds`."""
    best = [text.sums_n.max() / np.sqrt(text.weight) for text in present]
    weak = float(np.quantile(best, _WEAK_PRESENT))
    sums = np.concatenate([text.sums_n / text.weight for text in present])
    is_right = np.concatenate([text.is_right_n for text in present])
    order = np.argsort(-sums)
    shares = np.cumsum(is_right[order]) / np.arange(1, len(order) + 1)
    last = int(np.flatnonzero(shares >= _STRONG_RIGHT)[-1])
    return round(weak, 2), round(float(sums[order[last]]), 2)


def describe(present: Sequence[Text], absent: Sequence[Text], lexicon: Lexicon) -> str:
    def is_weak(text: Text) -> bool:
        return bool(text.sums_n.max() < lexicon.find_bounds(text.weight)[0])

    strong = [text.sums_n >= lexicon.find_bounds(text.weight)[1] for text in present]
    rights = np.concatenate(
        [text.is_right_n[rows] for text, rows in zip(present, strong, strict=True)]
    )
    best = [
        text.is_right_n[text.sums_n.argmax()]
        for text, rows in zip(present, strong, strict=True)
        if rows.any()
    ]
    return (
        f"{len(present)} texts about what is there: weak {np.mean([*map(is_weak, present)]):.0%}, "
        f"strong {len(best) / len(present):.0%}, of which {np.mean(best):.0%} of the best hits and "
        f"{rights.mean():.0%} of {len(rights):,} hits are right; {len(absent)} texts about what is "
        f"not there: weak {np.mean([*map(is_weak, absent)]):.0%}"
    )


@click.command()
@source_options
@click.argument("vocabulary")
def main(vocabulary: str, **paths: Path) -> None:
    """Write the bounds into the lexicon of a vocabulary."""
    target, lexicon, folder = open_lexicon(vocabulary)
    examples, _, phrases, _ = Sources(**paths).read(target.n_words)
    reader = Reader(phrases)
    topics = [[name.replace("_", " ") for name in topic.split()] for topic in _TOPICS]
    names = dict.fromkeys([*(name for topic in topics for name in topic), *list_labels()])
    known = [name for name in names if reader.find(*name.split()) is not None]
    columns = [reader.find(*name.split()) for name in known]
    found = [lexicon.find(split_text(name)) for name in known]
    numbers = [number for number in found if number is not None]
    assert len(numbers) == len(known)
    part = slice(VALIDATION)
    shown_nt = (examples.labels_nt[part][:, columns] > 0).toarray()
    scores_nt = score_nouns(lexicon, numbers, examples.dense_ne[part], examples.words_nv[part])
    weights_t = np.array([lexicon[number].weight for number in numbers], np.float32)
    of_topics = [[known.index(name) for name in topic if name in known] for topic in topics]
    present = list(list_present(scores_nt, shown_nt, weights_t))
    absent = list(list_absent(scores_nt, shown_nt, weights_t, of_topics))
    bounds = np.array(choose_bounds(present[::2]), np.float32)
    chosen = Lexicon(lexicon.names, {**lexicon.tensors, "bounds": bounds})
    print(f"weak below {bounds[0]:.2f}, strong from {bounds[1]:.2f}")
    print("chosen with:", describe(present[::2], absent[::2], chosen))
    print("checked with:", describe(present[1::2], absent[1::2], chosen))
    replace_file(folder / TENSORS, safetensors.numpy.save(dict(chosen.tensors)))


if __name__ == "__main__":
    main()
