"""Explanations: contributions sum to the score, and maps and drawings show the right patches."""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from bm25v.backbones.toy import ToyBackbone
from bm25v.dense import normalise
from bm25v.errors import ImageError
from bm25v.explain import Explanation, Part, heatmaps
from bm25v.explain.drawing import draw
from bm25v.explain.groups import Group
from bm25v.explain.heatmaps import combine_maps
from bm25v.explain.sums import round_to_sum, sum_up
from bm25v.gallery import Gallery
from bm25v.render.explanation_page import render_explanation
from bm25v.search import Match, WordContribution
from bm25v.store.files import has_changed
from bm25v.vocabulary import bag as bags
from tests import test_cli
from tests.conftest import encode, make_image
from tests.html_page import HtmlPage, find_numbers
from tests.lexicons import make_lexicon, save_vocabulary
from tests.test_cli import Run

run, indexed, lexical = test_cli.run, test_cli.indexed, test_cli.lexical

Pixels = NDArray[np.uint8]

ADDS = r"<tr><td>[^<]*</td><td>(−?[\d.]+)</td>"  # a row of a table of words


def gradient(height: int, width: int) -> Pixels:
    y, x = np.mgrid[0:height, 0:width]
    channels = (255 * x / max(width - 1, 1), 255 * y / max(height - 1, 1), np.full_like(x, 90))
    return np.stack(channels, axis=-1).astype(np.uint8)


def make_explanation(
    query: Pixels, hit: Pixels, *contributions: float, path: str = "/photos/hit.jpg"
) -> Explanation:
    grid = np.zeros((7, 7), dtype=np.float32)
    grid[2, 5] = 1.5
    words = [
        WordContribution(i, None, 2.0, 3.0, 4.0, value / 2, value)
        for i, value in enumerate(contributions)
    ]
    parts = tuple(Part(word, (grid,), grid) for word in words)
    whole = sum(value for value in contributions if value > 0)
    groups = tuple(
        Group("words", f"detail {i}", value, value / whole, (i,), (grid,), grid, 7, "Without it: 7")
        for i, value in enumerate(contributions)
    )
    return Explanation((query,), hit, make_match(path, *words), parts, groups=groups)


def make_match(path: str, *words: WordContribution) -> Match:
    score = sum(word.contribution for word in words)
    return Match(
        path,
        mode="words",
        score=score,
        sparse=score,
        sparse_factor=1.0,
        strength="fair",
        dense=0.5,
        words=words,
        coverage=0.5,
        length=9.0,
        average_length=8.0,
        n_images=20,
    )


def test_parts_sum_to_the_score_and_grids_to_the_frequencies(
    gallery: Gallery, photos: Path
) -> None:
    hits = gallery.search(photos / "4.png", k=12)
    assert len(hits) > 5
    for hit in hits:
        explanation = gallery.explain(photos / "4.png", hit.path)
        parts = explanation.parts
        assert parts
        assert sum(part.word.contribution for part in parts) == pytest.approx(
            explanation.sparse, abs=1e-5
        )
        assert explanation.score == pytest.approx(hit.score, abs=1e-5)
        assert explanation.sparse == pytest.approx(hit.sparse, abs=1e-5)
        assert explanation.dense == pytest.approx(hit.dense, abs=1e-5)
        assert [part.word for part in parts] == list(hit.words)
        for part in parts:
            assert part.in_query is not None
            assert part.in_hit is not None
            assert part.in_query.shape == part.in_hit.shape == (7, 7)
            assert part.in_query.sum() == pytest.approx(part.word.query_tf, rel=0.03, abs=0.006)
            assert part.in_hit.sum() == pytest.approx(part.word.tf, rel=0.03, abs=0.006)


@pytest.mark.parametrize(("height", "width"), [(210, 210), (70, 700), (700, 70), (35, 61)])
@pytest.mark.parametrize(("row", "column"), [(0, 0), (2, 5), (6, 3)])
def test_an_upsampled_grid_peaks_where_the_patch_is(
    height: int, width: int, row: int, column: int
) -> None:
    grid = np.zeros((7, 7), dtype=np.float32)
    grid[row, column] = 3.7
    share_hw = heatmaps.upsample(grid, width=width, height=height)
    assert share_hw.shape == (height, width)
    assert share_hw.min() == 0
    assert 0.9 < share_hw.max() <= 1
    y, x = np.unravel_index(int(share_hw.argmax()), share_hw.shape)
    assert int(y * 7 // height) == row
    assert int(x * 7 // width) == column
    far_row, far_column = (row + 3) % 7, (column + 3) % 7
    assert share_hw[int((far_row + 0.5) * height / 7), int((far_column + 0.5) * width / 7)] == 0


@pytest.mark.parametrize("colour", [(255, 255, 255), (0, 0, 0), (250, 120, 10), (20, 60, 220)])
def test_a_highlight_keeps_the_colours_where_the_word_is_and_veils_the_rest(
    colour: tuple[int, int, int],
) -> None:
    grid = np.zeros((7, 7), dtype=np.float32)
    grid[1, 1] = 2
    flat = np.full((140, 210, 3), colour, dtype=np.uint8)
    strong, weak = (heatmaps.highlight(flat, grid, strength) for strength in (1.0, 0.4))
    assert strong.shape == flat.shape
    there, elsewhere = strong[30, 45].astype(int), strong[90, 150].astype(int)
    assert there.tolist() == list(colour)
    assert np.ptp(elsewhere) == 0, "no colour is left"
    outline = (strong == 255).all(axis=-1) & (np.array(colour) < 255).any()
    differs = np.abs(there - elsewhere).max() > 60
    assert differs or outline[:60, :90].sum() > 50, "a dark photo has an outline"
    assert (weak[90, 150] == elsewhere).all()
    expected = 0.4 * there + 0.6 * elsewhere
    np.testing.assert_allclose(weak[30, 45], expected, atol=1.5, err_msg="a weak match is paler")


def test_a_highlight_of_an_absent_word_is_grey_everywhere() -> None:
    drawn = heatmaps.highlight(gradient(40, 50), np.zeros((7, 7), dtype=np.float32))
    assert np.ptp(drawn, axis=-1).max() == 0


@pytest.mark.parametrize(
    ("query", "hit"),
    [
        (gradient(200, 300), gradient(300, 200)),
        (gradient(60, 3000), gradient(3000, 60)),
        (gradient(1, 1), gradient(2, 3)),
        (gradient(1, 4000), gradient(100, 100)),
    ],
)
@pytest.mark.parametrize("contributions", [(), (4.0,), (4.0, 2.0, 1.0, 0.5, 0.3, 0.2, 0.1)])
def test_nothing_is_drawn_over_the_margins(
    query: Pixels, hit: Pixels, contributions: tuple[float, ...]
) -> None:
    assert_margins_are_empty(draw(make_explanation(query, hit, *contributions)))


def assert_margins_are_empty(drawing: Image.Image) -> None:
    """Nothing is cut off at an edge, and nothing is left empty below."""
    pixels = np.array(drawing)
    ink_y, ink_x = np.nonzero((pixels != pixels[0, 0]).any(axis=-1))
    assert ink_x.min() == 48
    assert ink_x.max() <= drawing.width - 48
    assert 40 <= ink_y.min() < 60
    assert 40 <= drawing.height - ink_y.max() < 130


def test_a_drawing_has_one_row_per_group_and_no_number_of_a_word(written: list[str]) -> None:
    image = gradient(100, 100)
    heights = []
    for n in (1, 2, 3):
        explanation = make_explanation(image, image, *(3.0, 2.0, 1.0)[:n])
        written.clear()
        heights.append(draw(explanation).height)
        for group in explanation.groups:
            assert group.label in written
            assert group.percent in written
            assert group.about in written
        assert explanation.sentence in " ".join(written)
        assert not any("word" in text or "BM25" in text for text in written)
    assert heights[1] - heights[0] == heights[2] - heights[1] > 200


@pytest.mark.parametrize("name", ["日本語.jpg", "é" * 300, "a\nb\t.png", "\udcff.png", "🌸", ""])
def test_any_name_can_be_drawn(name: str) -> None:
    image = gradient(20, 20)
    explanation = make_explanation(image, image, 1.0, path=f"/photos/{name}")
    named = explanation.parts[0].word._replace(name=name)
    groups = (explanation.groups[0]._replace(label=name),)
    for unusual in (
        explanation,
        replace(explanation, match=make_match(name, named), groups=groups),
    ):
        assert_margins_are_empty(draw(replace(unusual, query_paths=(name,))))


@settings(deadline=None)
@given(st.lists(st.floats(-50, 50), max_size=20))
def test_rounded_parts_add_up_and_are_less_than_a_cent_off(values: list[float]) -> None:
    rounded = round_to_sum(values, sum(values))
    assert sum(rounded) == pytest.approx(round(sum(values), 2), abs=1e-9)
    for value, printed in zip(values, rounded, strict=True):
        assert abs(value - printed) < 0.01 + 1e-9
        assert printed == pytest.approx(round(printed, 2))


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that are drawn on images."""
    texts: list[str] = []
    original = ImageDraw.ImageDraw.text

    def record(pen: Any, position: Any, text: str, **style: Any) -> None:
        texts.append(text)
        original(pen, position, text, **style)

    monkeypatch.setattr(ImageDraw.ImageDraw, "text", record)
    return texts


def test_terminal_page_and_notebook_print_the_same_numbers_in_their_details(
    indexed: Run, photos: Path
) -> None:
    pair = (photos / "3.png", photos / "4.png")
    with Gallery.open("gallery.bm25v") as gallery:
        explanation = gallery.explain(*pair)
    contributions = explanation.rounded_contributions()
    assert len(contributions) > 12
    for n in (2, 5, 12, len(contributions) - 1):
        expected = [*contributions[:n], sum(contributions[n:])]
        assert sum(expected) == pytest.approx(round(explanation.sparse, 2))
        *in_page, total = find_numbers(render_explanation(explanation, words=n), ADDS)
        assert total == pytest.approx(round(explanation.sparse, 2))
        printed = indexed("explain", *pair, "--words", n).out
        in_terminal = find_numbers(printed, r"(?m)^ *(\d[\d.]+)  ")
        assert in_page == in_terminal == pytest.approx(expected)
        if n == 12:
            assert find_numbers(explanation._repr_html_(), ADDS) == [*in_page, total]
    assert " 1 more word\n" in printed, "not words"


def test_terminal_image_page_and_notebook_show_the_same_groups(
    indexed: Run, photos: Path, written: list[str]
) -> None:
    pair = (photos / "3.png", photos / "4.png")
    with Gallery.open("gallery.bm25v") as gallery:
        explanation = gallery.explain(*pair)
        draw(explanation)
        texts = [
            indexed("explain", *pair).out,
            " ".join(written),
            without_details(render_explanation(explanation)),
            without_details(explanation._repr_html_()),
        ]
    assert len(explanation.groups) > 1
    for text in texts:
        assert explanation.title in text
        shown = " ".join(text.split())
        assert explanation.sentence in shown
        for group in explanation.groups:
            assert group.label in shown
            assert group.percent.replace("−", "-") in shown.replace("−", "-")
            assert group.about in shown
        assert not re.search(r"word \d", shown), "no number of a word"
        assert "BM25" not in shown


def without_details(text: str) -> str:
    outside = re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)
    assert len(outside) < len(text)
    return HtmlPage(outside).text


def test_an_explanation_with_options_explains_the_search_with_these_options(
    gallery: Gallery, photos: Path
) -> None:
    first = photos / "4.png"
    word = gallery.search(first).query[0].word
    for images, options in (
        (first, {"region": (0, 0, 40, 30)}),
        ([first, photos / "5.png"], {"negative": photos / "6.png", "boost": {word: 2}}),
        (first, {"like": photos / "7.png", "unlike": [photos / "8.png"]}),
        (None, {"must": [word]}),
    ):
        hits = gallery.search(images, **options, k=12)
        assert len(hits) > 0
        for hit in hits:
            explanation = gallery.explain(images, hit.path, **options)
            assert explanation.match.words == hit.words
            assert explanation.sparse == hit.sparse
            assert explanation.match.coverage == hit.coverage
            total = sum(part.word.contribution for part in explanation.parts)
            assert total == pytest.approx(explanation.sparse, abs=1e-5)
            shared = {part.word.word for part in explanation.parts}
            positive = {word.word for word in explanation.query_words if word.weight > 0}
            assert {word.word for word in explanation.missing} == positive - shared


def test_only_the_region_of_the_query_has_words(gallery: Gallery, photos: Path) -> None:
    explanation = gallery.explain(photos / "4.png", photos / "4.png", region=(0, 0, 3 / 7, 1))
    assert explanation.region == (0, 0, 3 / 7, 1)
    assert explanation.parts
    for part in explanation.parts:
        assert part.in_query is not None
        assert part.in_query[:, 3:].max() == 0
        assert part.in_query.sum() == pytest.approx(part.word.query_tf, abs=0.006)


def test_a_word_is_listed_with_the_query_image_that_has_most_of_it() -> None:
    little, much = np.eye(7, dtype=np.float32), np.full((7, 7), 2, dtype=np.float32)
    word = WordContribution(3, None, 2.0, 3.0, 4.0, 1.5, 3.0)
    assert Part(word, (little, much), little).in_query is much
    assert Part(word, (), little).in_query is None


def test_combined_maps_sum_to_what_the_groups_with_a_map_add(
    gallery: Gallery, photos: Path
) -> None:
    explanation = gallery.explain(
        [photos / "4.png", photos / "5.png"], photos / "6.png", negative=photos / "6.png"
    )
    in_queries, in_hit = combine_maps(explanation)
    positive = [group for group in explanation.groups if group.value > 0]
    assert in_hit is not None
    assert in_hit.sum() == pytest.approx(
        sum(group.value for group in positive if group.in_hit is not None), rel=1e-5
    )
    assert len(in_queries) == 2
    for n, grid in enumerate(in_queries):
        present = [g for g in positive if g.in_queries and g.in_queries[n] is not None]
        assert present
        assert grid.sum() == pytest.approx(sum(group.value for group in present), rel=1e-5)
    with_negative = make_explanation(gradient(9, 9), gradient(9, 9), 2.0, -1.0)
    (in_query,), in_hit = combine_maps(with_negative)
    assert in_hit is not None
    assert in_query[2, 5] == in_hit[2, 5] == in_hit.sum() == 2.0
    (anywhere,), _ = combine_maps(gallery.explain(photos / "4.png", photos / "6.png", mode="dense"))
    assert anywhere == np.ones((1, 1)), "it is not known where"


def test_a_hit_is_explained_even_if_its_file_is_missing(gallery: Gallery, photos: Path) -> None:
    whole = gallery.explain(photos / "3.png", photos / "4.png")
    (photos / "4.png").unlink()
    explanation = gallery.explain(photos / "3.png", photos / "4.png")
    assert explanation.match == whole.match
    assert explanation.hit_image is None
    assert all(part.in_hit is None for part in explanation.parts)
    assert explanation.parts
    assert all(part.in_query is not None for part in explanation.parts)
    (note,) = explanation.notes
    assert "4.png: does not exist; its words are known, but not where they are in it" in note
    assert_margins_are_empty(draw(explanation))
    page = HtmlPage(render_explanation(explanation))
    assert note in page.text
    assert "The file cannot be read" in page.text
    assert f"{explanation.sparse:.2f}" in page.text
    with pytest.raises(ImageError, match=r"4.png: there is no file to show"):
        gallery.explain(photos / "4.png", photos / "3.png")


def test_a_file_with_another_content_is_noted_even_if_it_has_the_same_words(
    gallery: Gallery, photos: Path
) -> None:
    record = gallery.local.catalog.at_path(str(photos / "3.png"))
    assert not has_changed(str(photos / "3.png"), record)
    make_image(3).save(photos / "copy.png")
    make_image(3).save(photos / "3.png", compress_level=0)
    assert has_changed(str(photos / "3.png"), record)
    (note,) = gallery.explain(photos / "copy.png", photos / "3.png").notes
    assert "3.png has changed since it was indexed" in note


def test_an_unchanged_file_is_never_called_changed(
    gallery: Gallery, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.utime(photos / "3.png")  # another time, the same content
    monkeypatch.setattr(bags, "word_activations", lambda codes, word: np.zeros(49, np.float32))
    explanation = gallery.explain(photos / "4.png", photos / "3.png")
    assert explanation.parts
    assert not any(part.in_hit is None or part.in_hit.any() for part in explanation.parts)
    assert explanation.notes == ()


def test_the_mask_of_a_page_is_opaque_where_the_word_is() -> None:
    grid = np.zeros((7, 7), dtype=np.float32)
    grid[1, 5] = 3
    mask = heatmaps.make_mask(grid)
    assert mask.shape == (56, 56)
    y, x = np.unravel_index(int(mask.argmax()), mask.shape)
    assert (int(y) // 8, int(x) // 8) == (1, 5)
    assert mask[40:, :20].max() == 0
    edge = heatmaps.make_edge(grid, 0.6)
    assert edge.max() == 153
    lit = np.array(Image.fromarray(mask).resize(edge.shape[::-1])) / 255
    assert np.abs(lit[edge > 100] - 0.5).max() < 0.4, "it goes around what is bright"
    assert heatmaps.make_mask(np.zeros((27, 27))).shape == (81, 81)


def test_an_explanation_knows_the_paths_of_the_query_images(gallery: Gallery, photos: Path) -> None:
    images: list[Any] = [photos / "3.png", str(photos / "4.png"), (photos / "5.png").read_bytes()]
    explanation = gallery.explain(images, photos / "6.png")
    assert explanation.query_paths == (str(photos / "3.png"), str(photos / "4.png"), "")
    page = HtmlPage(render_explanation(explanation))
    assert f"Query {photos.name}/3.png" in page.text
    assert f"Query {photos.name}/4.png" in page.text


@pytest.mark.parametrize("mode", ["hybrid", "words", "two-stage", "sparse", "dense"])
def test_an_explanation_has_the_rank_of_the_search(
    gallery: Gallery, photos: Path, mode: Any
) -> None:
    hits = gallery.search(photos / "3.png", k=12, mode=mode)
    assert len(hits) > 2
    for hit in hits:
        ranking = gallery.explain(photos / "3.png", hit, mode=mode, k=2, offset=1).ranking
        assert ranking is not None
        assert (ranking.rank, ranking.n_ordered) == (hit.rank, len(hits))
        above, below = (
            hits[n].score if 0 <= n < len(hits) else None for n in (hit.rank - 2, hit.rank)
        )
        assert ranking.score_above == pytest.approx(above)
        assert ranking.score_below == pytest.approx(below)
        if mode == "hybrid":
            by_cosine = sorted(hits, key=lambda other: -(other.dense or 0))
            by_words = sorted(hits, key=lambda other: -other.sparse)
            assert ranking.rank_by_similarity == 1 + by_cosine.index(hit)
            assert ranking.rank_by_words == 1 + by_words.index(hit)
        else:
            assert ranking.rank_by_similarity is ranking.rank_by_words is None
    itself = gallery.explain(photos / "3.png", photos / "3.png", mode=mode)
    assert itself.ranking is None, "a search leaves out the image of the query"


@pytest.mark.parametrize("mode", ["hybrid", "words", "two-stage", "sparse", "dense"])
def test_the_printed_terms_of_a_score_add_up(gallery: Gallery, photos: Path, mode: Any) -> None:
    hits = gallery.search(photos / "3.png", k=12, mode=mode)
    assert len(hits) > 2
    for hit in hits:
        *terms, score = sum_up(hit)
        printed = [float(term.value) for term in terms if term.value]
        assert sum(printed) == pytest.approx(float(score.value), abs=1e-9)
        assert float(score.value) == pytest.approx(hit.score, abs=0.006)


def test_a_weak_match_is_shown_in_paler_colours() -> None:
    image = gradient(9, 9)
    fair = make_explanation(image, image, 4.0, 2.0, 0.001, -2.0)
    strong, weak, unknown = (
        replace(fair, match=replace(fair.match, strength=strength, coverage=0.3))
        for strength in ("strong", "weak", None)
    )
    assert strong.visibility == 1 > unknown.visibility > weak.visibility > 0
    assert strong.visibility > fair.visibility > weak.visibility


@pytest.mark.parametrize(
    ("images", "names", "text", "expected"),
    [
        (1, ("cat.jpg",), None, "cat.jpg"),
        (3, ("cat.jpg", "", ""), None, "cat.jpg + 2"),
        (1, ("",), None, "image"),
        (0, (), "a striped cat", "a striped cat"),
        (0, (), None, "words"),
    ],
)
def test_a_drawing_names_the_query(
    written: list[str],
    images: int,
    names: tuple[str, ...],
    text: str | None,
    expected: str,
) -> None:
    draw(
        Explanation(
            (gradient(9, 9),) * images,
            gradient(9, 9),
            make_match("hit.jpg"),
            (),
            text=text,
            query_paths=names,
        )
    )
    assert written[2:6] == ["Query", expected, "Hit", "hit.jpg"]


# Texts


TEXT = "a cat and a dog without a chair"


@pytest.fixture
def texts(photos: Path, tmp_path: Path) -> Gallery:
    """A gallery with a small lexicon."""
    vocabulary = save_vocabulary(tmp_path / "texts.vocab")
    gallery = Gallery.create(tmp_path / "texts.bm25v", vocabulary=vocabulary)
    gallery.add(photos)
    return gallery


@pytest.mark.parametrize("mode", ["hybrid", "words", "dense"])
def test_a_word_of_a_text_is_where_its_visual_words_are(texts: Gallery, mode: Any) -> None:
    results, encoded = texts.search(text=TEXT, mode=mode), encode(texts, text=TEXT, mode=mode)
    assert len(results) == 10
    for hit in results:
        explanation = hit.explain()
        assert [term.part for term in explanation.terms] == list(hit.text)
        for term, encoded_term in zip(explanation.terms, encoded.terms, strict=True):
            assert term.in_hit is not None
            assert term.in_hit.shape == (7, 7)
            mean = encoded_term.means[1] if mode == "hybrid" else 0.0
            assert term.in_hit.sum() == pytest.approx(term.part.by_words + mean, abs=2e-4)
            values = [word.value for word in term.words]
            assert len(values) <= 5
            assert all(value * term.part.value > 0 for value in values)
            assert values == sorted(values, key=abs, reverse=True)
        assert bool(explanation.parts) == (mode != "dense"), "those that ordered the hits"


def test_a_word_of_a_text_is_where_the_vector_depends_on_the_image(
    photos: Path, tmp_path: Path
) -> None:
    vocabulary = save_vocabulary(tmp_path / "mine.vocab", make_lexicon(words=0))
    gallery = Gallery.create(tmp_path / "gallery", vocabulary=vocabulary)
    gallery.add(photos)
    explanation = gallery.explain(None, photos / "3.png", text="cat")
    (term,), encoded = explanation.terms, encode(gallery, text="cat")
    direction_e = encoded.terms[0].dense_e
    patches_pd = gallery.vocabulary.encode(photos / "3.png").patches_pd
    assert term.in_hit is not None
    assert patches_pd is not None
    assert direction_e is not None
    backbone, mean_d = gallery.vocabulary.backbone, patches_pd.mean(axis=0, dtype=np.float64)

    def similarity(place_d: Any) -> float:
        vector_e = backbone.pool_dense(place_d)
        assert vector_e is not None
        return float(normalise(vector_e) @ direction_e)

    for value, patch_d in zip(term.in_hit.ravel().tolist(), patches_pd, strict=True):
        step_d = 1e-4 * (patch_d - mean_d)
        slope = (similarity(mean_d + step_d) - similarity(mean_d - step_d)) / 2e-4
        assert len(patches_pd) * value == pytest.approx(slope, abs=3e-4)
    assert np.ptp(term.in_hit) > 1e-3
    assert similarity(mean_d) - encoded.terms[0].means[0] == pytest.approx(
        term.part.similarity, abs=1e-3
    )


def test_the_hit_of_a_text_is_encoded_once(texts: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    hit, forward, encoded = texts.search(text=TEXT)[0], ToyBackbone.forward, []

    def count(self: ToyBackbone, pixels: Any) -> Any:
        encoded.append(pixels)
        return forward(self, pixels)

    monkeypatch.setattr(ToyBackbone, "forward", count)
    assert hit.explain().terms
    assert len(encoded) == 1


def test_the_words_of_a_text_are_what_is_lit(texts: Gallery) -> None:
    explanation = texts.search(text=TEXT)[0].explain()
    assert explanation.visibility == 1
    (photo,) = heatmaps.list_photos(explanation)
    assert len(photo.groups) == len(explanation.terms)
    counting = tuple(group for group in explanation.groups if group.value > 0)
    assert len(counting) > 0
    for term, group in zip(explanation.terms, explanation.groups, strict=True):
        assert term.in_hit is not None
        assert group.in_hit is not None
        sign = 1 if term.part.value >= 0 else -1
        np.testing.assert_allclose(group.in_hit, np.maximum(sign * term.in_hit, 0))
    only = replace(explanation, groups=counting[:1])
    (grid,) = [group.in_hit for group in only.groups]
    _, lit = combine_maps(only)
    assert grid is not None
    assert lit is not None
    assert lit.max() == pytest.approx(counting[0].value)
    np.testing.assert_allclose(lit / lit.max(), grid / grid.max(), rtol=1e-5)
    unknown = replace(explanation, groups=(counting[0]._replace(in_hit=None),))
    assert combine_maps(unknown)[1] == np.ones((1, 1)), "all of it"
    against = replace(explanation, groups=(counting[0]._replace(value=-0.1),))
    _, dark = combine_maps(against)
    assert dark is not None
    assert not dark.any()
    assert draw(explanation).size[0] > 0


def test_beside_an_image_visual_words_are_lit_too(texts: Gallery, photos: Path) -> None:
    explanation = texts.search(photos / "3.png", text="cat")[0].explain()
    assert len(explanation.terms) == 1
    assert not explanation.is_text_alone
    in_queries, in_hit = combine_maps(explanation)
    assert len(in_queries) == 1
    assert in_hit is not None
    assert in_queries[0].sum() == pytest.approx(explanation.groups[-1].value, rel=1e-5)
    assert in_hit.sum() > in_queries[0].sum() or explanation.groups[0].value < 0
    page = HtmlPage(render_explanation(explanation)).text
    assert "like the image" in page


def test_terminal_page_and_json_have_the_same_words_of_a_text(
    lexical: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lexical("search", "--text", TEXT, "--json").json["hits"][0]["path"]
    options = ("explain", "--text", f"{TEXT} qwerty", path)
    found = lexical(*options, "--json").json
    assert [set(term) for term in found["terms"]] == 3 * [
        {"label", "value", "similarity", "by_words", "in_hit", "words"}
    ]
    assert sum(term["value"] for term in found["terms"]) == pytest.approx(found["score"])
    monkeypatch.setenv("COLUMNS", "80")
    printed = lexical(*options, "-o", "why.html", "--words", 3)
    assert "note: not understood: qwerty" in printed.err
    assert max(map(len, printed.out.splitlines())) <= 80
    rows = [f"{term['value']:.3f}" for term in found["terms"]]
    values = re.findall(r"^[a-z ]+ (-?0\.\d{3})$", printed.out, re.MULTILINE)
    assert len(values) == len(rows) + 1
    assert sum(map(float, values[:-1])) == pytest.approx(float(values[-1]), abs=1e-9)
    np.testing.assert_allclose(list(map(float, values[:-1])), list(map(float, rows)), atol=1.1e-3)
    page = HtmlPage((tmp_path / "why.html").read_text())
    for term, value in zip(found["terms"], values, strict=False):
        line = f"{term['label']} {value}".replace("-", "−")
        assert line in " ".join(page.text.split())
    assert f"score {values[-1]}" in " ".join(page.text.split())
    assert "idf × saturation × weight" in page.text
    assert "not understood: qwerty" in page.text
    assert "missing here" not in page.text
    lexical(*options, "-o", "why.html", "--mode", "dense")
    assert "saturation" not in (tmp_path / "why.html").read_text(), "words did not order the hits"


def test_a_text_is_explained_even_if_the_file_of_the_hit_is_missing(texts: Gallery) -> None:
    hit = texts.search(text=TEXT)[0]
    Path(hit.path).unlink()
    explanation = hit.explain()
    assert [term.in_hit for term in explanation.terms] == [None] * 3
    assert all(term.words for term in explanation.terms if term.part.value > 0)
    assert "cat" in HtmlPage(render_explanation(explanation)).text
