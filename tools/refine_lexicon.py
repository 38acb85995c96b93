"""Improves what a lexicon has learned from captions, for single words.

Ridge regression finds single words better than the objective of make_lexicon.py, which finds
captions better. The sum of both is nearly as good as the better one for each. As an entry has few
visual words, its direction and their weights are fitted to the scores that the sum gives. Entries
that only say how a text is put together are removed.
"""

from pathlib import Path

import click
import numpy as np
from captions import MIN_PHOTOS
from export_lexicon import describe_sources, normalise_entries
from make_lexicon import (
    Examples,
    Floats,
    Sources,
    Standard,
    evaluate,
    fit_ridge,
    open_lexicon,
    source_options,
    split_examples,
    to_sparse,
)
from numpy.typing import NDArray

from bm25v.vocabulary.lexicon import Lexicon
from bm25v.vocabulary.phrases import SMALL_WORDS

_RIDGE_SHARE = 0.5  # standard deviations of scores by ridge regression, beside one by the lexicon
_CLOSENESS = 1e-3  # of the fit to the given weights, in variances of a feature
_BLOCK = 512  # entries


def covariances(examples: Examples) -> Floats:
    """Return the covariances of all features: the dense vector, then visual words."""
    n, e = examples.dense_ne.shape
    dense_ne = examples.dense_ne - examples.dense_ne.mean(axis=0)
    words_nv = examples.words_nv
    mean_v = np.asarray(words_nv.mean(axis=0)).ravel()
    covariances_ff = np.empty((e + len(mean_v), e + len(mean_v)), np.float32)
    covariances_ff[:e, :e] = dense_ne.T @ dense_ne / n
    covariances_ff[e:, :e] = words_nv.T @ dense_ne / n
    covariances_ff[:e, e:] = covariances_ff[e:, :e].T
    covariances_ff[e:, e:] = (words_nv.T @ words_nv).toarray() / n
    covariances_ff[e:, e:] -= np.outer(mean_v, mean_v)
    return covariances_ff


def fit_entry(
    weights_f: Floats, projected_f: Floats, chosen: NDArray[np.int64], covariances_ff: Floats
) -> Floats:
    """Return weights of some features with nearly the scores of weights of all features."""
    inner = covariances_ff[np.ix_(chosen, chosen)]
    pull = _CLOSENESS * np.diagonal(inner)
    right = projected_f[chosen] + pull * weights_f[chosen]
    return np.asarray(np.linalg.solve(inner + np.diag(pull), right), np.float32)


@click.command()
@source_options
@click.argument("vocabulary")
def main(vocabulary: str, **paths: Path) -> None:
    """Write the improved lexicon into the folder of a vocabulary; do this once."""
    target, lexicon, folder = open_lexicon(vocabulary)
    every, _, phrases, _ = Sources(**paths).read(target.n_words)
    examples, validation = split_examples(every)
    standard = Standard.fit(examples.dense_ne, examples.words_nv)
    features_nf = standard.apply(examples.dense_ne, examples.words_nv)
    ridge_tf = fit_ridge(features_nf, examples.labels_nt)
    kept = [i for i, names in enumerate(lexicon.names) if names[0] not in SMALL_WORDS]
    names = [lexicon.names[i] for i in kept]
    t = {key: value if key == "bounds" else value[kept] for key, value in lexicon.tensors.items()}
    directions_te = (t["directions"] * t["direction_scales"][:, None]).astype(np.float32)
    weights_tk = (t["word_weights"] * t["word_scales"][:, None]).astype(np.float32)
    words_tk = t["words"].astype(np.int64)
    entries = {entry_names[0]: number for number, entry_names in enumerate(names)}
    n_photos_t = np.asarray((examples.labels_nt > 0).sum(axis=0)).ravel()
    learned = [
        (column, entries[phrase])
        for column, phrase in enumerate(phrases)
        if phrase in entries and n_photos_t[column] >= MIN_PHOTOS
    ]
    columns, rows = np.array(learned).T
    print(f"{len(examples):,} photos, {len(rows):,} of {len(names):,} entries", flush=True)

    def measure(label: str) -> None:
        words_tv = to_sparse(words_tk[rows], weights_tk[rows], target.n_words)
        by_words_nt = (validation.words_nv @ words_tv.T).toarray()
        scores_nt = np.zeros((len(validation), len(phrases)), np.float32)
        weights_t = np.zeros(len(phrases), np.float32)
        scores_nt[:, columns] = validation.dense_ne @ directions_te[rows].T + by_words_nt
        weights_t[columns] = t["weights"][rows]
        evaluate(label, validation, scores_nt, weights_t)

    measure("before")
    covariances_ff, e = covariances(examples), lexicon.dense_dim
    deviations_v = np.sqrt(np.diagonal(covariances_ff)[e:])
    n_kept = words_tk.shape[1]
    for start in range(0, len(rows), _BLOCK):
        of_block = rows[start : start + _BLOCK]
        ridge = ridge_tf[columns[start : start + _BLOCK]]
        words_tv = to_sparse(words_tk[of_block], weights_tk[of_block], target.n_words).toarray()
        full_tf = np.hstack([directions_te[of_block], words_tv])
        full_tf[:, :e] += _RIDGE_SHARE * standard.directions(ridge)
        full_tf[:, e:] += _RIDGE_SHARE * standard.words(ridge)
        projected_tf = full_tf @ covariances_ff
        effect_tv = np.abs(full_tf[:, e:]) * deviations_v
        words_tk[of_block] = np.argpartition(-effect_tv, n_kept, axis=1)[:, :n_kept]
        for row, full_f, projected_f in zip(of_block, full_tf, projected_tf, strict=True):
            chosen = np.concatenate([np.arange(e), e + words_tk[row]])
            fitted = fit_entry(full_f, projected_f, chosen, covariances_ff)
            directions_te[row], weights_tk[row] = fitted[:e], fitted[e:]
    measure("after")
    tensors = normalise_entries(examples, directions_te, words_tk, weights_tk, t["weights"])
    improved = Lexicon(names, {**t, **tensors})
    improved.save(folder, vocabulary=target.fingerprint, about=describe_sources())


if __name__ == "__main__":
    main()
