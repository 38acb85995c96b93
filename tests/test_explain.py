"""A match is taken apart without a remainder, and what is drawn shows the right place."""

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from bm25v.errors import WrongUse
from bm25v.explain import Explanation, Part, drawing, explain, heatmaps, report
from bm25v.explain.drawing import draw
from bm25v.gallery import Gallery, Word
from tests.conftest import picture

Pixels = NDArray[np.uint8]
VOID = {"meta", "img", "br", "hr", "link", "input"}


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
        Word(i, None, 2.0, 3.0, 4.0, value / 2, value) for i, value in enumerate(contributions)
    ]
    parts = tuple(Part(word, grid, grid) for word in words)
    return Explanation(query, hit, path, sum(contributions), 0.5, parts)


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
        if self.open and self.open[-1] != "style":
            self.text += data

    def values(self, tag: str, attribute: str) -> list[str]:
        return [attrs.get(attribute) or "" for name, attrs in self.tags if name == tag]


def test_parts_sum_to_the_score_and_grids_to_the_frequencies(
    gallery: Gallery, photos: Path
) -> None:
    for hit in gallery.search(photos / "4.png", k=12):
        explanation = explain(gallery, photos / "4.png", hit.path)
        parts = explanation.parts
        assert sum(part.word.contribution for part in parts) == pytest.approx(
            explanation.sparse, abs=1e-5
        )
        assert explanation.sparse == pytest.approx(hit.sparse, abs=1e-5)
        assert explanation.dense == pytest.approx(hit.dense, abs=1e-5)
        assert [part.word for part in parts] == list(hit.words)
        for part in parts:
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
    share_hw = heatmaps.smooth(grid, width=width, height=height)
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
def test_a_sheet_has_the_computed_size(
    query: Pixels, hit: Pixels, contributions: tuple[float, ...]
) -> None:
    explanation = made_up(query, hit, *contributions)
    for top in (1, 5, 50):
        sheet = draw(explanation, top=top)
        assert sheet.mode == "RGB"
        assert sheet.size == drawing.sheet_size(explanation, top=top)


def test_a_sheet_grows_by_a_row_a_word_and_ends_at_the_last() -> None:
    image = gradient(100, 100)
    explanation = made_up(image, image, 3.0, 2.0, 1.0)
    heights = [drawing.sheet_size(explanation, top=top)[1] for top in (1, 2, 3, 4)]
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
    labelled = Explanation(image, image, name, 1.0, 0.5, (Part(named, grid, grid),))
    for one in (explanation, labelled):
        assert draw(one, query_name=name).size == drawing.sheet_size(one)


def test_printed_parts_add_up_as_printed() -> None:
    image = gradient(8, 8)
    explanation = made_up(image, image, 1.005, 1.004, 1.004, 0.004, 0.003)
    printed = sum(round(part.word.contribution, 2) for part in explanation.parts[:3])
    rest = drawing.remainder(explanation, top=3)
    assert round(printed + rest, 2) == round(explanation.sparse, 2)
    assert drawing.remainder(explanation, top=5) == 0


def test_a_page_shows_every_query_and_hit_and_needs_nothing_else(
    gallery: Gallery, photos: Path
) -> None:
    labels = {str(photos / f"{n}.png"): "even" if n % 2 == 0 else "odd" for n in range(12)}
    searches = [
        report.search(gallery, str(photos / name), k=4, explained=2, labels=labels)
        for name in ("3.png", "6.png")
    ]
    text = report.page("Twelve", searches, lead="A lead.", facts=[("2", "queries")])
    page = Page(text)
    for search in searches:
        assert Path(search.query).name in page.text
        for hit in search.results:
            assert Path(hit.path).name in page.text
            assert f"{hit.sparse:.2f}" in page.text
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
    text = report.page("One", [report.search(gallery, str(photos / "3.png"), k=1)])
    bars = re.findall(r"--start:([\d.]+)%;--size:([\d.]+)%", text)
    ends = [float(start) + float(size) for start, size in bars]
    assert float(bars[0][0]) == 0
    for (start, _), end in zip(bars[1:], ends, strict=False):
        assert float(start) == pytest.approx(end, abs=0.2)
    assert ends[-1] == pytest.approx(100, abs=0.2)


def test_names_and_labels_are_escaped(gallery: Gallery, photos: Path) -> None:
    evil = photos / "<script>alert('x')&.png"
    picture(50).save(evil)
    gallery.add(evil)
    labels = {str(evil): '"><b onclick=x>'}
    text = report.page("<i>", [report.search(gallery, str(evil), k=2, labels=labels)], lead="<u>")
    page = Page(text)
    assert evil.name in page.text
    assert {"script", "i", "u"} & {tag for tag, _ in page.tags} <= {"i"}
    assert not any("onclick" in attrs for _, attrs in page.tags)
    assert page.text.count("<i>") == 2


def test_a_page_survives_pictures_that_are_gone_and_searches_without_hits(
    gallery: Gallery, photos: Path, tmp_path: Path
) -> None:
    found = report.search(gallery, str(photos / "3.png"), k=3, explained=0)
    gone = Path(found.results[1].path)
    gone.unlink()
    assert "does not exist" in Page(report.page("Gone", [found])).text
    with Gallery.create(tmp_path / "empty.bm25v", vocabulary="toy") as empty:
        nothing = report.search(empty, str(photos / "3.png"))
    page = Page(report.page("None", [nothing]))
    assert "No picture shares a word" in page.text
    image = gradient(9, 9)
    alone = report.Search(str(photos / "3.png"), 8, nothing.results, (made_up(image, image),))
    assert "No shared words" in Page(report.page("Alone", [alone])).text
