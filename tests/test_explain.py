"""A match is taken apart without a remainder, and what is drawn shows the right place."""

import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from bm25v.api import Gallery
from bm25v.cli import explain as cli_explain
from bm25v.demo import search_and_explain
from bm25v.errors import Bm25vError, ImageError, WrongUse
from bm25v.explain import Explanation, Part, drawing, heatmaps
from bm25v.explain.drawing import draw
from bm25v.explain.explanation import combine_maps, round_to_sum
from bm25v.pages.explanation_page import render_explanation, write_explanation
from bm25v.pages.searches_page import LabelledSearch, render_searches
from bm25v.search import Match, WordContribution
from bm25v.vocabulary import bag as bags
from tests.conftest import make_image

Pixels = NDArray[np.uint8]
VOID = {"meta", "img", "br", "hr", "link", "input", "wbr"}


def gradient(height: int, width: int) -> Pixels:
    y, x = np.mgrid[0:height, 0:width]
    channels = (255 * x / max(width - 1, 1), 255 * y / max(height - 1, 1), np.full_like(x, 90))
    return np.stack(channels, axis=-1).astype(np.uint8)


def made_up(
    query: Pixels, hit: Pixels, *contributions: float, path: str = "/photos/hit.jpg"
) -> Explanation:
    grid = np.zeros((7, 7), dtype=np.float32)
    grid[2, 5] = 1.5
    words = [
        WordContribution(i, None, 2.0, 3.0, 4.0, value / 2, value)
        for i, value in enumerate(contributions)
    ]
    parts = tuple(Part(word, (grid,), grid) for word in words)
    return Explanation((query,), hit, match(path, *words), parts)


def match(path: str, *words: WordContribution) -> Match:
    score = sum(word.contribution for word in words)
    return Match(path, score, 0.5, words, 0.5, length=9.0, average_length=8.0, pictures=20)


class Page(HTMLParser):
    """Collects tags, attributes and text, and checks that every tag is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += data

    def values(self, tag: str, attribute: str) -> list[str]:
        return [attrs.get(attribute) or "" for name, attrs in self.tags if name == tag]


def test_parts_sum_to_the_score_and_grids_to_the_frequencies(
    gallery: Gallery, photos: Path
) -> None:
    for hit in gallery.search(photos / "4.png", k=12):
        explanation = gallery.explain(photos / "4.png", hit.path)
        parts = explanation.parts
        assert sum(part.word.contribution for part in parts) == pytest.approx(
            explanation.sparse, abs=1e-5
        )
        assert explanation.sparse == pytest.approx(hit.sparse, abs=1e-5)
        assert explanation.dense == pytest.approx(hit.dense, abs=1e-5)
        assert [part.word for part in parts] == list(hit.words)
        for part in parts:
            assert part.in_query is not None
            assert part.in_hit is not None
            assert part.in_query.shape == part.in_hit.shape == (7, 7)
            assert part.in_query.sum() == pytest.approx(part.word.query_tf, abs=0.006)
            assert part.in_hit.sum() == pytest.approx(part.word.tf, abs=0.006)


@pytest.mark.parametrize(("height", "width"), [(210, 210), (70, 700), (700, 70), (35, 61)])
@pytest.mark.parametrize(("row", "column"), [(0, 0), (2, 5), (6, 3)])
def test_a_smoothed_grid_peaks_where_the_patch_is(
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


def test_an_overlay_glows_where_the_word_is_and_is_dim_and_grey_elsewhere() -> None:
    grid = np.zeros((7, 7), dtype=np.float32)
    grid[1, 1] = 2
    for colour in [(255, 255, 255), (0, 0, 0), (250, 120, 10), (20, 60, 220)]:
        flat = np.full((140, 210, 3), colour, dtype=np.uint8)
        seen = heatmaps.overlay(flat, grid)
        assert seen.shape == flat.shape
        there, elsewhere = seen[30, 45].astype(int), seen[90, 150].astype(int)
        assert np.ptp(elsewhere) == 0, "no colour is left"
        assert elsewhere.mean() <= 16 + flat.mean()
        assert elsewhere.max() <= 16 + 255 / 2
        assert there[0] > there[2] + 30, "warm"
        assert there.mean() > elsewhere.mean() + 40, "lighter"


def test_an_overlay_of_an_absent_word_is_grey_all_over() -> None:
    seen = heatmaps.overlay(gradient(40, 50), np.zeros((7, 7), dtype=np.float32))
    assert np.ptp(seen, axis=-1).max() == 0


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
def test_a_sheet_holds_all_that_is_drawn(
    query: Pixels, hit: Pixels, contributions: tuple[float, ...]
) -> None:
    explanation = made_up(query, hit, *contributions)
    for top in (1, 5, 50):
        assert_margins_are_empty(draw(explanation, top=top))


def assert_margins_are_empty(sheet: Image.Image) -> None:
    """Nothing is cut off at an edge, and nothing is left empty below."""
    pixels = np.array(sheet)
    ink_y, ink_x = np.nonzero((pixels != pixels[0, 0]).any(axis=-1))
    assert ink_x.min() == 48
    assert ink_x.max() <= sheet.width - 48
    assert 40 <= ink_y.min() < 60
    assert 40 <= sheet.height - ink_y.max() < 110


def test_a_sheet_grows_by_a_row_a_word_and_ends_at_the_last() -> None:
    image = gradient(100, 100)
    explanation = made_up(image, image, 3.0, 2.0, 1.0)
    heights = [draw(explanation, top=top).height for top in (1, 2, 3, 4)]
    assert heights[1] - heights[0] == heights[2] - heights[1] > 280
    assert heights[3] == heights[2]
    with pytest.raises(WrongUse, match="at least 1"):
        draw(explanation, top=0)


@pytest.mark.parametrize("name", ["日本語.jpg", "é" * 300, "a\nb\t.png", "\udcff.png", "🌸", ""])
def test_a_sheet_takes_any_name(name: str) -> None:
    image = gradient(20, 20)
    explanation = made_up(image, image, 1.0, path=f"/photos/{name}")
    named = explanation.parts[0].word._replace(name=name)
    grid = explanation.parts[0].in_hit
    assert grid is not None
    labelled = Explanation((image,), image, match(name, named), (Part(named, (grid,), grid),))
    for one in (explanation, labelled):
        assert_margins_are_empty(draw(one, query_name=name))


@settings(deadline=None)
@given(st.lists(st.floats(-50, 50), max_size=20))
def test_rounded_parts_add_up_and_are_less_than_a_cent_off(values: list[float]) -> None:
    rounded = round_to_sum(values, sum(values))
    assert sum(rounded) == pytest.approx(round(sum(values), 2), abs=1e-9)
    for value, printed in zip(values, rounded, strict=True):
        assert abs(value - printed) < 0.01 + 1e-9
        assert printed == pytest.approx(round(printed, 2))


def test_terminal_image_and_page_print_the_same_contributions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    image = gradient(8, 8)
    explanation = made_up(image, image, 1.006, 1.004, 1.004, 0.084, 0.084, 0.084)
    written: list[str] = []
    original = drawing._write

    def record(pen: Any, position: Any, text: str, *style: Any, **more: Any) -> None:
        written.append(text)
        original(pen, position, text, *style, **more)

    monkeypatch.setattr(drawing, "_write", record)
    for top in (2, 5, 6):
        contributions = explanation.rounded_contributions()
        expected = [*contributions[:top], *([sum(contributions[top:])] if top < 6 else [])]
        assert sum(expected) == pytest.approx(round(explanation.sparse, 2))
        in_page = numbers(render_explanation(explanation, top=top), r"<b>([+−][\d.]+)</b></h3>")
        written.clear()
        draw(explanation, top=top)
        in_image = [float(text) for text in written if re.fullmatch(r"[+-]\d+\.\d\d", text)]
        cli_explain._print(explanation, top)
        in_terminal = numbers(capsys.readouterr().out, r"(?m)^ +([\d.]+)  ")
        assert in_page == in_image == in_terminal == pytest.approx(expected)


def test_a_single_word_that_is_left_out_is_not_called_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cli_explain._print(made_up(gradient(8, 8), gradient(8, 8), 3.0, 1.0), 1)
    assert "   1.00  1 more word\n" in capsys.readouterr().out


def test_a_page_shows_every_query_and_hit_and_needs_nothing_else(
    gallery: Gallery, photos: Path
) -> None:
    labels = {str(photos / f"{n}.png"): "even" if n % 2 == 0 else "odd" for n in range(12)}
    searches = [
        search_and_explain(gallery, str(photos / name), k=4, explained=2, labels=labels)
        for name in ("3.png", "6.png")
    ]
    text = render_searches("Twelve", searches, lead="A lead.", facts=[("2", "queries")])
    page = Page(text)
    for search in searches:
        assert Path(search.query).name in page.text
        for hit in search.results:
            assert Path(hit.path).name in page.text
            assert f"{hit.sparse:.2f}" in page.text
            assert hit.dense is not None
            assert f"{hit.dense:.3f}" in page.text
            assert f"{len(hit.words)} of {search.n_words}" in page.text
    assert page.text.count("✓") == sum(s.agrees(h) is True for s in searches for h in s.results)
    assert page.text.count("✗") == sum(s.agrees(h) is False for s in searches for h in s.results)
    assert not re.search(r"https?://|url\(|@import|<script|<link", text)
    assert all(source.startswith("data:image/jpeg;base64,") for source in page.values("img", "src"))
    assert all(page.values("img", "alt"))
    ids = {attrs.get("id") for _, attrs in page.tags}
    assert {link.removeprefix("#") for link in page.values("a", "href")} <= ids


def test_a_pages_bars_fill_the_score(gallery: Gallery, photos: Path) -> None:
    text = render_searches("One", [search_and_explain(gallery, str(photos / "3.png"), k=1)])
    bars = re.findall(r"--start:([\d.]+)%;--size:([\d.]+)%", text)
    ends = [float(start) + float(size) for start, size in bars]
    assert float(bars[0][0]) == 0
    for (start, _), end in zip(bars[1:], ends, strict=False):
        assert float(start) == pytest.approx(end, abs=0.2)
    assert ends[-1] == pytest.approx(100, abs=0.2)


def test_names_and_labels_are_escaped(gallery: Gallery, photos: Path) -> None:
    evil = photos / "<script>alert('x')&.png"
    make_image(50).save(evil)
    gallery.add(evil)
    labels = {str(evil): '"><b onclick=x>'}
    text = render_searches(
        "<i>", [search_and_explain(gallery, str(evil), k=2, labels=labels)], lead="<u>"
    )
    page = Page(text)
    assert evil.name in page.text
    assert {"script", "i", "u"} & {tag for tag, _ in page.tags} <= {"i"}
    assert not any("onclick" in attrs for _, attrs in page.tags)
    assert page.text.count("<i>") == 2


def test_a_page_survives_pictures_that_are_gone_and_searches_without_hits(
    gallery: Gallery, photos: Path, tmp_path: Path
) -> None:
    found = search_and_explain(gallery, str(photos / "3.png"), k=3, explained=0)
    gone = Path(found.results[1].path)
    gone.unlink()
    assert "does not exist" in Page(render_searches("Gone", [found])).text
    with Gallery.create(tmp_path / "empty.bm25v", vocabulary="toy") as empty:
        nothing = search_and_explain(empty, str(photos / "3.png"))
    page = Page(render_searches("None", [nothing]))
    assert "No image shares a word" in page.text
    image = gradient(9, 9)
    alone = LabelledSearch(str(photos / "3.png"), 8, nothing.results, (made_up(image, image),))
    assert "No shared words" in Page(render_searches("Alone", [alone])).text


def test_a_steered_explanation_is_that_of_the_steered_search(
    gallery: Gallery, photos: Path
) -> None:
    first = photos / "4.png"
    word = gallery.search(first).query[0].word
    for pictures, asked in (
        (first, {"region": (0, 0, 40, 30)}),
        ([first, photos / "5.png"], {"negative": photos / "6.png", "boost": {word: 2}}),
        (first, {"like": photos / "7.png", "unlike": [photos / "8.png"]}),
        (None, {"must": [word]}),
    ):
        for hit in gallery.search(pictures, **asked, k=12):
            found = gallery.explain(pictures, hit.path, **asked)
            assert found.match.words == hit.words
            assert found.sparse == hit.sparse
            assert found.match.coverage == hit.coverage
            total = sum(part.word.contribution for part in found.parts)
            assert total == pytest.approx(found.sparse, abs=1e-5)
            shared = {part.word.word for part in found.parts}
            wanted = {one.word for one in found.query_words if one.weight > 0}
            assert {one.word for one in found.missing} == wanted - shared


def test_only_the_region_is_shown_of_the_query(gallery: Gallery, photos: Path) -> None:
    found = gallery.explain(photos / "4.png", photos / "4.png", region=(0, 0, 3 / 7, 1))
    assert found.region == (0, 0, 3 / 7, 1)
    assert found.parts
    for part in found.parts:
        assert part.in_query is not None
        assert part.in_query[:, 3:].max() == 0
        assert part.in_query.sum() == pytest.approx(part.word.query_tf, abs=0.006)


def test_a_word_is_shown_in_the_picture_that_has_most_of_it() -> None:
    little, much = np.eye(7, dtype=np.float32), np.full((7, 7), 2, dtype=np.float32)
    word = WordContribution(3, None, 2.0, 3.0, 4.0, 1.5, 3.0)
    part = Part(word, (little, much), little)
    assert part.best_query == 1
    assert part.in_query is much
    assert Part(word, (), little).in_query is None


def test_what_matched_is_the_sum_of_what_speaks_for_the_hit(gallery: Gallery, photos: Path) -> None:
    found = gallery.explain(
        [photos / "4.png", photos / "5.png"], photos / "6.png", negative=photos / "6.png"
    )
    helpful = [part for part in found.parts if part.word.contribution > 0]
    assert len(helpful) < len(found.parts)
    in_queries, in_hit = combine_maps(found)
    assert in_hit is not None
    assert in_hit.sum() == pytest.approx(sum(p.word.contribution for p in helpful), rel=1e-5)
    for number, grid in enumerate(in_queries):
        there = [p for p in helpful if p.in_queries[number].any()]
        assert grid.sum() == pytest.approx(sum(p.word.contribution for p in there), rel=1e-5)
    only = made_up(gradient(9, 9), gradient(9, 9), 2.0, -1.0)
    (in_query,), in_hit = combine_maps(only)
    assert in_hit is not None
    assert in_query[2, 5] == in_hit[2, 5] == in_hit.sum() == 2.0


def test_the_words_of_a_hit_are_explained_without_its_file(gallery: Gallery, photos: Path) -> None:
    whole = gallery.explain(photos / "3.png", photos / "4.png")
    (photos / "4.png").unlink()
    found = gallery.explain(photos / "3.png", photos / "4.png")
    assert found.match == whole.match
    assert found.hit_image is None
    assert all(part.in_hit is None for part in found.parts)
    assert [part.in_query is not None for part in found.parts] == [True] * len(found.parts)
    (note,) = found.notes
    assert "4.png: does not exist; its words are known, but not where they are in it" in note
    assert_margins_are_empty(draw(found))
    page = Page(render_explanation(found))
    assert note in page.text
    assert "The file cannot be read" in page.text
    assert f"{found.sparse:.2f}" in page.text
    with pytest.raises(ImageError, match=r"4.png: does not exist"):
        gallery.explain(photos / "4.png", photos / "3.png")


def test_a_file_with_another_content_is_noted_even_if_it_has_the_same_words(
    gallery: Gallery, photos: Path
) -> None:
    assert not gallery.store.has_changed(str(photos / "3.png"))
    make_image(3).save(photos / "copy.png")
    make_image(3).save(photos / "3.png", compress_level=0)
    assert gallery.store.has_changed(str(photos / "3.png"))
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


def numbers(text: str, pattern: str) -> list[float]:
    return [float(found.replace("−", "-")) for found in re.findall(pattern, text)]


def test_the_page_of_a_hit_shows_every_word_and_needs_nothing_else(
    gallery: Gallery, photos: Path
) -> None:
    found = gallery.explain(photos / "3.png", photos / "4.png", boost={5: 2.5}, must=[])
    text = render_explanation(found, query_names=["3.png"])
    page = Page(text)
    assert not re.search(r"https?://|@import|<link|url\((?!data:)", text)
    assert all(source.startswith("data:") for source in page.values("img", "src"))
    rows = [attrs for tag, attrs in page.tags if attrs.get("class") == "word"]
    assert [row["data-label"] for row in rows] == [part.word.label for part in found.parts]
    assert all(row["tabindex"] == "0" for row in rows)
    maps = [attrs for _, attrs in page.tags if attrs.get("class") == "map"]
    in_query = sum(part.in_query is not None and part.in_query.any() for part in found.parts)
    assert len(maps) == 2 + len(found.parts) + in_query
    assert all(
        one["aria-label"] and "--heat:url(data:image/png" in str(one["style"]) for one in maps
    )
    for part in found.parts:
        word = part.word
        assert f"idf {word.idf:.2f} × saturation {word.saturation:.2f} × weight" in page.text
        assert f"in {word.df} of {found.match.pictures} images" in page.text
    assert f"{found.match.length:.2f}" in page.text
    assert f"{found.match.average_length:.2f}" in page.text
    assert f"{found.match.coverage:.0%}" in page.text
    for one in found.missing:
        assert one.label in page.text


@pytest.mark.parametrize("top", [None, 2])
@pytest.mark.parametrize("contributions", [(4.0, 2.0, 1.5), (3.0, 2.0, 1.0, -0.5, -1.5), (1.0,)])
def test_the_bars_of_a_page_add_up_to_the_score(
    contributions: tuple[float, ...], top: int | None
) -> None:
    image = gradient(40, 60)
    found = made_up(image, image, *contributions)
    text = render_explanation(found, top=top)
    bars = re.findall(r'class="bar" style="--start:([\d.]+)%;--size:([\d.]+)%"', text)
    whole = sum(value for value in contributions if value > 0)
    assert len(bars) == len(contributions[:top]) + (len(contributions) > len(contributions[:top]))
    end = 0.0
    shown = numbers(text, r"<b>([+−][\d.]+)</b></h3>")
    assert sum(shown) == pytest.approx(found.sparse, abs=0.01)
    for (start, size), value in zip(bars, shown, strict=True):
        left, right = float(start) * whole / 100, (float(start) + float(size)) * whole / 100
        assert (left if value > 0 else right) == pytest.approx(end, abs=0.02)
        end = right if value > 0 else left
    assert end == pytest.approx(found.sparse, abs=0.02)
    stretches = numbers(text, r'style="width:([\d.]+)%"')
    assert sum(stretches) == pytest.approx(100, abs=0.1)


def test_a_page_takes_any_name_any_shape_and_no_words() -> None:
    evil = '"><script>alert(1)</script>'
    for query, hit in ((gradient(1, 900), gradient(900, 1)), (gradient(3, 3), gradient(50, 40))):
        found = made_up(query, hit, 1.0, path=f"/photos/{evil}\udcff.jpg")
        named = found.parts[0].word._replace(name=evil)
        part = Part(named, (), found.parts[0].in_hit)
        for one in (found, Explanation((), hit, match("x", named), (part,))):
            page = Page(render_explanation(one, query_names=[evil]))
            assert sum(tag == "script" for tag, _ in page.tags) == 1
    none = Explanation((gradient(9, 9),), gradient(9, 9), match("x.jpg"), ())
    assert "there is nothing to add up" in Page(render_explanation(none)).text
    with pytest.raises(WrongUse, match="at least 1"):
        render_explanation(none, top=0)


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [(".png", "PNG"), (".JPG", "JPEG"), (".jpeg", "JPEG"), (".webp", "WEBP")],
)
def test_an_image_is_written_in_the_format_of_its_suffix(
    tmp_path: Path, suffix: str, kind: str
) -> None:
    explanation = made_up(gradient(9, 9), gradient(9, 9), 2.0, 1.0)
    path = tmp_path / f"why{suffix}"
    write_explanation(explanation, path)
    with Image.open(path) as image:
        assert image.format == kind
        assert image.size == draw(explanation).size


def test_an_explanation_is_written_as_pdf_or_page(tmp_path: Path) -> None:
    explanation = made_up(gradient(9, 9), gradient(9, 9), 2.0, 1.0)
    write_explanation(explanation, tmp_path / "why.pdf")
    assert (tmp_path / "why.pdf").read_bytes().startswith(b"%PDF")
    write_explanation(explanation, tmp_path / "why.htm", top=1, query_names=["cat.png"])
    page = (tmp_path / "why.htm").read_text(encoding="utf-8")
    assert page == render_explanation(explanation, top=1, query_names=["cat.png"])


def test_an_explanation_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    explanation = made_up(gradient(9, 9), gradient(9, 9), 1.0)
    for name in ("why.gif", "why"):
        with pytest.raises(WrongUse, match=r"ends in \.html, .*\.png, .*\.pdf"):
            write_explanation(explanation, tmp_path / name)
    with pytest.raises(WrongUse, match=r"nope/why\.html: the folder .*nope does not exist"):
        write_explanation(explanation, tmp_path / "nope" / "why.html")
    (tmp_path / "why.html").mkdir()
    with pytest.raises(Bm25vError, match=r"why\.html cannot be written: Is a directory"):
        write_explanation(explanation, tmp_path / "why.html")
    assert [path.name for path in tmp_path.iterdir()] == ["why.html"]


def test_the_legend_of_pages_has_the_colours_of_heat_maps() -> None:
    style = render_explanation(made_up(gradient(9, 9), gradient(9, 9), 1.0))
    (legend,) = re.findall(r"\.heat-scale {[^}]*linear-gradient\(to right, ([^)]*)\)", style)
    shown = [[int(one[i : i + 2], 16) for i in (1, 3, 5)] for one in legend.split(", ")[1:]]
    white = np.full((1, 400, 3), 255, dtype=np.uint8)
    heat = heatmaps.overlay(white, np.linspace(0, 1, 400)[None])[0]
    for colour, share in zip(shown[1:], (1 / 3, 2 / 3, 1), strict=True):
        assert np.abs(heat[: round(400 * share)][-1].astype(int) - colour).max() < 40


def test_a_glow_covers_what_an_overlay_shows() -> None:
    grid = np.zeros((7, 7), dtype=np.float32)
    grid[1, 5] = 3
    heat = heatmaps.heat_layer(grid)
    assert heat.shape == (56, 56, 4)
    y, x = np.unravel_index(int(heat[..., 3].argmax()), (56, 56))
    assert (int(y) // 8, int(x) // 8) == (1, 5)
    assert heat[40:, :20, 3].max() == 0
    assert heatmaps.heat_layer(np.zeros((27, 27))).shape == (81, 81, 4)
