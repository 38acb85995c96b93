"""The page about a vocabulary, and the samples of its words that training writes."""

import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray
from PIL import Image

from bm25v import images
from bm25v.api import Gallery
from bm25v.cli.words import words as command
from bm25v.errors import UnknownVocabulary, VocabularyError
from bm25v.explanations.gallery_samples import sample_gallery
from bm25v.explanations.samples import EXAMPLES, FILE_NAME, WORDS, Samples
from bm25v.pages import charts
from bm25v.pages.vocabulary_page import LOG_NAME, read_log, render_vocabulary
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary import bag as bags
from bm25v.vocabulary import vocabulary as vocabularies
from tests.html_page import HtmlPage

pytest.importorskip("torch")

from bm25v.training import TrainingOptions, train_vocabulary
from bm25v.training.recipe import Recipe
from bm25v.training.word_samples import gather_samples

TOY = Vocabulary.load("toy")


@pytest.fixture
def toy_folder(photos: Path, tmp_path: Path) -> Path:
    """The toy vocabulary as a folder with samples and a log."""
    folder = tmp_path / "pets.vocab"
    TOY.save(folder)
    gather_samples(TOY.backbone, TOY.sae, sorted(photos.iterdir())).save(folder)
    log = [{"step": step, "fvu": 0.9 / step, "l0": 8, "dead_share": 0} for step in range(1, 41)]
    (folder / "training.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in log))
    return folder


def peaks(photos: Path, word: int) -> list[tuple[float, Path]]:
    """Return the images with a word and its highest activation there, strongest first."""
    maxima = [
        (float(bags.word_activations(TOY.encode(path).codes, word).max()), path)
        for path in photos.iterdir()
    ]
    return sorted(((value, path) for value, path in maxima if value > 0), reverse=True)


def difference(jpeg: bytes, pixels: NDArray[np.uint8]) -> float:
    example = np.asarray(Image.open(io.BytesIO(jpeg)), dtype=np.float32)
    return float(np.abs(example - images.resize_image(pixels, width=96, height=96)).mean())


def test_counts_equal_those_of_a_plain_loop(photos: Path) -> None:
    samples = gather_samples(TOY.backbone, TOY.sae, sorted(photos.iterdir()))
    counts = np.zeros(TOY.n_words, dtype=int)
    for path in photos.iterdir():
        codes = TOY.encode(path).codes
        for word in range(TOY.n_words):
            counts[word] += (bags.word_activations(codes, word) > 0).sum()
    assert samples.counts_v.tolist() == counts.tolist()
    assert (samples.n_images, samples.patches) == (12, 12 * 49)
    assert len(samples.words) == WORDS
    chosen = [int(samples.counts_v[word.word]) for word in samples.words]
    assert chosen == sorted(chosen, reverse=True)
    assert chosen[0] == counts.max()


def test_examples_are_the_patches_of_highest_activation(photos: Path) -> None:
    samples = gather_samples(TOY.backbone, TOY.sae, sorted(photos.iterdir()))
    for word in samples.words:
        expected = peaks(photos, word.word)
        assert word.n_images == len(expected)
        assert len(word.examples) == min(EXAMPLES, len(expected))
        for example, (value, path) in zip(word.examples, expected, strict=False):
            assert example.activation == pytest.approx(value, abs=1e-6)
            grid = bags.word_activations(TOY.encode(path).codes, word.word).reshape(7, 7)
            row, column = np.argwhere(grid == grid.max())[0]
            side, patch = 27, 64 / 7
            left = min(max(0, round((column + 0.5) * patch - side / 2)), 64 - side)
            top = min(max(0, round((row + 0.5) * patch - side / 2)), 64 - side)
            pixels = images.decode_image(path)[top : top + side, left : left + side]
            assert difference(example.jpeg, pixels) < 10
            assert left + side * example.patch.left == pytest.approx(column * patch, abs=0.1)
            assert top + side * example.patch.top == pytest.approx(row * patch, abs=0.1)
            assert side * example.patch.width == pytest.approx(patch, abs=0.1)


@pytest.mark.parametrize("size", [(1, 1), (3, 900), (900, 3), (200, 90)])
def test_images_of_any_shape_can_be_examples(tmp_path: Path, size: tuple[int, int]) -> None:
    Image.effect_noise(size, 80).convert("RGB").save(tmp_path / "noise.png")
    (tmp_path / "torn.png").write_bytes(b"no image")
    samples = gather_samples(TOY.backbone, TOY.sae, [tmp_path / "noise.png", tmp_path / "torn.png"])
    assert samples.n_images == 1
    for word in samples.words:
        box = word.examples[0].patch
        assert 0 <= box.left < box.left + box.width <= 1.001
        assert 0 <= box.top < box.top + box.height <= 1.001


def test_samples_are_read_as_they_were_written(photos: Path, tmp_path: Path) -> None:
    samples = gather_samples(TOY.backbone, TOY.sae, sorted(photos.iterdir()))
    samples.save(tmp_path)
    loaded = Samples.load(tmp_path)
    assert loaded is not None
    assert loaded.words == samples.words
    assert loaded.counts_v.tolist() == samples.counts_v.tolist()
    assert (loaded.n_images, loaded.patches) == (samples.n_images, samples.patches)
    content = (tmp_path / FILE_NAME).read_bytes()
    (tmp_path / FILE_NAME).write_bytes(content.replace(b'"format":"1"', b'"format":"2"'))
    with pytest.raises(VocabularyError, match="newer bm25v: upgrade"):
        Samples.load(tmp_path)
    for torn in (content[:100], content.replace(b'"samples"', b'"nothing"'), b""):
        (tmp_path / FILE_NAME).write_bytes(torn)
        with pytest.raises(VocabularyError, match="damaged: delete it"):
            Samples.load(tmp_path)


def test_training_writes_samples(photos: Path, tmp_path: Path) -> None:
    recipe = Recipe(expansion=4, k=4, batch=128, epochs=2)
    options = TrainingOptions(photos, tmp_path / "mine.vocab", backbone="toy", recipe=recipe)
    trained = train_vocabulary(options)
    shutil.rmtree(photos)
    samples = Samples.load(options.output)
    assert samples is not None
    assert samples.n_images == 12
    assert len(samples.counts_v) == trained.n_words
    assert (options.output / FILE_NAME).stat().st_size < 600_000
    text = render_vocabulary(Vocabulary.load(options.output))
    steps = trained.report["training"]["steps"]
    assert len(polyline(text)) == steps
    assert f"held out {trained.report['training']['fvu']:.3f}" in text
    assert f"<dd>{trained.report['training']['explained_variance']:.1%}</dd>" in text


def polyline(text: str) -> list[str]:
    (points,) = HtmlPage(text).values("polyline", "points")
    return points.split()


def test_the_page_is_self_contained_and_shows_all_samples(toy_folder: Path) -> None:
    text = render_vocabulary(Vocabulary.load(toy_folder))
    parsed = HtmlPage(text)
    assert not re.search(r"https?://|url\(|@import|<script|<link", text)
    assert all(src.startswith("data:image/jpeg;base64,") for src in parsed.values("img", "src"))
    assert all(parsed.values("img", "alt"))
    samples = Samples.load(toy_folder)
    assert samples is not None
    n_images = sum(1 + len(word.examples) for word in samples.words)
    assert len(parsed.values("img", "src")) == n_images
    assert len(polyline(text)) == 40
    assert "missing" not in " ".join(parsed.values("p", "class"))


def test_every_word_is_in_one_bar(toy_folder: Path) -> None:
    parsed = HtmlPage(render_vocabulary(Vocabulary.load(toy_folder)))
    samples = Samples.load(toy_folder)
    assert samples is not None
    bins = charts.density_bins(samples.counts_v / samples.patches)
    bars = [int(n) for n in parsed.values("rect", "data-count")]
    assert bars == [
        int((samples.counts_v == 0).sum()),
        *(density_bin.words for density_bin in bins),
    ]
    assert sum(bars) == TOY.n_words


@pytest.mark.parametrize("densities", [[0, 0], [1, 1], [0.1, 0.01, 0.001], [0, 3e-7, 0.9999]])
def test_extreme_densities_are_counted(densities: list[float]) -> None:
    density_v = np.array(densities, dtype=np.float64)
    bars = HtmlPage(charts.draw_density_histogram(density_v)).values("rect", "data-count")
    assert sum(map(int, bars)) == len(densities)
    for low, high, words in charts.density_bins(density_v):
        inside = (density_v >= low * (1 - 1e-6)) & (density_v < high * (1 - 1e-6))
        assert words == inside.sum() + (density_v == 1).sum() * (high > 0.99)


def test_names_are_escaped(toy_folder: Path) -> None:
    samples = Samples.load(toy_folder)
    assert samples is not None
    word = samples.words[0].word
    hostile = '<img src=x onerror="alert(1)"> & \udcff'
    vocabulary = replace(
        Vocabulary.load(toy_folder),
        name=hostile,
        backbone_name=hostile,
        word_names={word: hostile},
        report={"data": {"about": hostile, "pictures": hostile}, "training": [hostile]},
    )
    parsed = HtmlPage(render_vocabulary(vocabulary))
    assert "onerror" not in {name for _, attributes in parsed.tags for name in attributes}
    assert parsed.text.count("<img src=x") >= 3


def test_the_page_names_the_files_that_are_missing(toy_folder: Path) -> None:
    (toy_folder / FILE_NAME).unlink()
    text = render_vocabulary(Vocabulary.load(toy_folder))
    assert "No densities" in text
    assert "bm25v words report" in text
    assert "bm25v demo" in text
    assert "No curve" not in text
    (toy_folder / "training.jsonl").unlink()
    assert "No curve" in HtmlPage(render_vocabulary(Vocabulary.load(toy_folder))).text


def test_a_gallery_shows_what_the_words_of_a_vocabulary_look_like(
    gallery: Gallery, photos: Path
) -> None:
    samples = sample_gallery(gallery.store)
    df = {word.word: word.df for word in gallery.words()}
    assert {word: n for word, n in enumerate(samples.df_v.tolist()) if n} == df
    chosen = [word.df for word in samples.words]
    assert len(chosen) == WORDS
    assert chosen == sorted(chosen, reverse=True)
    assert chosen[0] == max(df.values())
    for word in samples.words:
        having = {image.path for image in gallery.word(word.word).images}
        assert {example.path for example in word.examples} <= having
        assert len(word.examples) == min(EXAMPLES, len(having))
    text = render_vocabulary(TOY, samples)
    page = HtmlPage(text)
    assert not re.search(r"https?://|url\(|@import|<script|<link", text)
    n_examples = sum(len(word.examples) for word in samples.words)
    assert len(page.values("img", "src")) == n_examples
    assert sum(int(n) for n in page.values("rect", "data-count")) == TOY.n_words
    assert len(polyline(text)) > 2
    assert f"{len(df)} of the words are in its 12 images" in page.text
    assert "No curve" not in page.text
    for path in photos.iterdir():
        path.unlink()
    assert (
        HtmlPage(render_vocabulary(TOY, sample_gallery(gallery.store))).values("img", "src") == []
    )


def test_report_uses_the_gallery_that_is_named_or_near(
    gallery: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BM25V_GALLERY", "nowhere.bm25v")
    output = tmp_path / "words.html"

    def report(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(command, ["report", *arguments, "-o", str(output)])
        return done.exit_code, done.output + str(done.exception or "")

    assert "with images of" not in report("toy")[1]
    assert "bm25v words report toy" in output.read_text(encoding="utf-8")
    code, said = report("toy", "-g", str(gallery.path))
    assert (code, "with images of" in said) == (0, True)
    assert output.read_text(encoding="utf-8") == render_vocabulary(
        TOY, sample_gallery(gallery.store)
    )
    monkeypatch.setenv("BM25V_GALLERY", str(gallery.path))
    assert "with images of" in report("toy")[1]
    assert "with images of" not in report("default")[1], "it has another vocabulary"
    code, said = report("default", "-g", str(gallery.path))
    assert code == 1
    assert "has the vocabulary toy, not default: give another -g" in said
    code, said = report("toy", "-g", "nowhere.bm25v")
    assert code == 1
    assert "no gallery at" in said


def test_samples_of_another_vocabulary_are_an_error(toy_folder: Path) -> None:
    samples = Samples.load(toy_folder)
    assert samples is not None
    replace(samples, counts_v=samples.counts_v[:9], words=()).save(toy_folder)
    with pytest.raises(VocabularyError, match="another vocabulary"):
        render_vocabulary(Vocabulary.load(toy_folder))


def test_a_log_with_torn_and_repeated_lines_is_read(tmp_path: Path) -> None:
    lines = ['{"step": 1, "fvu": 0.9}', '{"step": 2, "fv{"step": 2, "fvu": 0.8}', "[]"]
    lines += ['{"step": 1, "fvu": 0.7}', '{"step": 3, "fvu": NaN}', '{"step": 4, "fvu": 0.5}']
    (tmp_path / "log").write_text("\n".join(lines))
    assert read_log(tmp_path / "log") == [(1, 0.7), (4, 0.5)]
    assert read_log(tmp_path / "none") == []


def test_long_curves_have_fewer_points() -> None:
    svg = charts.draw_training_curve([(step, 1 / step) for step in range(1, 5001)], None)
    assert len(polyline(svg)) == charts.MAX_POINTS
    assert len(polyline(charts.draw_training_curve([(1, 3.0)], 0.2))) == 1


@pytest.mark.parametrize("name", ["toy", "default"])
def test_a_page_of_a_shipped_vocabulary(name: str, tmp_path: Path) -> None:
    output = tmp_path / "words.html"
    done = CliRunner().invoke(command, ["report", name, "-o", str(output), "--json"])
    assert done.exit_code == 0, done.output
    printed = json.loads(done.output)
    assert printed["output"] == str(output)
    assert f"<dd>{printed['words']:,}</dd>" in output.read_text(encoding="utf-8")


def test_a_page_of_a_folder(toy_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(toy_folder.parent)
    done = CliRunner().invoke(command, ["report", "pets.vocab"])
    assert done.output == "words.html: a page about toy, 192 words\n"
    assert "Sample words" in Path("words.html").read_text(encoding="utf-8")
    wrong = CliRunner().invoke(command, ["report", "nowhere"])
    assert isinstance(wrong.exception, UnknownVocabulary)


def test_a_page_of_a_vocabulary_on_the_hub(
    toy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / "models--somebody--pets"
    shutil.copytree(toy_folder, repository / "snapshots" / "abc123")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc123")
    output = tmp_path / "words.html"
    done = CliRunner().invoke(command, ["report", "hf://somebody/pets", "-o", str(output)])
    assert done.exit_code == 0, done.output
    assert output.read_text(encoding="utf-8") == render_vocabulary(Vocabulary.load(toy_folder))
    assert len(polyline(output.read_text(encoding="utf-8"))) == 40
    assert {FILE_NAME, LOG_NAME} <= set(vocabularies.HUB_FILES)
