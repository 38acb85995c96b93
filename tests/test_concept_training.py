"""How concepts are fitted: directions that a teacher's logits follow are found again."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bm25v.training import concepts as training
from bm25v.training.concepts import FOLDS, ConceptFitter, Views
from bm25v.training.teacher import Teacher
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.concepts import Concept, ConceptTable
from tests import test_cli

run = test_cli.run
TABLE = ConceptTable(
    2,
    (
        Concept("a", ("tabby",), (2,), 0),
        Concept("b", ("beagle",), (), 1),
        Concept("c", ("cat",), (), 0),
    ),
)


def test_the_fit_gives_the_teachers_probabilities() -> None:
    """Of two classes, log-odds are linear in logits: the fit finds them, but for its penalty."""
    rng = np.random.default_rng(0)
    teacher_ce = rng.normal(size=(2, 8))

    def draw(n: int) -> Views:
        dense_ne = rng.normal(size=(n, 8)).astype(np.float32)
        dense_ne /= np.linalg.norm(dense_ne, axis=1, keepdims=True)
        return Views(dense_ne, (dense_ne @ teacher_ce.T).astype(np.float32))

    fitter = ConceptFitter(TABLE, 8)
    for fold in range(FOLDS):
        fitter.add(fold, draw(400), [draw(50)])
    fit, new = fitter.fit(), draw(500)
    log_odds_n = new.logits_nc[:, 0] - new.logits_nc[:, 1]
    expected = 1 / (1 + np.exp(-np.column_stack([log_odds_n, -log_odds_n])))
    found = 1 / (1 + np.exp(-(new.dense_ne @ fit.weights_ce.T + fit.biases_c)))
    np.testing.assert_allclose(found, expected, atol=0.01)
    assert fit.top5 == 1.0


def test_the_teacher_classifies_a_part_by_the_mean_of_its_patches() -> None:
    teacher = Teacher()
    image = np.random.default_rng(0).integers(0, 255, (90, 120, 3), dtype=np.uint8)
    logits_pc = teacher.classify_patches(image)
    assert logits_pc.shape == (49, 1000)
    whole_c = teacher.classify_features(teacher.forward(image).mean(axis=0))
    np.testing.assert_allclose(logits_pc.mean(axis=0), whole_c, atol=1e-4)


def test_the_command_adds_concepts_to_a_vocabulary(
    training_images: Path, tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = Vocabulary.load("toy")
    Vocabulary.build("mine", backbone=toy.backbone, sae=toy.sae).save(tmp_path / "mine")
    few = run("vocabulary", "concepts", "mine", training_images)
    test_cli.failed(few, 2, "40 images are too few for concepts")
    monkeypatch.setattr(training, "MIN_IMAGES", 20)
    monkeypatch.setattr(training, "_CHUNK", 8)
    facts = run("vocabulary", "concepts", "mine", training_images, "--json").json
    assert (facts["pictures"], facts["concepts"]) == (40, 1707)
    concepts = Vocabulary.load(tmp_path / "mine").concepts
    assert concepts is not None and concepts.weights_ce.shape == (1333, 12)
    assert "mobilenet-v2" in concepts.sources["directions"]
    shipped = run("vocabulary", "concepts", "default", training_images)
    test_cli.failed(shipped, 2, "comes with bm25v: give a folder with -o")
