"""A vocabulary's decoder fitted anew over fresh views of its pictures; every bag stays the same."""

import itertools
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bm25v.backbones import Backbone
from bm25v.errors import VocabularyError
from bm25v.sae.measure import measure
from bm25v.sae.recipe import Recipe
from bm25v.sae.refit import refit
from bm25v.training import curves
from bm25v.training.extraction import Extraction, Streamed, pictures_in, streamed
from bm25v.training.run import Listener, refuse_overwriting
from bm25v.training.store import Halves
from bm25v.vocabulary.vocabulary import FETCHED, Vocabulary

_VIEWS = 4  # at least: the first two are never random


def refit_vocabulary(
    old: Vocabulary,
    folder: Path,
    output: Path,
    *,
    draws: int = 3,
    listener: Listener | None = None,
) -> Vocabulary:
    """Fit a vocabulary's decoder to a folder of pictures and save the result, if it is better.

    What is better is measured on pictures that are held out: those of the training run, where the
    folder has as many pictures as it had.
    """
    listener = listener or Listener()
    refuse_overwriting(output)
    start = time.perf_counter()
    backbone = old.backbone
    paths = pictures_in(folder)
    known = _split_of_training(old.report, paths)
    if known is None:
        listener.say("other pictures than the vocabulary was trained on: choosing some to hold out")
    split = known or _split_of_its_own(paths)
    _, held_out = streamed(split, backbone, listener.on_error)
    before = measure(old.sae, held_out)
    fresh = _fresh(split, backbone, draws, listener)
    new = Vocabulary.build(
        output.stem,
        backbone=backbone,
        sae=refit(old.sae, _read(fresh, listener)),
        k_post=old.k_post,
    )
    after = measure(new.sae, held_out)
    if after.fvu >= before.fvu:
        raise VocabularyError(
            f"the new decoder explains {1 - after.fvu:.2%} of the variance of held-out patches, "
            f"the old one {1 - before.fvu:.2%}: nothing is written; try more --draws or pictures"
        )
    facts = {
        "about": os.path.basename(os.path.abspath(folder)),
        "pictures": len(paths),
        "held_out": "as in training" if known else "chosen anew",
        "draws": draws,
        "patches": sum(one.n_patches(i) for one in fresh for i in range(len(one))),
        "explained_variance_before": 1 - before.fvu,
        "explained_variance": 1 - after.fvu,
        "seconds": round(time.perf_counter() - start, 1),
    }
    training = {**old.report.get("training", {}), **after.report()}
    report = {**old.report, "training": training, "refit": facts}
    new = replace(new, word_names=old.word_names, report=report)
    new.save(output)
    if old.folder is not None:
        _keep_the_rest(old.folder, output)
    return new


def _split_of_training(report: Mapping[str, Any], paths: tuple[Path, ...]) -> Extraction | None:
    """Return how a vocabulary's training split these pictures; None if it saw other ones."""
    try:
        data, recipe = report["data"], report["training"]["recipe"]
        views = int(data["views"].partition(":")[0])
        patches = data.get("patches_a_view")  # older reports do not say; few runs set it
        split = Extraction(paths, views, patches, recipe["held_out"], recipe["seed"])
        return split if data["pictures"] == len(paths) else None
    except KeyError:  # trained elsewhere
        return None


def _split_of_its_own(paths: tuple[Path, ...]) -> Extraction:
    recipe = Recipe()
    return Extraction(paths, _VIEWS, None, recipe.held_out, recipe.seed)


def _fresh(split: Extraction, backbone: Backbone, draws: int, listener: Listener) -> list[Streamed]:
    """Return the pictures that are not held out in new views, a stream a draw."""
    shards = split.shards(backbone)
    learnt = tuple(itertools.chain(*shards[split.n_held_out(len(shards)) :]))
    shown = replace(split, paths=learnt, views=max(split.views, _VIEWS), patches=None)
    numbers = list(range(len(shown.shards(backbone))))
    told = [listener.on_error] + (draws - 1) * [lambda path, error: None]
    return [
        Streamed(replace(shown, draw=draw), backbone, numbers, on_error)
        for draw, on_error in enumerate(told, start=1)
    ]


def _read(fresh: list[Streamed], listener: Listener) -> Iterator[Halves]:
    windows = [(one, window) for one in fresh for window in range(len(one))]
    total = sum(one.n_pictures(window) for one, window in windows)
    done = 0
    for one, window in windows:
        yield one.read(window)
        done += one.n_pictures(window)
        listener.on_extract(done, total)


def _keep_the_rest(folder: Path, output: Path) -> None:
    """Copy what else is in a vocabulary's folder: the words are the same."""
    for name in FETCHED:
        if (folder / name).is_file() and not (output / name).exists():
            shutil.copy(folder / name, output / name)
    curves.keep(folder, output)
