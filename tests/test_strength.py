"""Strong, fair and weak hits: what they are compared with, and when that is done again."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bm25v.errors import EvaluationError, InvalidOption
from bm25v.gallery import Gallery
from bm25v.research.tasks import measure_no_match, split_classes
from bm25v.search import Mode
from bm25v.search import calibrate as calibration
from bm25v.search.calibrate import MIN_IMAGES, calibrate, needs_calibration
from bm25v.store.records import Calibration
from tests import test_cli
from tests.test_cli import Run

run = test_cli.run


def stripes(seed: int, hue: int) -> Image.Image:
    """Return stripes in shades of one hue; those of one hue are similar."""
    rng = np.random.default_rng(seed)
    values = np.repeat(rng.integers(150, 256, (8, 1, 1)), 8, axis=1)
    hues = np.full_like(values, hue)
    pixels = np.concatenate([hues, np.full_like(values, 220), values], axis=2).astype(np.uint8)
    image = Image.fromarray(pixels, "HSV").convert("RGB")
    return image.resize((64, 64), Image.Resampling.NEAREST)


def save_classes(folder: Path, *, hues: tuple[int, ...], n: int) -> Path:
    """Write class folders: stripes of each hue."""
    for hue in hues:
        (folder / str(hue)).mkdir(parents=True)
        for seed in range(n):
            stripes(1000 * hue + seed, hue).save(folder / str(hue) / f"{seed}.png")
    return folder


@pytest.fixture
def reds(tmp_path: Path) -> Path:
    return save_classes(tmp_path / "reds", hues=(0, 20), n=40)


@pytest.fixture
def gallery(tmp_path: Path, reds: Path) -> Gallery:
    gallery = Gallery.create(tmp_path / "g", vocabulary="toy")
    gallery.add(reds)
    return gallery


def known_calibration(gallery: Gallery) -> Calibration | None:
    return gallery.local.snapshot().state.calibration


def test_images_of_a_kind_are_not_weak_and_others_are(gallery: Gallery, tmp_path: Path) -> None:
    for seed in range(5):
        stripes(seed, 0).save(tmp_path / "red.png")
        assert gallery.search(tmp_path / "red.png")[0].strength in ("strong", "fair")
    stripes(0, 130).save(tmp_path / "blue.png")
    results = gallery.search(tmp_path / "blue.png")
    assert results[0].strength == "weak"
    assert results.is_weak
    assert not gallery.search(tmp_path / "red.png").is_weak
    assert not gallery.search(tmp_path / "blue.png", offset=3).is_weak, "not about the best hit"


def test_the_share_below_and_above_is_that_of_the_quantiles(gallery: Gallery, reds: Path) -> None:
    """Each image is a query without itself, as in the calibration."""
    hits = [gallery.search(path)[0].strength for path in sorted(reds.glob("*/*.png"))]
    assert 1 <= hits.count("weak") <= 5
    assert 0.65 < hits.count("strong") / len(hits) < 0.85


def test_strength_is_known_for_one_whole_image_by_full_bags(gallery: Gallery, reds: Path) -> None:
    query, other = reds / "0" / "1.png", reds / "0" / "2.png"
    assert gallery.search(query, mode="words")[0].strength is not None
    assert gallery.search(query, folder=reds / "20")[0].strength is not None
    modes: tuple[Mode, ...] = ("two-stage", "sparse", "dense")
    for mode in modes:
        assert gallery.search(query, mode=mode)[0].strength is None
    word = gallery.search(query).query[0].word
    assert gallery.search(query, boost={word: 2.0})[0].strength is None
    assert gallery.search(query, like=other)[0].strength is None
    assert gallery.search(query, region=(0, 0, 0.5, 1))[0].strength is None
    assert gallery.search([query, other])[0].strength is None
    assert gallery.explain(query, other).match.strength is not None


def test_it_is_renewed_after_many_changes_not_after_each(gallery: Gallery, reds: Path) -> None:
    assert known_calibration(gallery) is None  # adding images computes nothing else
    gallery.refresh()
    first = known_calibration(gallery)
    assert first is not None
    assert first.n_images == 80
    gallery.remove([reds / "0" / f"{n}.png" for n in range(7)])
    gallery.refresh()
    assert known_calibration(gallery) == first
    gallery.remove(reds / "0" / "7.png")
    gallery.refresh()
    renewed = known_calibration(gallery)
    assert renewed is not None
    assert (renewed.n_images, renewed.last_change) == (72, 8)
    assert renewed == calibrate(gallery.local.snapshot())


def test_images_that_are_removed_meanwhile_count_as_in_the_snapshot(gallery: Gallery) -> None:
    snapshot = gallery.local.snapshot()
    expected = calibrate(snapshot)
    gallery.remove(image.path for image in gallery.images())
    assert len(gallery) == 0
    assert calibrate(snapshot) == expected


def test_copies_of_an_image_do_not_count(gallery: Gallery, reds: Path) -> None:
    before = calibrate(gallery.local.snapshot())
    for path in sorted(reds.glob("*/*.png")):
        (path.with_suffix(".copy.png")).write_bytes(path.read_bytes())
    gallery.add(reds)
    after = calibrate(gallery.local.snapshot())
    assert after.n_images == 160
    assert after[:2] == pytest.approx(before[:2], abs=0.05)


def test_few_images_say_nothing(tmp_path: Path) -> None:
    photos = save_classes(tmp_path / "few", hues=(0,), n=MIN_IMAGES - 1)
    with Gallery.create(tmp_path / "g", vocabulary="toy") as gallery:
        gallery.add(photos)
        assert not needs_calibration(gallery.local.snapshot())
        assert gallery.search(photos / "0" / "1.png")[0].strength is None
        stripes(99, 0).save(photos / "0" / "99.png")
        gallery.add(photos)
        assert gallery.search(photos / "0" / "1.png")[0].strength is not None


def test_the_candidates_of_the_calibration_have_the_best_hit(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = calibrate(gallery.local.snapshot())
    monkeypatch.setattr(calibration, "CANDIDATES", 1000)
    assert few == calibrate(gallery.local.snapshot())


def test_the_table_begins_with_the_warning_and_json_has_the_strength(
    run: Run, gallery: Gallery, tmp_path: Path
) -> None:
    stripes(0, 130).save(tmp_path / "blue.png")
    stripes(0, 0).save(tmp_path / "red.png")
    weak = run("search", tmp_path / "blue.png", "-g", gallery.path)
    assert weak.out.startswith("No good match. The closest are:\n")
    assert "best match: weak; all images" in weak.out
    assert "No good match" not in run("search", tmp_path / "red.png", "-g", gallery.path).out
    hits = run("search", tmp_path / "blue.png", "-g", gallery.path, "--json").json["hits"]
    assert hits[0]["strength"] == "weak"


def test_no_match_is_measured_by_a_command(run: Run, reds: Path, tmp_path: Path) -> None:
    blues = save_classes(tmp_path / "blues", hues=(130, 150), n=5)
    printed = run(
        "evaluate", "no-match", "--data", reds, "--other", blues, "--vocabulary", "toy"
    ).out
    assert printed.startswith("40 images in the gallery")
    command = ("evaluate", "no-match", "--data", reds, "--other", blues, "--vocabulary", "toy")
    result = run(*command, "--json").json
    assert set(result["queries"]) == {"in reds", "out blues"}
    assert result["queries"]["out blues"]["weak"] == result["queries"]["out blues"]["n"] == 10
    measured = measure_no_match(reds, [blues], vocabulary="toy")
    assert json.loads(json.dumps(measured.to_dict())) == result
    counts = measured.counts["in reds"]
    assert counts["weak"] < 0.2 * counts.total()


def test_folders_that_cannot_be_used_are_named(reds: Path, tmp_path: Path) -> None:
    indexed, held_out = split_classes(reds)
    assert len(indexed) == len(held_out) == 40
    assert not set(indexed) & set(held_out)
    with pytest.raises(EvaluationError, match="has no class folders"):
        split_classes(reds / "0")
    with pytest.raises(InvalidOption, match="is not a folder"):
        measure_no_match(reds, [tmp_path / "missing"], vocabulary="toy")
    with pytest.raises(EvaluationError, match="30 are needed"):
        measure_no_match(save_classes(tmp_path / "few", hues=(1, 2), n=4), [reds], vocabulary="toy")
