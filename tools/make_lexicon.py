"""Learns the lexicon of a vocabulary from captioned photos.

The score of a text and a photo is that of a search: a sum over the words of the text, each with a
direction over the dense vector and some visual words. It is learned in three steps:
1. Ridge regression from both kinds of features to each word, which is best for single words.
2. From there, with one objective for single words and for captions: each finds its photos among
   those of a batch. A weight for each word is learned too.
3. The visual words that count most for each English word are kept. Their weights and the
   directions are learned again with the same objective.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import captions as texts
import click
import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from encode_photos import Photos, read_photos
from numpy.typing import NDArray
from pool_bags import read_bags
from torch import Tensor

from bm25v.dense import normalise
from bm25v.index.bm25 import Bm25Parameters, Statistics, saturation
from bm25v.store.bags import RowArray
from bm25v.training.patches import write_arrays
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.bag import LEVELS, dequantise
from bm25v.vocabulary.lexicon import Lexicon

VALIDATION = 2000  # photos that nothing is learned from
KEPT_WORDS = 64  # visual words of each English word
_COMPONENTS = 400  # that visual words are reduced to in the first two steps
_SAMPLE = 30_000  # photos that the components are found with
_RIDGE = 0.03
_WORDS_SCALE = 0.3  # of visual words beside the dense vector, which few of them replace badly
_BATCH = 1024
_WORDS_AT_ONCE = 512  # of a batch
_WORD_SHARE = 1.0  # of the objective for single words
_DROPPED = 0.1  # share of a caption's words
_FEATURES_DROPPED = 0.2  # share of a photo's, so that the table works on other photos, too
_FULL_COUNT = 3  # captions of a photo that have a word: it certainly shows it

Floats = NDArray[np.float32]


class Examples(NamedTuple):
    """Photos as a search compares them with texts, and what their captions say."""

    dense_ne: Floats  # of length 1
    words_nv: sp.csr_matrix  # what BM25 gives for each visual word
    captions: list[list[list[int]]]  # entries of each caption of each photo
    labels_nt: sp.csr_matrix  # how certainly a photo shows each entry, from 0 to 1

    def __len__(self) -> int:
        return len(self.captions)


def score_words(bags: RowArray, statistics: Statistics) -> sp.csr_matrix:
    """Return what BM25 gives for each visual word of some photos, with weight 1."""
    parameters = Bm25Parameters()
    tf_nk, words_nk = LEVELS[bags["levels"]], bags["words"].astype(np.int32)
    lengths_n1 = dequantise(tf_nk).sum(axis=1, keepdims=True) / statistics.average_length
    norms_n1 = parameters.k1 * (1 - parameters.b + parameters.b * lengths_n1)
    values_nk = saturation(dequantise(tf_nk), norms_n1) * statistics.idf_v[words_nk]
    starts = np.arange(0, values_nk.size + 1, values_nk.shape[1])
    shape = (len(bags), statistics.n_words)
    values = values_nk.astype(np.float32).ravel()
    return sp.csr_matrix((values, words_nk.ravel(), starts), shape=shape)


def to_sparse(words_tk: NDArray[np.integer], weights_tk: Floats, n_words: int) -> sp.csr_matrix:
    """Return the weights of entries for visual words, of which each has some."""
    rows = np.repeat(np.arange(len(words_tk)), words_tk.shape[1])
    columns = words_tk.ravel().astype(np.int64)
    return sp.csr_matrix((weights_tk.ravel(), (rows, columns)), (len(words_tk), n_words))


def count_bags(bags: RowArray, n_words: int) -> Statistics:
    return Statistics.count(bags["words"], LEVELS[bags["levels"]], n_words)


def label_photos(captions: Sequence[Sequence[str]], reader: texts.Reader) -> sp.csr_matrix:
    """Return how certainly photos show entries, by how many of their captions have them."""
    counts: list[tuple[int, int, float]] = []
    for row, photo in enumerate(captions):
        listed = [entry for caption in photo for entry in reader.list_all(caption)]
        entries, n = np.unique(np.array(listed, np.int64), return_counts=True)
        values = np.minimum(n, _FULL_COUNT) / min(_FULL_COUNT, max(len(photo), 1))
        counts += zip([row] * len(entries), entries.tolist(), values.tolist(), strict=True)
    rows, columns, labels = zip(*counts, strict=True)
    shape = (len(captions), len(reader))
    return sp.csr_matrix((np.array(labels, np.float32), (rows, columns)), shape)


class Reduction(NamedTuple):
    """Visual words as components of the same size."""

    mean_c: Floats
    basis_vc: Floats

    @classmethod
    def fit(cls, words_nv: sp.csr_matrix) -> "Reduction":
        """Find the components of most variance, by subspace iteration."""
        sample = words_nv[:_SAMPLE]
        mean_v = np.asarray(sample.mean(axis=0), np.float32).ravel()
        basis_vc = np.random.default_rng(0).standard_normal((sample.shape[1], _COMPONENTS + 50))
        for _ in range(4):
            projected = sample @ basis_vc - mean_v @ basis_vc
            basis_vc = np.linalg.qr(sample.T @ projected - np.outer(mean_v, projected.sum(0)))[0]
        projected = sample @ basis_vc - mean_v @ basis_vc
        _, sizes, rotation = np.linalg.svd(projected, full_matrices=False)
        deviations = sizes[:_COMPONENTS] / np.sqrt(len(projected))
        basis_vc = basis_vc @ rotation[:_COMPONENTS].T * (_WORDS_SCALE / deviations)
        basis_vc = basis_vc.astype(np.float32)
        return cls(mean_v @ basis_vc, basis_vc)

    def apply(self, words_nv: sp.csr_matrix) -> Floats:
        return np.asarray(words_nv @ self.basis_vc - self.mean_c, np.float32)


def fit_ridge(features_nf: Floats, labels_nt: sp.csr_matrix) -> Floats:
    """Return directions whose scores predict each entry, in standard deviations of the scores."""
    n, n_features = features_nf.shape
    gram_ff = features_nf.T @ features_nf / n + _RIDGE * np.eye(n_features, dtype=np.float32)
    directions_tf = np.linalg.solve(gram_ff, np.asarray(labels_nt.T @ features_nf).T / n).T
    return np.asarray(directions_tf / _deviations(features_nf, directions_tf)[:, None], np.float32)


def _deviations(features_nf: Floats, directions_tf: Floats) -> Floats:
    sample = features_nf[:20_000]
    return np.asarray((sample @ directions_tf.T).std(axis=0) + 1e-9, np.float32)


class Objective:
    """Each caption finds its photo in a batch, and each entry its photos."""

    def __init__(self, examples: Examples, seed: int = 0) -> None:
        self._examples, self._rng = examples, np.random.default_rng(seed)
        self.log_scales = torch.nn.Parameter(torch.tensor([-0.6, 0.0]))

    def sample(self, rows: NDArray[np.int64]) -> tuple[list[list[int]], NDArray[np.int64], Tensor]:
        """Return a caption of each photo, some entries, and which photos show each of these."""
        rng, chosen = self._rng, []
        for row in rows.tolist():
            photo = self._examples.captions[row]
            caption = photo[rng.integers(len(photo))] if photo else []
            kept = [entry for entry in caption if rng.random() > _DROPPED]
            chosen.append(kept or caption or [0])
        labels = self._examples.labels_nt[rows].tocsc()
        present = np.flatnonzero(np.diff(labels.indptr))
        entries = rng.choice(present, min(_WORDS_AT_ONCE, len(present)), replace=False)
        shares = torch.from_numpy(labels[:, entries].toarray().T)
        return chosen, entries, shares / shares.sum(1, keepdim=True)

    def loss(self, texts_nn: Tensor, entries_tn: Tensor, shares_tn: Tensor) -> Tensor:
        text_scale, word_scale = self.log_scales.exp()
        own = torch.arange(len(texts_nn))
        scores_nn = text_scale * texts_nn
        by_text = (F.cross_entropy(scores_nn, own) + F.cross_entropy(scores_nn.T, own)) / 2
        log_shares = F.log_softmax(word_scale * entries_tn, dim=1)
        return by_text - _WORD_SHARE * (shares_tn * log_shares).sum(1).mean()


def sum_entries(chosen: Sequence[Sequence[int]], rows_tf: Tensor, weights_t: Tensor) -> Tensor:
    """Return the weighted sums of the rows of each text's entries."""
    flat = torch.tensor([entry for text in chosen for entry in text])
    starts = torch.tensor(np.cumsum([0, *map(len, chosen[:-1])]))
    return F.embedding_bag(flat, rows_tf, starts, per_sample_weights=weights_t[flat], mode="sum")


def optimise(
    n: int,
    groups: list[dict[str, object]],
    loss_of: Callable[[NDArray[np.int64]], Tensor],
    *,
    epochs: int,
    rate: float,
) -> None:
    """Minimise the loss of batches of photos; each group has its share of the learning rate."""
    shares = [float(str(group.pop("share"))) for group in groups]
    optimiser = torch.optim.Adam(groups, lr=rate, fused=True)
    rng, start = np.random.default_rng(0), time.monotonic()
    steps = epochs * (n // _BATCH)
    for step in range(steps):
        if step % (n // _BATCH) == 0:
            order = rng.permutation(n)
        now = rate * min(1.0, (step + 1) / 50) * (1 + np.cos(np.pi * step / steps)) / 2
        for group, share in zip(optimiser.param_groups, shares, strict=True):
            group["lr"] = now * share
        at = step % (n // _BATCH) * _BATCH
        loss = loss_of(order[at : at + _BATCH])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 50 == 0 or step == steps - 1:
            seconds = time.monotonic() - start
            print(f"step {step} of {steps}, loss {loss.item():.3f}, {seconds:.0f} s", flush=True)


def learn_dense(examples: Examples, features_nf: Floats, *, epochs: int) -> tuple[Floats, Floats]:
    """Return directions over all features, and the weights of entries: steps 1 and 2."""
    directions = torch.nn.Parameter(torch.from_numpy(fit_ridge(features_nf, examples.labels_nt)))
    map_ff = torch.nn.Parameter(torch.eye(features_nf.shape[1]))
    log_weights = torch.nn.Parameter(torch.zeros(len(directions)))
    objective, features = Objective(examples), torch.from_numpy(features_nf)

    def loss_of(rows: NDArray[np.int64]) -> Tensor:
        chosen, entries, shares_tn = objective.sample(rows)
        photos_nf = F.dropout(features[torch.from_numpy(rows)], _FEATURES_DROPPED) @ map_ff
        texts_nf = sum_entries(chosen, directions, log_weights.exp())
        entries_tf = directions[torch.from_numpy(entries)]
        return objective.loss(texts_nf @ photos_nf.T, entries_tf @ photos_nf.T, shares_tn)

    groups: list[dict[str, object]] = [
        {"params": [directions], "share": 1.0},
        {"params": [map_ff], "share": 0.3},
        {"params": [log_weights, objective.log_scales], "share": 10.0},
    ]
    optimise(len(examples), groups, loss_of, epochs=epochs, rate=1e-3)
    with torch.no_grad():
        return (directions @ map_ff.T).numpy(), log_weights.exp().numpy()


def keep_strongest(
    words_nv: sp.csr_matrix, weights_tv_of: Callable[[slice], Floats], n_entries: int
) -> tuple[NDArray[np.int64], Floats]:
    """Return the visual words of each entry that move its scores most, and their weights."""
    sample = words_nv[:_SAMPLE]
    squares_v = np.asarray(sample.multiply(sample).mean(axis=0)).ravel()
    deviations_v = np.sqrt(squares_v - np.asarray(sample.mean(axis=0)).ravel() ** 2)
    kept_tk = np.zeros((n_entries, KEPT_WORDS), np.int64)
    weights_tk = np.zeros((n_entries, KEPT_WORDS), np.float32)
    for start in range(0, n_entries, 512):
        part = slice(start, min(start + 512, n_entries))
        weights_tv = weights_tv_of(part)
        effect_tv = np.abs(weights_tv) * deviations_v
        kept_tk[part] = np.argpartition(-effect_tv, KEPT_WORDS, axis=1)[:, :KEPT_WORDS]
        weights_tk[part] = np.take_along_axis(weights_tv, kept_tk[part], axis=1)
    return kept_tk, weights_tk


def learn_sparse(
    examples: Examples,
    start: tuple[Floats, NDArray[np.int64], Floats, Floats],
    *,
    epochs: int,
) -> tuple[Floats, Floats, Floats]:
    """Return directions, weights of the kept visual words, and weights of entries: step 3."""
    directions_te, kept_tk, weights_tk, entry_weights_t = start
    directions = torch.nn.Parameter(torch.from_numpy(directions_te.copy()))
    weights = torch.nn.Parameter(torch.from_numpy(weights_tk.copy()))
    log_weights = torch.nn.Parameter(torch.from_numpy(np.log(entry_weights_t)))
    kept, dense = torch.from_numpy(kept_tk), torch.from_numpy(examples.dense_ne)
    objective, n_words = Objective(examples, seed=1), examples.words_nv.shape[1]

    def spread(entries: Tensor, texts: Tensor, n_texts: int, factors: Tensor) -> Tensor:
        """Return the visual words of texts, dense, from the entries of each."""
        rows = torch.zeros(n_texts * n_words)
        at = (texts[:, None] * n_words + kept[entries]).flatten()
        return rows.index_add(0, at, (factors[:, None] * weights[entries]).flatten()).view(
            n_texts, n_words
        )

    def loss_of(rows: NDArray[np.int64]) -> Tensor:
        chosen, entries, shares_tn = objective.sample(rows)
        photos_ne = dense[torch.from_numpy(rows)]
        photos_nv = torch.from_numpy(examples.words_nv[rows].toarray())
        flat = torch.tensor([entry for text in chosen for entry in text])
        owner = torch.repeat_interleave(
            torch.arange(len(chosen)), torch.tensor([len(text) for text in chosen])
        )
        texts_ne = sum_entries(chosen, directions, log_weights.exp())
        texts_nv = spread(flat, owner, len(chosen), log_weights.exp()[flat])
        number = torch.from_numpy(entries)
        entries_tv = spread(number, torch.arange(len(number)), len(number), torch.ones(len(number)))
        return objective.loss(
            texts_ne @ photos_ne.T + texts_nv @ photos_nv.T,
            directions[number] @ photos_ne.T + entries_tv @ photos_nv.T,
            shares_tn,
        )

    # Per value: a direction's are as large as the inverse deviation of a unit vector's values.
    dense_rate = float(np.abs(directions_te).mean() / 0.06)
    word_rate = float(np.abs(weights_tk).mean() / 0.06)
    groups: list[dict[str, object]] = [
        {"params": [directions], "share": dense_rate},
        {"params": [weights], "share": word_rate},
        {"params": [log_weights, objective.log_scales], "share": 10.0},
    ]
    optimise(len(examples), groups, loss_of, epochs=epochs, rate=3e-4)
    with torch.no_grad():
        return directions.numpy(), weights.numpy(), log_weights.exp().numpy()


class Sources(NamedTuple):
    """Where the photos and their captions are."""

    photos: Path  # by encode_photos.py
    bags: Path  # by pool_bags.py
    captions: Path
    skipped: Path

    def read(self, n_words: int) -> tuple[Examples, Photos, list[str], Statistics]:
        """Return the examples, the same photos, the phrases of their captions, and statistics."""
        captions = texts.read_coco(self.captions, self.skipped)
        phrases = texts.find_phrases(captions)
        photos, bags = read_photos(self.photos), read_bags(self.bags)
        is_used = np.array([name in captions for name in photos.names.tolist()])
        photos, bags = Photos(*(field[is_used] for field in photos)), bags[is_used]
        reader = texts.Reader(phrases)
        written = [captions[name] for name in photos.names.tolist()]
        read = [[reader.read(text) for text in photo] for photo in written]
        statistics = count_bags(bags, n_words)
        labels = label_photos(written, reader)
        words_nv = score_words(bags, statistics)
        dense_ne = normalise(photos.dense.astype(np.float32))
        return Examples(dense_ne, words_nv, read, labels), photos, phrases, statistics


def source_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the fields of `Sources` to the arguments and options of a command."""
    existing = click.types.Path(exists=True, path_type=Path)
    for add in (
        click.option("--skip", "skipped", required=True, type=click.types.Path(path_type=Path)),
        click.option("--captions", required=True, type=existing),
        click.argument("bags", type=existing),
        click.argument("photos", type=existing),
    ):
        command = add(command)
    return command


def open_lexicon(vocabulary: str) -> tuple[Vocabulary, Lexicon, Path]:
    """Return a vocabulary in a folder, its lexicon, and the folder."""
    target = Vocabulary.load(vocabulary)
    if target.lexicon is None or target.folder is None:
        raise click.UsageError(f"{vocabulary} has no lexicon: write it by export_lexicon.py")
    return target, target.lexicon, target.folder


class Standard(NamedTuple):
    """All features of photos, of about the same size: the dense vector and the components."""

    mean_e: Floats
    deviation_e: Floats
    reduction: Reduction

    @classmethod
    def fit(cls, dense_ne: Floats, words_nv: sp.csr_matrix) -> "Standard":
        return cls(dense_ne.mean(axis=0), dense_ne.std(axis=0), Reduction.fit(words_nv))

    def apply(self, dense_ne: Floats, words_nv: sp.csr_matrix) -> Floats:
        dense_ne = (dense_ne - self.mean_e) / self.deviation_e
        return np.hstack([dense_ne, self.reduction.apply(words_nv)]).astype(np.float32)

    def directions(self, directions_tf: Floats) -> Floats:
        """Return what directions over all features are over the dense vector."""
        return directions_tf[:, : len(self.mean_e)] / self.deviation_e

    def words(self, directions_tf: Floats) -> Floats:
        """Return what directions over all features are over visual words."""
        return directions_tf[:, len(self.mean_e) :] @ self.reduction.basis_vc.T


def split_examples(examples: Examples) -> tuple[Examples, Examples]:
    """Return those that are learned from, and those for validation."""

    def take(part: slice) -> Examples:
        dense_ne, words_nv, captions, labels_nt = examples
        return Examples(dense_ne[part], words_nv[part], captions[part], labels_nt[part])

    return take(slice(VALIDATION, None)), take(slice(VALIDATION))


def evaluate(label: str, examples: Examples, scores_nt: Floats, weights_t: Floats) -> None:
    """Print how captions find their photos among 1,000, and frequent words theirs."""
    photos, ranks = examples.captions[:1000], []
    weighted_tn = (scores_nt[:1000] * weights_t).T
    for row, photo in enumerate(photos):
        for caption in filter(None, photo):
            scores_n = weighted_tn[caption].sum(axis=0)
            ranks.append(int((scores_n > scores_n[row]).sum()))
    recalls = [np.mean(np.array(ranks) < k) for k in (1, 5, 10)]
    relevant_nt = (examples.labels_nt >= 2 / _FULL_COUNT - 1e-6).toarray()
    frequent = np.argsort(-relevant_nt.sum(axis=0), kind="stable")[:150]
    precisions, averages = [], []
    for entry in frequent.tolist():
        is_right = relevant_nt[np.argsort(-scores_nt[:, entry], kind="stable"), entry]
        precisions.append(is_right[:10].mean())
        at = np.arange(1, len(is_right) + 1)
        averages.append((np.cumsum(is_right) / at)[is_right].mean())
    recall = " / ".join(f"{value:.3f}" for value in recalls)
    print(
        f"{label}: captions {recall}; words P@10 {np.mean(precisions):.3f}, "
        f"mAP {np.mean(averages):.3f}",
        flush=True,
    )


@click.command()
@source_options
@click.option("--words", "n_words", default=10_240, help="Of the vocabulary.")
@click.option("--epochs", nargs=2, default=(10, 2), help="Of the second and the third step.")
@click.option("-o", "--output", required=True, type=click.types.Path(path_type=Path))
def main(n_words: int, epochs: tuple[int, int], output: Path, **paths: Path) -> None:
    """Learn directions and visual words for what captions say."""
    torch.set_num_threads(2)
    torch.manual_seed(0)
    every, _, phrases, _ = Sources(**paths).read(n_words)
    examples, validation = split_examples(every)
    standard = Standard.fit(examples.dense_ne, examples.words_nv)
    features_nf = standard.apply(examples.dense_ne, examples.words_nv)
    validation_nf = standard.apply(validation.dense_ne, validation.words_nv)
    print(f"{len(examples):,} photos, {len(phrases):,} phrases", flush=True)
    ridge_tf = fit_ridge(features_nf, examples.labels_nt)
    evaluate("ridge", validation, validation_nf @ ridge_tf.T, np.ones(len(phrases), np.float32))
    directions_tf, weights_t = learn_dense(examples, features_nf, epochs=epochs[0])
    evaluate("captions and words", validation, validation_nf @ directions_tf.T, weights_t)
    directions_te = standard.directions(directions_tf)
    kept_tk, kept_weights_tk = keep_strongest(
        examples.words_nv, lambda part: standard.words(directions_tf[part]), len(phrases)
    )
    start = (directions_te, kept_tk, kept_weights_tk, weights_t)

    def score(directions_te: Floats, kept_weights_tk: Floats) -> Floats:
        words_tv = to_sparse(kept_tk, kept_weights_tk, n_words)
        by_words = (validation.words_nv @ words_tv.T).toarray()
        return np.asarray(validation.dense_ne @ directions_te.T + by_words, np.float32)

    evaluate(
        f"{KEPT_WORDS} words kept", validation, score(directions_te, kept_weights_tk), weights_t
    )
    directions_te, kept_weights_tk, weights_t = learn_sparse(examples, start, epochs=epochs[1])
    evaluate("learned again", validation, score(directions_te, kept_weights_tk), weights_t)
    evaluate("dense alone", validation, validation.dense_ne @ directions_te.T, weights_t)
    write_arrays(
        output,
        {
            "phrases": np.array(phrases),
            "directions": directions_te,
            "words": kept_tk.astype(np.uint16),
            "word_weights": kept_weights_tk,
            "weights": weights_t,
            "directions_all": directions_tf,
            "mean": standard.mean_e,
            "deviation": standard.deviation_e,
            "mean_components": standard.reduction.mean_c,
            "basis": standard.reduction.basis_vc,
        },
    )


if __name__ == "__main__":
    main()
