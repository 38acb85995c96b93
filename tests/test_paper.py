"""`--preset paper` is the paper's method and nothing else: its formulas, computed here again."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from bm25v.errors import InvalidOption
from bm25v.research import datasets
from bm25v.research.evaluate import EvaluationResult, evaluate
from bm25v.research.features import extract_features
from bm25v.research.settings import RankingSettings
from bm25v.research.systems import SystemRunner, default_systems, resolve_systems
from bm25v.vocabulary import Vocabulary
from tests import test_cli
from tests.test_cli import Run
from tests.test_evaluate import save_classes

in_shell = test_cli.run

N, K_POST, K1, B, CANDIDATES = 230, 16, 1.5, 0.75, 200
Floats = NDArray[np.float64]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classes(tmp_path_factory.mktemp("paper") / "data", "abcdefghij", N)


@pytest.fixture(scope="module")
def vocabulary(data: Path) -> Vocabulary:
    """The toy words with another k_post, and with stop words: the most frequent ones."""
    toy = Vocabulary.load("toy")
    words = [word for path in sorted(data.rglob("*.png"))[:40] for word in toy.bag(path).words]
    stop_words = np.argsort(-np.bincount(words))[:5].tolist()
    return Vocabulary.build(
        "stopped", backbone=toy.backbone, sae=toy.sae, k_post=8, stop_words=stop_words
    )


class Paper:
    """Sections 3.3 to 3.5 for one folder of images, each of which is a query for the others."""

    def __init__(self, paths: list[Path], vocabulary: Vocabulary) -> None:
        features = [vocabulary.backbone.forward(vocabulary.prepare(path)) for path in paths]
        sae = vocabulary.sae
        self.v_nw = np.zeros((len(paths), sae.n_words))
        for row, image in enumerate(features):
            z_pd = image.patches_pd.astype(np.float16).astype(np.float64)  # as features are kept
            h_pw = np.maximum(z_pd @ sae.w_enc_dv.astype(np.float64) + sae.b_enc_v, 0)
            self._keep_largest(h_pw, sae.k)  # equation 3
            pooled = h_pw.sum(axis=0)[np.newaxis]  # equation 7
            self._keep_largest(pooled, K_POST)  # equation 8
            self.v_nw[row] = np.clip(np.round(pooled * 100), 0, 65535) / 100
        dense_ne = np.stack([image.dense_e for image in features]).astype(np.float64)
        dense_ne /= np.linalg.norm(dense_ne, axis=1, keepdims=True)
        stored_ne = dense_ne.astype(np.float16).astype(np.float64)  # as galleries store them
        self.cosines_qn = dense_ne @ (stored_ne / np.linalg.norm(stored_ne, axis=1)[:, None]).T

    @staticmethod
    def _keep_largest(values_nw: Floats, k: int) -> None:
        for values_w in values_nw:
            values_w[np.argsort(-values_w, kind="stable")[k:]] = 0

    def bm25(self, query: int) -> Floats:
        """Equations 1 and 2."""
        tf_nw = self.v_nw
        df_w = (tf_nw > 0).sum(axis=0)
        idf_w = np.log(1 + (len(tf_nw) - df_w + 0.5) / (df_w + 0.5))
        lengths_n = tf_nw.sum(axis=1, keepdims=True)
        norms_n = K1 * (1 - B + B * lengths_n / lengths_n.mean())
        parts_nw = idf_w * tf_nw * (K1 + 1) / (tf_nw + norms_n)
        return np.asarray(parts_nw[:, tf_nw[query] > 0].sum(axis=1))

    def search(self, query: int) -> NDArray[np.int64]:
        """The first stage finds candidates among the others, the second orders by cosine."""
        bm25_n = self.bm25(query)
        order = np.argsort(-bm25_n.round(9), kind="stable")
        order = order[(order != query) & (bm25_n[order] > 0)][:CANDIDATES]
        return np.asarray(order[np.argsort(-self.cosines_qn[query, order], kind="stable")])


@pytest.fixture(scope="module")
def result(
    data: Path, vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory
) -> EvaluationResult:
    return evaluate(
        datasets.load("folder", data),
        vocabulary,
        settings=RankingSettings.paper(),
        systems=["bm25v", "two-stage"],
        cache=tmp_path_factory.mktemp("cache"),
    )


@pytest.fixture(scope="module")
def bags_nw(
    result: EvaluationResult, vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory
) -> Floats:
    """The bags that were scored."""
    features = extract_features(
        result.dataset, vocabulary, cache=tmp_path_factory.mktemp("features")
    )
    runner = SystemRunner(features, vocabulary, RankingSettings.paper(), depth=10)
    v_nw = np.zeros((N, vocabulary.n_words))
    for v_w, words, tf in zip(v_nw, *runner.words.gallery, strict=True):
        v_w[words[tf > 0]] = tf[tf > 0]
    return v_nw


@pytest.fixture(scope="module")
def paper(result: EvaluationResult, vocabulary: Vocabulary) -> Paper:
    return Paper([item.path for item in result.dataset.gallery], vocabulary)


@pytest.fixture(scope="module")
def scored(paper: Paper, bags_nw: Floats) -> Paper:
    """The paper's search over the bags that were scored, whose last digit may be rounded up."""
    paper.v_nw = bags_nw
    return paper


def test_bags_are_those_of_the_paper(
    result: EvaluationResult, bags_nw: Floats, vocabulary: Vocabulary
) -> None:
    expected = Paper([item.path for item in result.dataset.gallery], vocabulary).v_nw
    assert ((bags_nw > 0) == (expected > 0)).all()
    np.testing.assert_allclose(bags_nw, expected, atol=0.0101)
    assert (bags_nw == expected).mean() > 0.999
    assert (bags_nw > 0).sum(axis=1).max() == K_POST > vocabulary.k_post
    assert (bags_nw[:, vocabulary.stop_words] > 0).any(), "stop words are words of the paper"


def test_by_default_bags_are_those_of_a_gallery(
    result: EvaluationResult, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    features = extract_features(result.dataset, vocabulary, cache=tmp_path)
    runner = SystemRunner(features, vocabulary, RankingSettings(), depth=10)
    for row, item in enumerate(result.dataset.gallery[:20]):
        bag = vocabulary.bag(item.path)
        words, tf = runner.words.gallery.row(row)
        assert len(words) > 1
        assert words.tolist() == bag.words.tolist()
        np.testing.assert_allclose(tf, bag.frequencies, atol=0.0101)  # features are rounded
        assert not {*words.tolist()} & {*vocabulary.stop_words}


def test_the_first_stage_is_bm25(result: EvaluationResult, scored: Paper) -> None:
    for query, ranked in enumerate(result.systems["bm25v"].rankings):
        expected = scored.bm25(query)
        assert len(ranked.rows) > 100
        np.testing.assert_allclose(ranked.scores, expected[ranked.rows], rtol=1e-9)
        best = np.argsort(-expected.round(9), kind="stable")[: len(ranked.rows)]
        assert ranked.rows.tolist() == best.tolist()


def test_the_second_stage_orders_200_candidates_by_cosine(
    result: EvaluationResult, scored: Paper
) -> None:
    assert list(result.systems) == ["bm25v", "two-stage-200"]
    for query, ranked in enumerate(result.systems["two-stage-200"].rankings):
        rows, expected = ranked.rows, scored.search(query)
        assert set(rows.tolist()) == set(expected.tolist())
        np.testing.assert_allclose(ranked.scores, scored.cosines_qn[query, rows], atol=2e-4)
        np.testing.assert_allclose(ranked.scores, scored.cosines_qn[query, expected], atol=2e-4)


def test_there_are_no_full_bags(in_shell: Run, data: Path, tmp_path: Path) -> None:
    settings = RankingSettings.paper()
    assert not {"words", "hybrid"} & {*default_systems(settings)}
    with pytest.raises(InvalidOption, match="hybrid orders by full bags"):
        resolve_systems(["hybrid"], settings)
    options = ("--data", data, "--vocabulary", "toy", "--cache", tmp_path, "--preset", "paper")
    printed = json.loads(in_shell("evaluate", *options, "--json").out)
    assert set(printed["systems"]) == {
        "dense", "bm25v", "two-stage-100", "two-stage-200", "hnsw", "dot", "bovw"
    }  # fmt: skip
    assert printed["settings"]["stop_words"] is False
    assert "ivfpq cannot be trained on 230 images" in " ".join(printed["problems"])
