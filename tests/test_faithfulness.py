"""Masks cover the right pixels; curves, areas and ratios follow from the masked scores."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from bm25v.backbones.toy import ToyBackbone
from bm25v.errors import EvaluationError
from bm25v.research import datasets, metrics
from bm25v.research.faithfulness import (
    DENSE,
    EXPLANATION,
    GREY,
    KINDS,
    MASKS,
    MIDDLE,
    ORDERS,
    RANDOM,
    Curves,
    Faithfulness,
    Mask,
    MaskableImage,
    Pair,
    draw_pairs,
    importance_maps,
    measure_faithfulness,
    order_patches,
)
from bm25v.research.features import extract_features
from bm25v.sae.model import SparseAutoEncoder
from bm25v.vocabulary import Vocabulary
from tests import test_cli, test_evaluate
from tests.test_cli import Outcome, Run, failed

cache, data, toy, forwards = (
    test_evaluate.cache,
    test_evaluate.data,
    test_evaluate.toy,
    test_evaluate.forwards,
)
in_shell = test_cli.run

CELL = 8  # pixels of a toy patch


def noise(height: int, width: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def flags(*patches: int) -> NDArray[np.bool_]:
    return np.isin(np.arange(49), patches)


def red_words() -> Vocabulary:
    """Return a vocabulary of one word, which is active where a patch is red."""
    redness_d = np.tile(np.array([1, -1, -1], np.float32), 4)[:, None]
    sae = SparseAutoEncoder(
        redness_d, np.full(1, -3, np.float32), redness_d.T.copy(), np.zeros(12, np.float32), k=1
    )
    return Vocabulary.build("red", backbone=ToyBackbone(), sae=sae)


@pytest.fixture
def one_red_patch(tmp_path: Path) -> datasets.Dataset:
    """Thirty grey images with one red patch each."""
    for number in range(30):
        pixels = np.full((56, 56, 3), GREY, np.uint8)
        row, column = CELL * (number // 7), CELL * (number % 7)
        pixels[row : row + CELL, column : column + CELL] = (255, 0, number)
        path = tmp_path / "red" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return datasets.load("folder", tmp_path / "red")


@pytest.fixture
def red(one_red_patch: datasets.Dataset, cache: Path) -> Faithfulness:
    return measure_faithfulness(one_red_patch, red_words(), pairs=30, cache=cache)


@pytest.fixture
def run(data: Path, cache: Path, in_shell: Run) -> Run:
    """Run `bm25v evaluate faithfulness` on four classes of six images."""

    def call(*words: object, folder: Path = data) -> Outcome:
        fixed = ("--data", folder, "--vocabulary", "toy", "--cache", cache)
        return in_shell("evaluate", "faithfulness", *fixed, *words)

    return call


# Masks


def test_grey_replaces_exactly_the_pixels_of_masked_patches() -> None:
    pixels = noise(56, 56)
    masked = MaskableImage.prepare(pixels, ToyBackbone(), "grey").mask_patches(flags(0, 9))
    expected = pixels.copy()
    expected[0:8, 0:8] = GREY
    expected[8:16, 16:24] = GREY
    assert (masked == expected).all()


def test_blur_replaces_exactly_the_pixels_of_masked_patches() -> None:
    pixels = noise(56, 56)
    masked = MaskableImage.prepare(pixels, ToyBackbone(), "blur").mask_patches(flags(48))
    assert masked[48:, 48:].std() < pixels[48:, 48:].std() / 4
    masked[48:, 48:] = pixels[48:, 48:]
    assert (masked == pixels).all()


@pytest.mark.parametrize("mask", MASKS)
def test_an_image_without_a_mask_is_what_the_backbone_sees(mask: Mask) -> None:
    backbone, pixels = ToyBackbone(), noise(90, 120)
    complete = MaskableImage.prepare(pixels, backbone, mask).mask_patches(flags())
    assert (backbone.prepare_image(complete) == backbone.prepare_image(pixels)).all()


def test_patches_may_have_different_sizes_in_pixels() -> None:
    class Odd(ToyBackbone):
        input_size = 50
        grid = (7, 3)

    image = MaskableImage.prepare(noise(50, 50), Odd(), "grey")
    sizes = np.bincount(image.patch_hw.ravel())
    assert len(sizes) == 21
    assert sizes.sum() == 2500
    assert sizes.min() >= 7 * 16
    assert (image.mask_patches(np.ones(21, bool)) == GREY).all()


# Orders


def test_equally_important_patches_are_in_random_order() -> None:
    importance_p = np.array([0.0, 3.0, 0, 0, 5, 0, 0, 0])
    orders = [order_patches(importance_p, np.random.default_rng(n)).tolist() for n in range(5)]
    assert all(sorted(order) == list(range(8)) for order in orders)
    assert all(order[:2] == [4, 1] for order in orders)
    assert len({tuple(order) for order in orders}) > 1


def test_each_importance_map_is_largest_at_the_planted_patch(
    data: Path, cache: Path, toy: Vocabulary
) -> None:
    pair = pairs_of(data, cache, toy, 1)[0]
    patches_pd = pair.hit_patches_pd.copy()
    patches_pd[30] = 100 * pair.query_mean_d
    words_pk = np.full_like(pair.hit_codes.words_pk, -1)
    words_pk[11, 0] = next(iter(pair.contributions))
    codes = pair.hit_codes._replace(words_pk=words_pk)
    planted = replace(pair, hit_codes=codes, hit_patches_pd=patches_pd)
    largest = {
        order: int(np.argmax(map_p)) for order, map_p in importance_maps(planted, (7, 7)).items()
    }
    assert largest == {EXPLANATION: 11, DENSE: 30, MIDDLE: 24}


# Pairs


def pairs_of(
    folder: Path, cache: Path, vocabulary: Vocabulary, n: int, *, seed: int = 0
) -> list[Pair]:
    extracted = extract_features(datasets.load("folder", folder), vocabulary, cache=cache)
    return draw_pairs(extracted, vocabulary, n, seed=seed)[0]


def test_the_seed_decides_the_pairs(data: Path, cache: Path, toy: Vocabulary) -> None:
    hits = [[pair.hit for pair in pairs_of(data, cache, toy, 8, seed=seed)] for seed in (0, 0, 1)]
    assert hits[0] == hits[1] != hits[2]


def test_a_copy_of_the_query_is_not_a_hit(data: Path, cache: Path, toy: Vocabulary) -> None:
    for path in list(data.rglob("*.png")):
        (path.parent / f"copy-{path.name}").write_bytes(path.read_bytes())
    for pair in pairs_of(data, cache, toy, 40):
        assert toy.encode(pair.hit).dense_e @ pair.query_dense_e < 0.999


def test_too_few_pairs_are_refused(data: Path, cache: Path, toy: Vocabulary) -> None:
    with pytest.raises(EvaluationError, match="has only 24 pairs of a query and a hit, not 25"):
        pairs_of(data, cache, toy, 25)


# Curves


def test_areas_follow_the_trapezoidal_rule() -> None:
    values_qs = np.array([[1.0, 0.0, 0.0], [1.0, 0.6, 0.2]])
    values_qoxs = np.broadcast_to(values_qs[:, None, None], (2, len(ORDERS), 2, 3))
    curves = Curves(np.array([0.0, 0.25, 1.0]), values_qoxs)
    assert curves.aucs(EXPLANATION, "deletion") == pytest.approx([0.125, 0.2 + 0.3])
    assert curves.auc(EXPLANATION, "deletion").mean == pytest.approx(0.3125)


def test_masking_the_only_patch_of_a_word_removes_the_score(red: Faithfulness) -> None:
    assert red.shares == pytest.approx([n / 49 for n in (0, 5, 10, 20, 29, 39, 44, 49)])
    bm25, _, word = red.masks["grey"]
    assert (bm25.values(EXPLANATION, "deletion") == [1, 0, 0, 0, 0, 0, 0, 0]).all()
    assert (bm25.values(EXPLANATION, "insertion") == [0, 1, 1, 1, 1, 1, 1, 1]).all()
    assert bm25.auc(EXPLANATION, "deletion").mean == pytest.approx(2.5 / 49)
    assert bm25.auc(EXPLANATION, "insertion").mean == pytest.approx(1 - 2.5 / 49)
    assert bm25.auc(RANDOM, "deletion").mean == pytest.approx(0.5, abs=0.15)
    assert bm25.ratio(RANDOM, "deletion").low > 5
    assert bm25.ratio(RANDOM, "insertion").low > 1.5
    assert bm25.compare(RANDOM, "deletion").p < 0.001
    assert (word.patches_q == 1).all()
    assert (word.left_q == 0).all()
    assert word.left_random_q.mean() > 0.9


def test_curves_start_and_end_at_the_complete_hit(data: Path, cache: Path, toy: Vocabulary) -> None:
    result = measure_faithfulness(datasets.load("folder", data), toy, pairs=10, cache=cache)
    assert list(result.masks) == list(MASKS)
    for measured in result.masks.values():
        for name in ORDERS:
            deletion, insertion = (measured.bm25.values(name, kind) for kind in KINDS)
            assert deletion[:, 0] == pytest.approx(1)
            assert insertion[:, -1] == pytest.approx(1)
            assert insertion[:, 0] == pytest.approx(deletion[:, -1])
            deletion, insertion = (measured.cosine.values(name, kind) for kind in KINDS)
            assert insertion[:, -1] == pytest.approx(deletion[:, 0])
    grey = result.masks["grey"].bm25
    assert grey.auc(EXPLANATION, "deletion").high < grey.auc(RANDOM, "deletion").low
    assert grey.auc(EXPLANATION, "insertion").low > grey.auc(RANDOM, "insertion").high


def test_each_distinct_masked_image_takes_one_forward_pass(
    data: Path, cache: Path, toy: Vocabulary, forwards: list[int]
) -> None:
    dataset = datasets.load("folder", data)
    extract_features(dataset, toy, cache=cache)
    forwards.clear()
    measure_faithfulness(dataset, toy, pairs=2, masks=("grey",), cache=cache)
    # Both ends; six steps of deletion and insertion in three orders; six in two random orders;
    # three masks of one word.
    most = 2 + 3 * 2 * 6 + 2 * 6 + 3
    assert 2 * most - 12 <= sum(forwards) <= 2 * most


# Ratios


def test_the_interval_of_a_ratio_is_a_bootstrap_over_pairs() -> None:
    # Two pairs are drawn from two: the mean of a is 1, 2 or 3, in a quarter, a half and a quarter.
    assert metrics.ratio_interval(np.array([1.0, 3.0]), np.ones(2)) == (2.0, 1.0, 3.0)
    a = np.random.default_rng(0).random(50) + 0.1
    assert metrics.ratio_interval(3 * a, a) == pytest.approx((3, 3, 3))
    assert metrics.ratio_interval(3 * a, a[::-1]).high > 3.1


# The command


def test_the_command_prints_json(run: Run) -> None:
    outcome = run("--pairs", 6, "--json", "--mask", "blur", "--mask", "grey")
    assert outcome.code == 0
    printed = outcome.json
    assert list(printed)[:5] == ["dataset", "n_images", "pairs", "seed", "shares"]
    assert (printed["dataset"], printed["n_images"], printed["pairs"]) == ("data", 24, 6)
    assert list(printed["masks"]) == ["grey", "blur"]
    grey = printed["masks"]["grey"]
    assert list(grey) == ["orders", "against", "one_word"]
    assert set(grey["orders"]) == {"explanation", "dense", "middle", "random"}
    curve = grey["orders"]["explanation"]["bm25"]["deletion_curve"]
    assert len(curve) == len(printed["shares"]) == 8
    assert curve[0] == pytest.approx(1)
    ours, chance = (grey["orders"][name]["bm25"]["deletion"] for name in ("explanation", "random"))
    ratio = grey["against"]["random"]["deletion_ratio"]
    assert ratio["mean"] == pytest.approx(chance["mean"] / ours["mean"])
    assert ratio["low"] <= ratio["mean"] <= ratio["high"]
    assert grey["one_word"]["left"]["mean"] < grey["one_word"]["left_random"]["mean"]
    assert run("--pairs", 6, "--json").json["masks"]["grey"] == grey


def test_the_command_prints_tables_and_draws(run: Run, tmp_path: Path) -> None:
    outcome = run("--pairs", 6, "-o", "curves.png")
    assert outcome.code == 0
    assert "data: 6 pairs of a query and a hit, 24 images to search" in outcome.out
    assert "mask: grey" in outcome.out
    assert "mask: blur" not in outcome.out
    assert "one word per explanation: after masking its patches" in outcome.out
    assert outcome.out.endswith("curves.png: the curves\n")
    with Image.open(tmp_path / "curves.png") as plot:
        assert plot.width > 900
        assert len(plot.convert("RGB").getcolors(1 << 20) or ()) > 100


def test_wrong_use_gives_one_line(run: Run, in_shell: Run, tmp_path: Path) -> None:
    failed(run("--pairs", 25), 1, "data has only 24 pairs", "not 25", "--pairs")
    failed(run("-o", "curves.gif"), 2, "curves.gif", ".png")
    failed(run("--dataset", "birds"), 2, "no data set 'birds'")
    failed(run("--mask", "black"), 2, "black")
    failed(in_shell("evaluate", "faithfulness"), 2, "--data")
    failed(run(folder=tmp_path / "nowhere"), 1, "nowhere")
    (tmp_path / "empty").mkdir()
    failed(run(folder=tmp_path / "empty"), 1, "empty", "the gallery has 0 images")


def test_the_help_of_evaluate_names_the_command(in_shell: Run) -> None:
    shown = in_shell("evaluate", "--help").out
    for name in ("ablate", "report", "zipf", "cost", "regions", "text", "no-match", "faithfulness"):
        assert f"\n  {name} " in shown
    shown = in_shell("evaluate", "faithfulness", "--help").out
    assert shown.startswith("Usage: bm25v evaluate faithfulness [OPTIONS]")
    assert "--pairs" in shown
