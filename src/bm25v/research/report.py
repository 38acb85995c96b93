"""A data set becomes a report: everything is measured, from one extraction of features."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v import __version__
from bm25v.pages.evaluation_page import page
from bm25v.research import cost, zipf
from bm25v.research.ablations import ablate, trials
from bm25v.research.datasets import Dataset
from bm25v.research.features import Extracted, Progress, extract
from bm25v.research.figures import Report, Speeds
from bm25v.research.run import evaluate
from bm25v.research.settings import Settings, typed
from bm25v.research.systems import NAMES, Contest, resolve
from bm25v.research.systems.sparse import Words
from bm25v.vocabulary import DEFAULT, Vocabulary

PAGE, FIGURES = "report.html", "report.json"
PROJECTIONS = (1_000_000, 100_000_000)

_TRIED = ("k_post", "k_query", "scoring")


class Searched(NamedTuple):
    """What is searched and what asks: words and dense vectors of both."""

    words: Words
    dense_ne: NDArray[np.float16]
    dense_qe: NDArray[np.float32]


def make(
    dataset: Dataset,
    vocabulary: Vocabulary,
    *,
    settings: Settings | None = None,
    cache: Path | None = None,
    time: Callable[[Searched], Speeds] | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Report:
    """Measure all there is to measure; `time` says how long the product's searches take."""
    settings = settings or Settings()
    tried = [trials({name: []}, vocabulary, settings) for name in _TRIED]
    resolve(NAMES, settings)  # refuses before hours go into features
    pictures = extract(dataset, vocabulary, cache=cache, progress=progress)
    result = evaluate(pictures, vocabulary, settings=settings, per_class=True, progress=progress)
    searched = _searched(pictures, vocabulary, settings, progress)
    df_v, (n, dim) = searched.words.df_v, searched.dense_ne.shape
    here = cost.count_usage(df_v, n, searched.words.queries())
    grids = [ablate(pictures, grid, progress=progress) for grid in tried]
    progress("timing", 0, 1)
    word_bytes = 2 if vocabulary.n_words <= 1 << 16 else 4
    return Report(
        result=result,
        ablations=tuple(grids),
        zipf=zipf.fit_zipf(df_v, n),
        usages=(here, *(here.project(size) for size in PROJECTIONS if size > n)),
        growth=cost.measure_growth(df_v, n),
        dim=dim,
        bag_bytes=(word_bytes + 2) * searched.words.gallery.words_nk.shape[1],
        dense_bytes=searched.dense_ne.itemsize * dim,
        speeds=time(searched) if time and settings.suits_the_engine else None,
        commands=tuple(_commands(dataset, vocabulary, settings)),
        version=__version__,
    )


def write(report: Report, folder: Path) -> None:
    """Write the page and its figures into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PAGE).write_text(page(report), encoding="utf-8")
    (folder / FIGURES).write_text(json.dumps(report.to_dict(), indent=2) + "\n", encoding="utf-8")


def _searched(
    pictures: Extracted, vocabulary: Vocabulary, settings: Settings, progress: Progress
) -> Searched:
    return Searched(
        Contest(pictures, vocabulary, settings, depth=1, progress=progress).words,
        pictures.dense_ue[pictures.gallery_n].astype(np.float16),
        pictures.dense_ue[pictures.queries_q],
    )


def _commands(dataset: Dataset, vocabulary: Vocabulary, settings: Settings) -> list[str]:
    """Return what to type to get the same figures."""
    data = f"--data {_quoted(dataset.folder)}"
    split = f" --split {_quoted(dataset.split)}" if dataset.split else ""
    words = "" if vocabulary.source == DEFAULT else f" --vocabulary {_quoted(vocabulary.source)}"
    changes = settings.changes
    if settings.k_post == vocabulary.k_post:
        del changes["k_post"]
    changed = "".join(f" --set {name}={typed(one)}" for name, one in changes.items())
    kind = "" if dataset.name == "folder" else f" --dataset {dataset.name}"
    commands = [
        f"bm25v report {dataset.name} {data}{split}{words}{changed}",
        f"bm25v evaluate {dataset.name} {data}{split}{words}{changed}",
        *(f"bm25v ablate {name} {data}{kind}{split}{words}{changed}" for name in _TRIED),
    ]
    if not dataset.leave_one_out or changes:  # no gallery is just that
        return commands
    gallery = _quoted(f"{dataset.title}.bm25v")
    projections = "".join(f" --project {size}" for size in PROJECTIONS)
    return [
        *commands,
        f"bm25v index {_quoted(dataset.folder)} -g {gallery}{words}",
        f"bm25v zipf -g {gallery}",
        f"bm25v cost -g {gallery}{projections}",
        f"bm25v bench search -g {gallery}",
    ]


def _quoted(name: str | Path) -> str:
    return shlex.quote(str(name))
