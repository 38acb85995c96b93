"""Are the right pixels hidden, and do curves, areas and ratios say what happened?"""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from bm25v.backbones.toy import ToyBackbone
from bm25v.errors import EvaluationError, WrongUse
from bm25v.research import datasets, statistics
from bm25v.research.faithfulness import Faithfulness, measure
from bm25v.research.faithfulness.hiding import GREY, WAYS, Canvas, Way
from bm25v.research.faithfulness.orders import DENSE, MIDDLE, ORDERS, OURS, RANDOM, maps, order
from bm25v.research.faithfulness.pairs import Pair, draw
from bm25v.research.faithfulness.result import Curves
from bm25v.research.features import extract
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
    """Thirty grey pictures with one red patch each."""
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
    return measure(one_red_patch, red_words(), pairs=30, cache=cache)


@pytest.fixture
def run(data: Path, cache: Path, in_shell: Run) -> Run:
    """Run `bm25v evaluate faithfulness` on four classes of six pictures."""

    def call(*words: object, folder: Path = data) -> Outcome:
        fixed = ("--data", folder, "--vocabulary", "toy", "--cache", cache)
        return in_shell("evaluate", "faithfulness", *fixed, *words)

    return call


# Hiding


def test_exactly_the_pixels_of_hidden_patches_are_grey() -> None:
    picture = noise(56, 56)
    altered = Canvas.of(picture, ToyBackbone(), "grey").without(flags(0, 9))
    expected = picture.copy()
    expected[0:8, 0:8] = GREY
    expected[8:16, 16:24] = GREY
    assert (altered == expected).all()


def test_exactly_the_pixels_of_hidden_patches_are_blurred() -> None:
    picture = noise(56, 56)
    altered = Canvas.of(picture, ToyBackbone(), "blur").without(flags(48))
    assert altered[48:, 48:].std() < picture[48:, 48:].std() / 4
    altered[48:, 48:] = picture[48:, 48:]
    assert (altered == picture).all()


@pytest.mark.parametrize("way", WAYS)
def test_a_picture_with_nothing_hidden_is_what_the_backbone_sees(way: Way) -> None:
    backbone, picture = ToyBackbone(), noise(90, 120)
    whole = Canvas.of(picture, backbone, way).without(flags())
    assert (backbone.prepare(whole) == backbone.prepare(picture)).all()


def test_patches_need_not_be_of_whole_pixels() -> None:
    class Odd(ToyBackbone):
        input_size = 50
        grid = (7, 3)

    canvas = Canvas.of(noise(50, 50), Odd(), "grey")
    sizes = np.bincount(canvas.patch_hw.ravel())
    assert len(sizes) == 21
    assert sizes.sum() == 2500
    assert sizes.min() >= 7 * 16
    assert (canvas.without(np.ones(21, bool)) == GREY).all()


# Orders


def test_equal_patches_come_in_any_order() -> None:
    worth_p = np.array([0.0, 3.0, 0, 0, 5, 0, 0, 0])
    found = [order(worth_p, np.random.default_rng(seed)).tolist() for seed in range(5)]
    assert all(sorted(one) == list(range(8)) for one in found)
    assert all(one[:2] == [4, 1] for one in found)
    assert len({tuple(one) for one in found}) > 1


def test_each_order_begins_where_it_should(data: Path, cache: Path, toy: Vocabulary) -> None:
    pair = drawn(data, cache, toy, 1)[0]
    like_the_query = pair.mean_d * 100
    patches_pd = pair.patches_pd.copy()
    patches_pd[30] = like_the_query
    (part, *_), words_pk = pair.parts, np.full_like(pair.codes.words_pk, -1)
    words_pk[11, 0] = part.word
    planted = Pair(
        pair.query,
        pair.dense_e,
        pair.mean_d,
        pair.hit,
        pair.codes._replace(words_pk=words_pk),
        patches_pd,
        pair.parts,
    )
    found = {name: int(np.argmax(worth_p)) for name, worth_p in maps(planted, (7, 7)).items()}
    assert found == {OURS: 11, DENSE: 30, MIDDLE: 24}


# Pairs


def drawn(
    folder: Path, cache: Path, vocabulary: Vocabulary, n: int, *, seed: int = 0
) -> list[Pair]:
    pictures = extract(datasets.load("folder", folder), vocabulary, cache=cache)
    return draw(pictures, vocabulary, n, seed=seed)[0]


def test_pairs_follow_from_the_seed(data: Path, cache: Path, toy: Vocabulary) -> None:
    hits = [[pair.hit for pair in drawn(data, cache, toy, 8, seed=seed)] for seed in (0, 0, 1)]
    assert hits[0] == hits[1] != hits[2]


def test_a_copy_of_the_query_is_no_hit(data: Path, cache: Path, toy: Vocabulary) -> None:
    for path in list(data.rglob("*.png")):
        (path.parent / f"copy-{path.name}").write_bytes(path.read_bytes())
    for pair in drawn(data, cache, toy, 40):
        assert toy.encode(pair.hit).dense_e @ pair.dense_e < 0.999


def test_too_few_pairs_are_refused(data: Path, cache: Path, toy: Vocabulary) -> None:
    with pytest.raises(EvaluationError, match="makes 24 pairs of a query and a hit, not 25"):
        drawn(data, cache, toy, 25)


# Curves


def test_areas_are_those_of_trapezia() -> None:
    curves = Curves(
        np.array([0.0, 0.25, 1.0]), {OURS: np.array([[1.0, 0.0, 0.0], [1.0, 0.6, 0.2]])}
    )
    assert curves.areas_oq[OURS] == pytest.approx([0.125, 0.2 + 0.3])
    assert curves.area(OURS).mean == pytest.approx(0.3125)


def test_the_only_patch_of_a_word_takes_the_score_with_it(red: Faithfulness) -> None:
    assert red.shares == pytest.approx([n / 49 for n in (0, 5, 10, 20, 29, 39, 44, 49)])
    hidden = red.ways["grey"]
    deletion, insertion = hidden.bm25
    assert (deletion.values_oqs[OURS] == [1, 0, 0, 0, 0, 0, 0, 0]).all()
    assert (insertion.values_oqs[OURS] == [0, 1, 1, 1, 1, 1, 1, 1]).all()
    assert deletion.area(OURS).mean == pytest.approx(2.5 / 49)
    assert insertion.area(OURS).mean == pytest.approx(1 - 2.5 / 49)
    assert deletion.area(RANDOM).mean == pytest.approx(0.5, abs=0.15)
    assert hidden.deletion_ratio(RANDOM).low > 5
    assert hidden.insertion_ratio(RANDOM).low > 1.5
    assert deletion.compared(RANDOM).p < 0.001
    assert (hidden.word.patches_q == 1).all()
    assert (hidden.word.hidden_q == 0).all()
    assert hidden.word.random_q.mean() > 0.9


def test_curves_begin_and_end_with_the_whole_hit(data: Path, cache: Path, toy: Vocabulary) -> None:
    result = measure(datasets.load("folder", data), toy, pairs=10, cache=cache)
    assert list(result.ways) == list(WAYS)
    for hidden in result.ways.values():
        for name in ORDERS:
            whole = hidden.bm25.deletion.values_oqs[name][:, 0]
            assert whole == pytest.approx(1)
            assert hidden.bm25.insertion.values_oqs[name][:, -1] == pytest.approx(1)
            nothing = hidden.bm25.deletion.values_oqs[name][:, -1]
            assert hidden.bm25.insertion.values_oqs[name][:, 0] == pytest.approx(nothing)
            cosines = hidden.cosine.deletion.values_oqs[name][:, 0]
            assert hidden.cosine.insertion.values_oqs[name][:, -1] == pytest.approx(cosines)
    grey = result.ways["grey"].bm25
    assert grey.deletion.area(OURS).high < grey.deletion.area(RANDOM).low
    assert grey.insertion.area(OURS).low > grey.insertion.area(RANDOM).high


def test_every_altered_picture_takes_one_forward_pass(
    data: Path, cache: Path, toy: Vocabulary, forwards: list[int]
) -> None:
    dataset = datasets.load("folder", data)
    extract(dataset, toy, cache=cache)
    forwards.clear()
    measure(dataset, toy, pairs=2, ways=("grey",), cache=cache)
    # Both ends, six steps of hiding and showing in three orders, of two random ones, three of words
    most = 2 + 3 * 2 * 6 + 2 * 6 + 3
    assert 2 * most - 12 <= sum(forwards) <= 2 * most


# Ratios


def test_the_interval_of_a_ratio_comes_from_drawing_pairs() -> None:
    # Two pairs are drawn from two: the mean of a is 1, 2 or 3, in a quarter, a half and a quarter.
    assert statistics.ratio(np.array([1.0, 3.0]), np.ones(2)) == (2.0, 1.0, 3.0)
    a = np.random.default_rng(0).random(50) + 0.1
    assert statistics.ratio(3 * a, a) == pytest.approx((3, 3, 3))
    assert statistics.ratio(3 * a, a[::-1]).high > 3.1


def test_a_ratio_needs_pairs_and_something_to_divide_by() -> None:
    with pytest.raises(WrongUse, match="2 and 3 queries cannot be paired"):
        statistics.ratio(np.ones(2), np.ones(3))
    with pytest.raises(EvaluationError, match="a value of 0 cannot be divided by"):
        statistics.ratio(np.ones(2), np.array([1.0, 0.0]))


# The command


def test_json_has_everything(run: Run) -> None:
    outcome = run("--pairs", 6, "--json", "-", "--hide", "blur", "--hide", "grey")
    assert outcome.code == 0
    found = outcome.json
    assert list(found)[:5] == ["dataset", "pictures", "pairs", "seed", "shares"]
    assert (found["dataset"], found["pictures"], found["pairs"]) == ("data", 24, 6)
    assert list(found["ways"]) == ["grey", "blur"]
    grey = found["ways"]["grey"]
    assert list(grey) == ["orders", "against", "one_word"]
    assert set(grey["orders"]) == {"explanation", "dense", "middle", "random"}
    curve = grey["orders"]["explanation"]["bm25"]["deletion_curve"]
    assert len(curve) == len(found["shares"]) == 8
    assert curve[0] == pytest.approx(1)
    ours, chance = (grey["orders"][name]["bm25"]["deletion"] for name in ("explanation", "random"))
    ratio = grey["against"]["random"]["deletion_ratio"]
    assert ratio["mean"] == pytest.approx(chance["mean"] / ours["mean"])
    assert ratio["low"] <= ratio["mean"] <= ratio["high"]
    assert grey["one_word"]["left"]["mean"] < grey["one_word"]["left_random"]["mean"]
    assert run("--pairs", 6, "--json", "-").json["ways"]["grey"] == grey


def test_a_table_markdown_and_a_plot(run: Run, tmp_path: Path) -> None:
    outcome = run("--pairs", 6, "-o", "curves.png", "--json", "found.json")
    assert outcome.code == 0
    assert "data: 6 pairs of a query and a hit, 24 pictures to search" in outcome.out
    assert "hidden by grey" in outcome.out
    assert "hidden by blur" not in outcome.out
    assert "one word: without the " in outcome.out
    assert outcome.out.endswith("curves.png: the curves\n")
    assert (tmp_path / "found.json").stat().st_size > 1000
    with Image.open(tmp_path / "curves.png") as plot:
        assert plot.width > 900
        assert len(plot.convert("RGB").getcolors(1 << 20) or ()) > 100
    printed = run("--pairs", 6, "--format", "markdown").out
    assert "| explanation is better than | in deletion |" in printed


def test_wrong_use_is_one_line(run: Run, in_shell: Run, tmp_path: Path) -> None:
    failed(run("--pairs", 25), 1, "data makes 24 pairs", "not 25", "fewer pairs")
    failed(run("-o", "curves.gif"), 2, "curves.gif", ".png")
    failed(run("--dataset", "birds"), 2, "no data set 'birds'")
    failed(run("--hide", "black"), 2, "black")
    failed(in_shell("evaluate", "faithfulness"), 2, "--data")
    failed(run(folder=tmp_path / "nowhere"), 1, "nowhere")
    (tmp_path / "empty").mkdir()
    failed(run(folder=tmp_path / "empty"), 1, "empty", "0 pictures to search")


def test_help_leads_from_one_command_to_the_other(in_shell: Run) -> None:
    assert "bm25v evaluate faithfulness" in in_shell("evaluate", "--help").out
    shown = in_shell("evaluate", "faithfulness", "--help").out
    assert shown.startswith("Usage: bm25v evaluate faithfulness [OPTIONS]")
    assert "--pairs" in shown
