"""A data set becomes a report: everything is measured, from one extraction of features."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v import __version__
from bm25v.bags import Bag, quantise
from bm25v.evaluate import cost, zipf
from bm25v.evaluate.ablations import ablate, trials
from bm25v.evaluate.datasets import Dataset
from bm25v.evaluate.features import Extracted, Progress, extract
from bm25v.evaluate.pages.figures import Report, Speeds
from bm25v.evaluate.pages.page import page
from bm25v.evaluate.run import evaluate
from bm25v.evaluate.settings import Settings
from bm25v.evaluate.words import Bags, bags_of, codes_of
from bm25v.vocabulary import DEFAULT, Vocabulary

PAGE, FIGURES = "report.html", "report.json"
PROJECTIONS = (1_000_000, 100_000_000)

_TRIED = ("k_post", "scoring")


class Searched(NamedTuple):
    """What is searched and what asks: bags and dense vectors."""

    gallery: Bags
    queries: Bags
    dense_ne: NDArray[np.float16]
    dense_qe: NDArray[np.float32]
    n_words: int

    @property
    def df_v(self) -> NDArray[np.int64]:
        """In how many pictures of the gallery each word is."""
        used = self.gallery.tf_nk > 0
        return np.bincount(self.gallery.words_nk[used], minlength=self.n_words)

    def query_bags(self) -> list[Bag]:
        """Return the queries as the product has them."""
        rows = map(self.queries.row, range(len(self.queries.tf_nk)))
        return [Bag(words.astype(np.int32), quantise(tf)) for words, tf in rows]


def make(
    dataset: Dataset,
    vocabulary: Vocabulary,
    *,
    cache: Path | None = None,
    time: Callable[[Searched], Speeds] | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Report:
    """Measure all there is to measure; `time` says how long searches take."""
    settings = Settings()
    result = evaluate(
        dataset,
        vocabulary,
        settings=settings,
        cache=cache,
        per_class=True,
        progress=progress,
    )
    pictures = extract(dataset, vocabulary, cache=cache, progress=progress)
    searched = _searched(pictures, vocabulary, settings, progress)
    df_v, n = searched.df_v, len(searched.dense_ne)
    here = cost.usage(df_v, n, searched.query_bags())
    tried = (trials({name: []}, vocabulary, settings) for name in _TRIED)
    grids = [ablate(dataset, grid, cache=cache, progress=progress) for grid in tried]
    progress("timing", 0, 1)
    word_bytes = 2 if searched.n_words <= 1 << 16 else 4
    return Report(
        result=result,
        ablations=tuple(grids),
        zipf=zipf.analyse(df_v, n),
        usages=(here, *(here.at(size) for size in PROJECTIONS if size > n)),
        growth=cost.growth(df_v, n),
        dim=searched.dense_ne.shape[1],
        bag_bytes=(word_bytes + 2) * (settings.k_post or vocabulary.k_post),
        dense_bytes=searched.dense_ne.itemsize * searched.dense_ne.shape[1],
        speeds=time(searched) if time else None,
        commands=tuple(_commands(dataset, vocabulary)),
        version=__version__,
    )


def write(report: Report, folder: Path) -> None:
    """Write the page and its figures into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PAGE).write_text(page(report), encoding="utf-8")
    (folder / FIGURES).write_text(json.dumps(report.to_json(), indent=2) + "\n", encoding="utf-8")


def _searched(
    pictures: Extracted, vocabulary: Vocabulary, settings: Settings, progress: Progress
) -> Searched:
    k_post = settings.k_post or vocabulary.k_post
    bags = bags_of(codes_of(pictures, vocabulary, progress), settings, k_post=k_post)
    return Searched(
        bags.take(pictures.gallery_n),
        bags.take(pictures.queries_q),
        pictures.dense_ue[pictures.gallery_n].astype(np.float16),
        pictures.dense_ue[pictures.queries_q],
        vocabulary.n_words,
    )


def _commands(dataset: Dataset, vocabulary: Vocabulary) -> list[str]:
    """Return what to type to get the same figures."""
    data = shlex.quote(str(dataset.folder))
    words = (
        "" if vocabulary.source == DEFAULT else f" --vocabulary {shlex.quote(vocabulary.source)}"
    )
    kind = "" if dataset.name == "folder" else f" --dataset {dataset.name}"
    commands = [
        f"bm25v report {dataset.name} --data {data}{words}",
        f"bm25v evaluate {dataset.name} --data {data}{words}",
        *(f"bm25v ablate {name} --data {data}{kind}{words}" for name in _TRIED),
    ]
    if not dataset.leave_one_out:  # no folder holds just its gallery
        return commands
    gallery = shlex.quote(f"{dataset.title}.bm25v")
    projections = "".join(f" --project {size}" for size in PROJECTIONS)
    return [
        *commands,
        f"bm25v index {data} -g {gallery}{words}",
        f"bm25v zipf -g {gallery}",
        f"bm25v cost -g {gallery}{projections}",
        f"bm25v bench search -g {gallery}",
    ]
