"""Writes the lexicon of a vocabulary: what make_lexicon.py learned, classes of ImageNet, estimates.

The classes and wider concepts that captions hardly have are taught by MobileNetV2: its
probabilities are fitted by the same features. Other frequent English words get the direction that
their vector of a text encoder leads to, by a map fitted to what is known; the encoder is used here
only.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import onnxruntime
from encode_photos import read_photos
from make_lexicon import (
    Examples,
    Reduction,
    Sources,
    Standard,
    keep_strongest,
    score_words,
    source_options,
    to_sparse,
)
from numpy.typing import NDArray
from pool_bags import read_bags
from tokenizers import Tokenizer

from bm25v.dense import normalise
from bm25v.training.patches import read_arrays
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.lexicon import CAPTIONS, CLASSES, MEANING, Lexicon
from bm25v.vocabulary.phrases import SMALL_WORDS, list_singulars, make_key

TAUGHT_BELOW = 100  # photos whose captions have a phrase: with fewer, a class is known better
LEAST_COSINE = 0.72  # of an estimated word and the nearest known one
ESTIMATED = 8000  # words at most
BOUNDS = (4.0, 5.0)  # of weak and strong matches, until calibrate_texts.py chooses them
_RIDGE_CLASSES = 0.01
_RIDGE_MEANING = 0.3
_SAMPLE = 20_000  # photos

Floats = NDArray[np.float32]


class Entries(NamedTuple):
    """Entries with directions over all features."""

    names: list[tuple[str, ...]]
    directions_tf: Floats


def read_class_names(path: Path) -> list[tuple[list[int], list[str]]]:
    """Return the classes of each concept, and its names."""
    lines = (line for line in path.read_text(encoding="utf-8").splitlines() if line[0] != "#")
    parts = (line.split("\t") for line in lines)
    concepts = [([int(c) for c in classes.split(",")], names) for classes, *names in parts]
    first_words: dict[str, list[int]] = {}
    for number, (_, names) in enumerate(concepts):
        for name in names:
            if name[:1].isupper() and name.count(" ") == 1:
                first_words.setdefault(name.split(" ")[0], []).append(number)
    for word, numbers in first_words.items():  # "Persian" is the Persian cat
        if len(set(numbers)) == 1:
            concepts[numbers[0]][1].append(word)
    return concepts


def teach_classes(
    features_nf: Floats,
    logits_nc: NDArray[np.float16],
    concepts: Sequence[tuple[list[int], list[str]]],
    known: set[str],
) -> Entries:
    """Return the concepts that have a name which is not known otherwise."""
    logits = logits_nc.astype(np.float32)
    shares_nc = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares_nc /= shares_nc.sum(axis=1, keepdims=True)
    names, columns = [], []
    for classes, given in concepts:
        keys = tuple(dict.fromkeys(k for k in map(make_key, given) if k and k not in known))
        if keys:
            names.append(keys)
            columns.append(shares_nc[:, classes].sum(axis=1))
    targets_nt = np.stack(columns, axis=1)
    targets_nt -= targets_nt.mean(axis=0)
    return Entries(names, solve(features_nf, targets_nt, _RIDGE_CLASSES))


def solve(features_nf: Floats, targets_nt: Floats, ridge: float) -> Floats:
    n, width = features_nf.shape
    gram_ff = features_nf.T @ features_nf / n + ridge * np.eye(width, dtype=np.float32)
    return np.asarray(np.linalg.solve(gram_ff, features_nf.T @ targets_nt / n).T, np.float32)


class TextEncoder:
    """bge-small-en-v1.5; its folder has model_quantized.onnx and tokenizer.json."""

    def __init__(self, folder: Path) -> None:
        self._session = onnxruntime.InferenceSession(folder / "model_quantized.onnx")
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_padding()
        self.vocabulary = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")

    def embed(self, texts: Sequence[str]) -> Floats:
        parts = []
        for start in range(0, len(texts), 64):
            tokens = self._tokenizer.encode_batch(list(texts[start : start + 64]))
            inputs: dict[str, Any] = {
                "input_ids": np.array([t.ids for t in tokens], np.int64),
                "attention_mask": np.array([t.attention_mask for t in tokens], np.int64),
                "token_type_ids": np.array([t.type_ids for t in tokens], np.int64),
            }
            wanted = {entry.name for entry in self._session.get_inputs()}
            outputs = self._session.run(None, {k: v for k, v in inputs.items() if k in wanted})
            parts.append(normalise(outputs[0][:, 0].astype(np.float32)))
        return np.concatenate(parts)


def estimate_words(encoder: TextEncoder, known: Entries) -> Entries:
    """Return frequent English words that are not known, with directions by their meaning."""
    names = {name for entry in known.names for name in entry}
    singulars = {word: list(list_singulars(word)) for word in encoder.vocabulary}
    words = [
        word
        for word in encoder.vocabulary  # the most frequent first
        if len(word) > 2 and word.isascii() and word.isalpha() and word not in SMALL_WORDS
        if word not in names and not names.intersection(singulars[word])
    ]
    known_tb = encoder.embed([entry[0] for entry in known.names])
    words_tb = encoder.embed(words)
    nearest_t = np.concatenate(
        [
            (part @ known_tb.T).max(axis=1)
            for part in np.split(words_tb, range(1000, len(words), 1000))
        ]
    )
    chosen = np.flatnonzero(nearest_t >= LEAST_COSINE)[:ESTIMATED]
    mean_b = known_tb.mean(axis=0)
    map_fb = solve(known_tb - mean_b, known.directions_tf, _RIDGE_MEANING / known_tb.shape[1])
    estimated = (words_tb[chosen] - mean_b) @ map_fb.T
    return Entries([(words[i],) for i in chosen.tolist()], estimated)


def quantise(rows_tk: NDArray[np.floating]) -> tuple[NDArray[np.int8], Floats]:
    scales_t = np.abs(rows_tk).max(axis=1).clip(1e-12) / 127
    return np.rint(rows_tk / scales_t[:, None]).astype(np.int8), scales_t.astype(np.float32)


def normalise_entries(
    examples: Examples,
    directions_te: Floats,
    words_tk: NDArray[np.integer],
    weights_tk: Floats,
    entry_weights_t: Floats,
) -> dict[str, NDArray[np.generic]]:
    """Return entries in 8 bits, whose sums are in standard deviations over photos."""
    sample = slice(0, _SAMPLE)
    words_tv = to_sparse(words_tk, weights_tk, examples.words_nv.shape[1])
    means, deviations = [], []
    for start in range(0, len(words_tk), 1000):
        part = slice(start, start + 1000)
        by_vector = examples.dense_ne[sample] @ directions_te[part].T
        by_words = (examples.words_nv[sample] @ words_tv[part].T).toarray()
        deviations.append((by_vector + by_words).std(axis=0))
        means.append(np.stack([by_vector.mean(axis=0), by_words.mean(axis=0)], axis=1))
    deviation_t1 = np.concatenate(deviations).clip(1e-6)[:, None].astype(np.float32)
    directions, direction_scales = quantise(directions_te / deviation_t1)
    word_weights, word_scales = quantise(weights_tk / deviation_t1)
    return {
        "directions": directions,
        "direction_scales": direction_scales,
        "words": words_tk.astype(np.uint16),
        "word_weights": word_weights,
        "word_scales": word_scales,
        "weights": (entry_weights_t * deviation_t1[:, 0]).astype(np.float32),
        "means": (np.concatenate(means) / deviation_t1).astype(np.float32),
    }


def describe_sources() -> list[str]:
    """Return what a lexicon says about where it is from."""
    return [
        "learned from the captions of COCO 2017 (CC BY 4.0); classes taught by MobileNetV2",
        Path(__file__).with_name("imagenet_names.txt").read_text().splitlines()[1][2:],
    ]


@click.command()
@click.argument("learned", type=click.types.Path(exists=True, path_type=Path))
@source_options
@click.option("--more", nargs=2, type=click.types.Path(path_type=Path), help="Photos and bags.")
@click.option("--encoder", required=True, type=click.types.Path(exists=True, path_type=Path))
@click.argument("vocabulary")
def main(
    learned: Path, more: tuple[Path, Path], encoder: Path, vocabulary: str, **paths: Path
) -> None:
    """Write the lexicon into the folder of a vocabulary."""
    target = Vocabulary.load(vocabulary)
    table = read_arrays(
        learned,
        "phrases",
        "directions",
        "words",
        "word_weights",
        "weights",
        "directions_all",
        "mean",
        "deviation",
        "mean_components",
        "basis",
    )
    standard = Standard(
        table["mean"], table["deviation"], Reduction(table["mean_components"], table["basis"])
    )
    examples, read, phrases, statistics = Sources(**paths).read(target.n_words)
    assert phrases == table["phrases"].tolist()
    n_photos_t = np.asarray((examples.labels_nt > 0).sum(axis=0)).ravel()
    others, other_bags = read_photos(more[0]), read_bags(more[1])
    other_words_nv = score_words(other_bags, statistics)
    all_nf = np.concatenate(
        [
            standard.apply(examples.dense_ne, examples.words_nv),
            standard.apply(normalise(others.dense.astype(np.float32)), other_words_nv),
        ]
    )
    concepts = read_class_names(Path(__file__).with_name("imagenet_names.txt"))
    frequent = {p for p, n in zip(phrases, n_photos_t.tolist(), strict=True) if n >= TAUGHT_BELOW}
    classes = teach_classes(
        all_nf, np.concatenate([read.logits, others.logits]), concepts, frequent
    )
    taught = {name for entry in classes.names for name in entry}
    kept = [i for i, phrase in enumerate(phrases) if phrase in frequent or phrase not in taught]
    print(f"{len(kept):,} phrases of captions, {len(classes.names):,} classes")

    def to_standard(directions_tf: Floats) -> Floats:
        deviations_t = (all_nf[:_SAMPLE] @ directions_tf.T).std(axis=0) + 1e-9
        return np.asarray(directions_tf / deviations_t[:, None], np.float32)

    known = Entries(
        [*((phrases[i],) for i in kept), *classes.names],
        np.concatenate(
            [to_standard(table["directions_all"][kept]), to_standard(classes.directions_tf)]
        ),
    )
    estimated = estimate_words(TextEncoder(encoder), known)
    print(f"{len(estimated.names):,} estimated words")
    added_tf = np.concatenate(
        [known.directions_tf[len(kept) :], to_standard(estimated.directions_tf)]
    )
    added_words, added_weights = keep_strongest(
        examples.words_nv, lambda part: standard.words(added_tf[part]), len(added_tf)
    )
    directions_te = np.concatenate([table["directions"][kept], standard.directions(added_tf)])
    words_tk = np.concatenate([table["words"][kept], added_words.astype(np.uint16)])
    weights_tk = np.concatenate([table["word_weights"][kept], added_weights])
    usual = float(np.median(table["weights"]))
    entry_weights_t = np.concatenate([table["weights"][kept], np.full(len(added_tf), usual)])

    lexicon = Lexicon(
        [*known.names, *estimated.names],
        {
            **normalise_entries(examples, directions_te, words_tk, weights_tk, entry_weights_t),
            "learned_from": np.repeat(
                np.array([CAPTIONS, CLASSES, MEANING], np.uint8),
                [len(kept), len(classes.names), len(estimated.names)],
            ),
            "bounds": np.array(BOUNDS, np.float32),
        },
    )
    assert target.folder is not None
    lexicon.save(target.folder, vocabulary=target.fingerprint, about=describe_sources())
    print(f"{target.folder}: {len(lexicon):,} entries")


if __name__ == "__main__":
    main()
