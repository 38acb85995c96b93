"""Fits the concepts of a vocabulary to folders of images, and writes them into its folder.

The teacher's log-odds of each concept are fitted by least squares to the dense vectors of whole
images and of parts of them; then scale and bias of each direction are calibrated, so that its
probabilities are the teacher's. No labels are needed, and no torch.
"""

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import wordnet
from numpy.typing import NDArray
from teacher import Teacher, class_ids

from bm25v import images
from bm25v.backbones import Backbone
from bm25v.backbones.protocol import Floats
from bm25v.cli.options import PathType
from bm25v.cli.progress import progress_bar
from bm25v.dense import normalise
from bm25v.display import printable
from bm25v.errors import ImageError, InvalidOption
from bm25v.progress import Progress, no_progress
from bm25v.threads import available_cpus
from bm25v.training.extraction import OnError, find_training_images
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.concepts import Concepts, ConceptTable, write_concepts

FLOOR = -9.0  # log-odds: how surely something is absent does not matter below
RIDGE = 0.03  # relative to the mean square of a dense vector's values
PARTS = 3  # of each image
FOLDS = 5
MIN_IMAGES = 500  # fewer show too few of the concepts

CHUNK = 100  # images
_STEPS = 25  # of Newton's method
_PRIOR = 1.0  # weight of all columns together, relative to the images of an average one
_SIDES = (3, 7)  # patches: the sides of a part, the second excluded
_NEAR_ONE = 1e-6


class Views(NamedTuple):
    """Views of images."""

    dense_ne: Floats
    logits_nc: Floats  # of the teacher


class Fit(NamedTuple):
    """Directions and biases, and how well they do.

    `top5` is the share of images whose first class by the teacher is among the five most probable
    classes, if concepts are fitted to other images.
    """

    weights_ce: NDArray[np.float32]
    biases_c: NDArray[np.float32]
    top5: float


class FittedConcepts(NamedTuple):
    concepts: Concepts
    n_images: int
    top5: float


def find_table(wordnet_folder: Path | None = None) -> ConceptTable:
    """Return the table of the default vocabulary, or one that is made anew from WordNet."""
    if wordnet_folder is not None:
        return wordnet.make_table(wordnet.WordNet.read(wordnet_folder), class_ids())
    concepts = Vocabulary.load().concepts
    if concepts is None:
        raise InvalidOption("the default vocabulary has no concepts: make a table from WordNet")
    return concepts.table


def make_concepts(
    vocabulary: Vocabulary,
    folders: Sequence[Path],
    table: ConceptTable,
    output: Path,
    *,
    progress: Progress = no_progress,
    on_error: OnError,
) -> FittedConcepts:
    """Fit concepts to folders of images, and write them into a vocabulary's folder."""
    paths = [path for folder in folders for path in find_training_images(folder)]
    if len(paths) < MIN_IMAGES:
        raise InvalidOption(
            f"{len(paths)} images are too few for concepts: give {MIN_IMAGES} or more"
        )
    order = np.random.default_rng(0).permutation(len(paths))  # similar images in different folds
    fitter = ConceptFitter(table, vocabulary.backbone.dense_dim)
    observed = observe_images([paths[i] for i in order], vocabulary.backbone, progress, on_error)
    for number, (whole, parts) in enumerate(observed):
        fitter.add(number % FOLDS, whole, parts)
    fit = fitter.fit()
    about = f"{len(paths):,} images of {', '.join(printable(folder.name) for folder in folders)}"
    sources = {
        "names": wordnet.LICENCE,
        "directions": f"fitted to what {Teacher.name} ({Teacher.licence}) sees in {about}",
    }
    concepts = Concepts(table, fit.weights_ce, fit.biases_c, sources)
    write_concepts(output, concepts, backbone_fingerprint=vocabulary.backbone_fingerprint)
    return FittedConcepts(concepts, len(paths), fit.top5)


def observe_images(
    paths: Sequence[Path], backbone: Backbone, progress: Progress, on_error: OnError
) -> Iterator[tuple[Views, list[Views]]]:
    """Yield chunks of images: as a whole, and parts of them."""
    teacher, rng = Teacher(), np.random.default_rng(0)

    def observe(path: Path) -> tuple[Floats, Floats, Floats] | ImageError:
        try:
            image_hwc = images.decode_image(path, short_side=2 * backbone.input_size)
        except ImageError as error:
            return error
        patches_pd, dense_e = backbone.forward(backbone.prepare_image(image_hwc))
        return patches_pd, dense_e, teacher.forward(image_hwc)

    with ThreadPoolExecutor(available_cpus()) as pool:
        for start in range(0, len(paths), CHUNK):
            chunk, read = paths[start : start + CHUNK], []
            for path, views in zip(chunk, pool.map(observe, chunk), strict=True):
                if isinstance(views, ImageError):
                    on_error(path, views)
                else:
                    read.append(views)
                progress("looking at images", start + len(read), len(paths))
            if read:
                patches, dense, features = (np.stack(a) for a in zip(*read, strict=True))
                yield (
                    Views(normalise(dense), teacher.classify_features(features.mean(axis=1))),
                    make_parts(patches, features, backbone, teacher, rng),
                )


def make_parts(
    patches_npd: Floats,
    features_npd: Floats,
    backbone: Backbone,
    teacher: Teacher,
    rng: np.random.Generator,
) -> list[Views]:
    """Return random parts of images, cut out of both grids; none if no vector has a mean."""
    if backbone.pool_dense(patches_npd[0].mean(axis=0)) is None:
        return []
    parts = []
    for _ in range(PARTS):
        boxes = [_draw_box(rng) for _ in patches_npd]
        means = _average(patches_npd, backbone.grid, boxes)
        dense = np.stack([backbone.pool_dense(mean_d) for mean_d in means])  # type: ignore[misc]
        logits = teacher.classify_features(_average(features_npd, teacher.grid, boxes))
        parts.append(Views(normalise(dense), logits))
    return parts


class ConceptFitter:
    """Collects views, then fits the direction and the bias of every column of a table.

    Views are added in folds. Each fold is predicted from the others, which shows how well concepts
    do on images that they were not fitted to; probabilities are calibrated by that.
    """

    def __init__(self, table: ConceptTable, width: int) -> None:
        self._n_classes, n_columns = table.n_classes, table.n_columns
        self._below_cc = np.zeros((table.n_classes, n_columns), np.float32)
        for position, concept in enumerate(table.concepts):
            self._below_cc[list(table.classes_below(position)), concept.column] = 1
        self._grams = np.zeros((FOLDS, width + 1, width + 1))
        self._crosses = np.zeros((FOLDS, width + 1, n_columns))
        self._whole: list[list[Views]] = [[] for _ in range(FOLDS)]

    def add(self, fold: int, whole: Views, parts: Sequence[Views]) -> None:
        self._whole[fold].append(whole)
        for views in (whole, *parts):
            rows = _with_ones(views.dense_ne)
            shares = self._probabilities(views.logits_nc)
            log_odds = np.maximum(np.log(np.maximum(shares, 1e-12)) - np.log1p(-shares), FLOOR)
            self._grams[fold] += rows.T @ rows
            self._crosses[fold] += rows.T @ log_odds

    def fit(self) -> Fit:
        predicted_nc, logits_nc = self._predict_folds()
        shares_nc = self._probabilities(logits_nc)
        mean_c, spread_c = predicted_nc.mean(axis=0), np.maximum(predicted_nc.std(axis=0), 1e-9)
        predicted_nc = (predicted_nc - mean_c) / spread_c
        groups = slice(0, self._n_classes), slice(self._n_classes, None)  # wider concepts
        columns = ((predicted_nc[:, group], shares_nc[:, group]) for group in groups)
        fitted = [calibrate(*pair) for pair in columns if pair[0].size]
        scale_c, bias_c = (np.concatenate(values) for values in zip(*fitted, strict=True))
        first_five = np.argsort(-(predicted_nc * scale_c + bias_c)[:, groups[0]], axis=1)[:, :5]
        is_known_n = (first_five == logits_nc.argmax(axis=1)[:, None]).any(axis=1)
        solution = _solve(self._grams.sum(axis=0), self._crosses.sum(axis=0))
        return Fit(
            (solution[:-1] * (scale_c / spread_c)).T.astype(np.float32),
            (bias_c + (solution[-1] - mean_c) * scale_c / spread_c).astype(np.float32),
            float(is_known_n.mean()),
        )

    def _predict_folds(self) -> tuple[NDArray[np.float64], Floats]:
        """Return the log-odds of whole images by the other folds, and the teacher's logits."""
        gram, cross = self._grams.sum(axis=0), self._crosses.sum(axis=0)
        predicted, logits = [], []
        for fold, whole in enumerate(self._whole):
            solution = _solve(gram - self._grams[fold], cross - self._crosses[fold])
            predicted += [_with_ones(views.dense_ne) @ solution for views in whole]
            logits += [views.logits_nc for views in whole]
        return np.concatenate(predicted), np.concatenate(logits)

    def _probabilities(self, logits_nc: Floats) -> NDArray[np.float64]:
        """Return the teacher's probability of each column: the sum over the classes below it."""
        powers = np.exp(logits_nc - logits_nc.max(axis=1, keepdims=True))
        shares = (powers / powers.sum(axis=1, keepdims=True)) @ self._below_cc
        return np.asarray(np.clip(shares.astype(np.float64), 0, 1 - _NEAR_ONE))


def _solve(gram: NDArray[np.float64], cross: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the least squares with a penalty on weights; the bias, the last row, is free."""
    n, width = gram[-1, -1], len(gram) - 1
    penalty = np.diag([RIDGE * n / width] * width + [1e-6])
    return np.asarray(np.linalg.solve(gram + penalty, cross), np.float64)


def calibrate(
    log_odds_nc: NDArray[np.float64], shares_nc: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return a scale and a bias for each column, by logistic regression on its log-odds.

    All columns together have a scale and a bias, too, and hold each other near these: few images
    show a rare concept.

    >>> rng = np.random.default_rng(0)
    >>> log_odds = rng.normal(size=(4000, 3))
    >>> scale, bias = calibrate(log_odds, 1 / (1 + np.exp(-(2 * log_odds - 1))))
    >>> scale.round(2).tolist(), bias.round(2).tolist()
    ([2.0, 2.0, 2.0], [-1.0, -1.0, -1.0])
    """
    n_columns = log_odds_nc.shape[1]
    common = np.array([[1.0], [0.0]])  # scale and bias
    for _ in range(_STEPS):
        slopes, curvature = _derivatives(common, log_odds_nc, shares_nc)
        mean = curvature.sum(axis=2, keepdims=True) / n_columns
        common = _step(common, slopes.sum(axis=1, keepdims=True) / n_columns, mean)
    values = np.repeat(common, n_columns, axis=1)
    for _ in range(_STEPS):
        slopes, curvature = _derivatives(values, log_odds_nc, shares_nc)
        pull = np.einsum("ijk,jc->ic", mean, common - values)
        values = _step(values, slopes + _PRIOR * pull, curvature + _PRIOR * mean)
    return values[0], values[1]


def _derivatives(
    values: NDArray[np.float64], log_odds_nc: NDArray[np.float64], shares_nc: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the slope of the log-likelihood by scale and bias, and its negative curvature."""
    scale, bias = values
    shown_nc = 1 / (1 + np.exp(-np.clip(scale * log_odds_nc + bias, -30, 30)))
    errors_nc, spread_nc = shares_nc - shown_nc, shown_nc * (1 - shown_nc)
    both = (spread_nc * log_odds_nc).sum(axis=0)
    by_scale = (spread_nc * log_odds_nc**2).sum(axis=0)
    slopes = np.stack([(errors_nc * log_odds_nc).sum(axis=0), errors_nc.sum(axis=0)])
    return slopes, np.array([[by_scale, both], [both, spread_nc.sum(axis=0)]])


def _step(
    values: NDArray[np.float64], slopes: NDArray[np.float64], curvature: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return values after a step of Newton's method, limited so that it converges."""
    (first, both), (_, second) = curvature
    determinant = np.maximum(first * second - both**2, 1e-12)
    step = np.stack(
        [
            second * slopes[0] - both * slopes[1],
            first * slopes[1] - both * slopes[0],
        ]
    )
    scale, bias = values + np.clip(step / determinant, [[-0.5], [-2.0]], [[0.5], [2.0]])
    return np.stack([np.clip(scale, 0.1, 10), bias])


def _draw_box(rng: np.random.Generator) -> NDArray[np.float64]:
    """Return a random box in fractions of the grid: top, left, bottom, right."""
    size = rng.integers(*_SIDES, size=2) / _SIDES[1]
    start = rng.random(2) * (1 - size)
    return np.concatenate([start, start + size])


def _average(
    values_npd: Floats, grid: tuple[int, int], boxes: Sequence[NDArray[np.float64]]
) -> Floats:
    """Return the mean of the patches within the box of each image."""
    rows, columns = grid
    means = []
    for values_pd, (top, left, bottom, right) in zip(values_npd, boxes, strict=True):
        values_yxd = values_pd.reshape(rows, columns, -1)
        y, x = round(top * rows), round(left * columns)
        part = values_yxd[
            y : max(y + 1, round(bottom * rows)), x : max(x + 1, round(right * columns))
        ]
        means.append(part.mean(axis=(0, 1)))
    return np.stack(means)


def _with_ones(dense_ne: Floats) -> NDArray[np.float64]:
    return np.hstack([dense_ne, np.ones((len(dense_ne), 1))]).astype(np.float64)


@click.command()
@click.argument("vocabulary")
@click.argument("images", nargs=-1, required=True, type=PathType(path_type=Path))
@click.option("-o", "--output", required=True, type=PathType(path_type=Path))
@click.option(
    "--wordnet",
    "wordnet_folder",
    type=PathType(path_type=Path),
    help="Make the table of names anew from WordNet 3.0 in this folder, such as "
    "/usr/share/wordnet  [default: the table of the default vocabulary]",
)
def main(
    vocabulary: str, images: tuple[Path, ...], output: Path, wordnet_folder: Path | None
) -> None:
    """Fit concepts of VOCABULARY to folders of IMAGES, and write them into the folder OUTPUT."""
    table = find_table(wordnet_folder)

    def report_error(path: Path, error: Exception) -> None:
        print(f"left out: {path}: {error}", file=sys.stderr)

    with progress_bar() as progress:
        fitted = make_concepts(
            Vocabulary.load(vocabulary),
            images,
            table,
            output,
            progress=progress,
            on_error=report_error,
        )
    print(
        f"{output}: {len(table.concepts):,} concepts from {fitted.n_images:,} images; in "
        f"{fitted.top5:.0%} of the images, fitted to others, the teacher's class is among the "
        "first five"
    )


if __name__ == "__main__":
    main()
