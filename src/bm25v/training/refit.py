"""A better decoder for a vocabulary: least squares over new views of its images.

The encoder stays, and with it every word, bag and search result; galleries stay valid. In: a
vocabulary and a folder of images. Out: a vocabulary folder, if it explains held-out images better.
"""

import itertools
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bm25v.backbones import Backbone
from bm25v.compiler import jit
from bm25v.display import printable
from bm25v.errors import VocabularyError, WrongUse
from bm25v.explanations import samples
from bm25v.files import make_folder, replace_file
from bm25v.sae.model import Codes, SparseAutoEncoder
from bm25v.schema import (
    SchemaError,
    check_values,
    nullable,
    number,
    optional,
    table,
    text,
    whole,
)
from bm25v.training.checkpoints import copy_log
from bm25v.training.extraction import (
    Extraction,
    StreamedPatches,
    find_training_images,
    stream_patches,
)
from bm25v.training.feature_store import Halves
from bm25v.training.paths import check_output
from bm25v.training.quality import measure_quality
from bm25v.training.recipe import Patches, Recipe
from bm25v.training.run import Listener
from bm25v.vocabulary import Vocabulary

MAX_WORDS = 32_768  # two square matrices of float64 take 17 GB then
PULL = 0.1  # towards the old decoder, as a multiple of the words' mean sum of squares

_BLOCK_ROWS = 4096
_TRAINING_REPORT = {
    "data": table(),
    "data.pictures": whole(1),
    "data.views": text(lambda value: re.match(r"[1-9][0-9]{0,3}:", value) is not None),
    "data.patches_a_view": optional(nullable(whole(1))),  # missing in older reports; few set it
    "training": table(),
    "training.recipe": table(),
    "training.recipe.held_out": number(0, 1),
    "training.recipe.seed": whole(0),
}
_VIEWS = 4  # at least: the first two are never random


def refit_vocabulary(
    old: Vocabulary,
    folder: Path,
    output: Path,
    *,
    draws: int = 3,
    listener: Listener | None = None,
) -> Vocabulary:
    """Fit a vocabulary's decoder to a folder of images and save the result, if it is better.

    Quality is measured on held-out images: those of the training run, if the folder has as many
    images as it had. Random parts of every image are drawn `draws` times.
    """
    listener = listener or Listener()
    check_output(output, folder)
    start = time.perf_counter()
    backbone = old.backbone
    paths = find_training_images(folder)
    training_split = _training_split(old.report, paths)
    if training_split is None:
        listener.on_message("these are not the training images: choosing other ones to hold out")
    split = training_split or _new_split(paths)
    _, held_out = stream_patches(split, backbone, listener.on_error)
    before = measure_quality(old.sae, held_out)
    streams = _new_views(split, backbone, draws, listener)
    new = Vocabulary.build(
        Path(os.path.abspath(output)).stem,
        backbone=backbone,
        sae=refit_decoder(old.sae, _read_streams(streams, listener)),
        k_post=old.k_post,
        k_full=old.k_full,
        stop_words=old.stop_words,
    )
    after = measure_quality(new.sae, held_out)
    if after.fvu >= before.fvu:
        raise VocabularyError(
            f"the new decoder explains {1 - after.fvu:.2%} of the variance of held-out patches, "
            f"the old one {1 - before.fvu:.2%}: nothing was written; give more --draws or images"
        )
    facts = {
        "about": printable(os.path.basename(os.path.abspath(folder))),
        "pictures": len(paths),
        "held_out": "as in training" if training_split else "chosen anew",
        "draws": draws,
        "patches": sum(stream.n_patches(i) for stream in streams for i in range(len(stream))),
        "explained_variance_before": 1 - before.fvu,
        "explained_variance": 1 - after.fvu,
        "seconds": round(time.perf_counter() - start, 1),
    }
    training = {**old.report_section("training"), **after.report()}
    report = {**old.report, "training": training, "refit": facts}
    new = replace(new, word_names=old.word_names, report=report)
    make_folder(output)
    if old.folder is not None:
        _copy_other_files(old.folder, output)
    new.save(output)
    return new


def refit_decoder(sae: SparseAutoEncoder, blocks: Iterable[Patches]) -> SparseAutoEncoder:
    """Return the auto-encoder with the decoder that explains patches best, given their words.

    A small term pulls the decoder towards the old one: a word that is never active keeps its row.
    The equations take V² numbers, however many patches there are.

    >>> eye, zeros = np.eye(2, dtype=np.float32), np.zeros(2, dtype=np.float32)
    >>> poor = SparseAutoEncoder(eye, zeros, 0 * eye, zeros, k=1)
    >>> patches = np.array([[3, 0], [2, 0], [0, 3], [0, 2]], dtype=np.float32)
    >>> better = refit_decoder(poor, [patches])
    >>> measure_quality(poor, [patches]).fvu > 10 * measure_quality(better, [patches]).fvu
    True
    """
    n_words = sae.n_words
    if n_words > MAX_WORDS:
        raise WrongUse(
            f"a decoder of {n_words:,} words is too large to be fitted at once: "
            f"the limit is {MAX_WORDS:,}"
        )
    products_ww = np.zeros((n_words + 1, n_words + 1))  # the last row is for the bias
    targets_wd = np.zeros((n_words + 1, sae.patch_dim))
    for block in blocks:
        for start in range(0, len(block), _BLOCK_ROWS):
            z_nd = np.asarray(block[start : start + _BLOCK_ROWS], dtype=np.float32)
            words_nj, activations_nj = _add_bias_word(sae.encode(z_nd), n_words)
            _add_patches(words_nj, activations_nj, z_nd, products_ww, targets_wd)
    diagonal_w = np.einsum("ww->w", products_ww)
    pull = PULL * diagonal_w.mean()
    diagonal_w += pull
    targets_wd += pull * np.vstack([sae.w_dec_vd, sae.b_dec_d])
    fitted_wd = np.linalg.solve(products_ww, targets_wd).astype(np.float32)
    return replace(sae, w_dec_vd=fitted_wd[:-1], b_dec_d=fitted_wd[-1])


def _add_bias_word(codes: Codes, n_words: int) -> Codes:
    """Add a word after the last one, whose activation is 1 at every patch."""
    return Codes(
        np.pad(codes.words_pk, ((0, 0), (0, 1)), constant_values=n_words),
        np.pad(codes.activations_pk, ((0, 0), (0, 1)), constant_values=1),
    )


@jit
def _add_patches(
    words_nj: NDArray[np.int32],
    activations_nj: NDArray[np.float32],
    z_nd: NDArray[np.float32],
    products_ww: NDArray[np.float64],
    targets_wd: NDArray[np.float64],
) -> None:
    """Add patches to both sides of the normal equations."""
    for n in range(len(words_nj)):
        for j in range(words_nj.shape[1]):
            word, activation = words_nj[n, j], np.float64(activations_nj[n, j])
            for d in range(z_nd.shape[1]):
                targets_wd[word, d] += activation * z_nd[n, d]
            for other in range(words_nj.shape[1]):
                products_ww[word, words_nj[n, other]] += activation * activations_nj[n, other]


def _training_split(report: Mapping[str, Any], paths: tuple[Path, ...]) -> Extraction | None:
    """Return how a vocabulary's training split these images; None if it had other images."""
    try:
        check_values(report, _TRAINING_REPORT)
    except SchemaError:  # trained by another program
        return None
    data, recipe = report["data"], report["training"]["recipe"]
    views = int(data["views"].partition(":")[0])
    patches = data.get("patches_a_view")
    split = Extraction(paths, views, patches, recipe["held_out"], recipe["seed"])
    return split if data["pictures"] == len(paths) else None


def _new_split(paths: tuple[Path, ...]) -> Extraction:
    recipe = Recipe()
    return Extraction(paths, _VIEWS, None, recipe.held_out, recipe.seed)


def _new_views(
    split: Extraction, backbone: Backbone, draws: int, listener: Listener
) -> list[StreamedPatches]:
    """Return the images that are not held out in new views, one stream for each draw."""
    shards = split.shards(backbone)
    paths = tuple(itertools.chain(*shards[split.n_held_out(len(shards)) :]))
    extraction = replace(split, paths=paths, views=max(split.views, _VIEWS), patches=None)
    numbers = list(range(len(extraction.shards(backbone))))
    # An unreadable image is reported once, not in every draw.
    on_errors = [listener.on_error] + (draws - 1) * [lambda path, error: None]
    return [
        StreamedPatches(replace(extraction, draw=draw), backbone, numbers, on_error)
        for draw, on_error in enumerate(on_errors, start=1)
    ]


def _read_streams(streams: list[StreamedPatches], listener: Listener) -> Iterator[Halves]:
    windows = [(stream, window) for stream in streams for window in range(len(stream))]
    total = sum(stream.n_images(window) for stream, window in windows)
    done = 0
    for stream, window in windows:
        yield stream.read(window)
        done += stream.n_images(window)
        listener.progress("extracting patches", done, total)


def _copy_other_files(folder: Path, output: Path) -> None:
    """Copy the samples and the log of a vocabulary: they stay valid, as its words stay the same."""
    if (folder / samples.FILE_NAME).is_file():
        replace_file(output / samples.FILE_NAME, (folder / samples.FILE_NAME).read_bytes())
    copy_log(folder, output)
