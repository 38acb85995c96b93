"""Pages: templates that escape every value, the explanation page."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from jinja2 import UndefinedError
from PIL import Image

from bm25v.errors import Bm25vError, InvalidOption
from bm25v.explain import Explanation, Part
from bm25v.explain.drawing import draw
from bm25v.gallery import Gallery
from bm25v.render import explanation_page
from bm25v.render.explanation_page import render_explanation
from bm25v.render.html import EmbeddedImage, render
from tests.html_page import HtmlPage, find_numbers
from tests.test_explain import gradient, make_explanation, make_match

FOLDER = Path(explanation_page.__file__).parent
STYLE = (FOLDER / "static" / "style.css").read_text(encoding="utf-8")
TEMPLATES = " ".join(
    path.read_text(encoding="utf-8")
    for path in FOLDER.glob("templates/*.html")
    if not path.name.startswith("notebook")  # these have a style sheet of their own
)


def test_values_are_escaped_and_undecodable_names_are_replaced() -> None:
    image = {"pixels": "<", "bytes": "&", "date": '"', "is_largest": False, "is_copy": False}
    image["path"] = os.path.join('"<i>', "<b>caf\udce9<i>")
    shown = EmbeddedImage(None, "<alt>", "<problem>")
    group = {"n_images": 1, "kind": "near", "images": [image | {"image": shown}], "n_more": 0}
    page = render("duplicates.html", n_groups=1, n_spare=0, n_images=1, groups=[group], n_more=0)
    assert "<b>&lt;b&gt;caf?&lt;i&gt;</b>" in page
    assert 'title="&#34;&lt;i&gt;' in page
    assert "&lt;problem&gt;" in page
    page.encode()


def test_a_value_that_a_template_does_not_get_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="groups"):
        render("duplicates.html", n_groups=0, n_images=1, n_more=0)


def test_every_rule_of_the_style_sheet_is_used() -> None:
    attributes = re.findall(r'class="((?:{{.*?}}|[^"])*)"|kind %}(.*?){%', TEMPLATES)
    from_script = {"on", "off"}
    strengths = {"strong", "fair", "weak"}
    rules = re.sub(r"/\*.*?\*/|\{[^{}]*\}", " ", STYLE, flags=re.DOTALL)
    classes = set(re.findall(r"\.([a-z][\w-]*)", rules))
    used = set(re.findall(r"[\w-]+", str(attributes)))
    assert len(classes) > 70
    assert classes - used - from_script - strengths == set()


def test_every_class_in_a_template_has_a_rule() -> None:
    used = {name for value in re.findall(r'class="([^"{}]*)"', TEMPLATES) for name in value.split()}
    styled = set(re.findall(r"\.([a-z][\w-]*)", STYLE))
    assert used - styled == set()


def test_the_explanation_page_shows_every_word_and_is_self_contained(
    gallery: Gallery, photos: Path
) -> None:
    explanation = gallery.explain(photos / "3.png", photos / "4.png", boost={5: 2.5}, must=[])
    text = render_explanation(explanation, top=len(explanation.parts))
    page = HtmlPage(text)
    assert f"Query {photos.name}/3.png" in page.text
    assert not re.search(r"https?://|@import|<link|url\((?!data:)", text)
    assert page.values("img", "src")
    assert all(source.startswith("data:") for source in page.values("img", "src"))
    rows = [attrs for tag, attrs in page.tags if attrs.get("class") == "word"]
    assert [row["data-label"] for row in rows] == [part.word.label for part in explanation.parts]
    assert all(row["tabindex"] == "0" for row in rows)
    maps = [attrs for _, attrs in page.tags if attrs.get("class") == "map"]
    assert [m["aria-label"] for m in maps] == [
        "What matched in the query",
        "What matched in the hit",
    ]
    assert all("--mask:url(data:image/png" in str(m["style"]) for m in maps)
    for row, part in zip(rows, explanation.parts, strict=True):
        assert part.in_query is not None
        assert ("--q0:url(data:image/png" in str(row["style"])) == part.in_query.any()
        assert "--hit:url(data:image/png" in str(row["style"])
        assert f"--without {part.word.word} " in str(row["data-without"])
        assert f"--must {part.word.word} " in str(row["data-must"])
        assert "--boost 5=2.5" in str(row["data-must"]), "the options of the search are kept"
    shown = [Path(e.path).name for part in explanation.parts for e in part.examples]
    assert len(page.values("img", "src")) == len(shown) > 0
    assert explanation.title in page.text
    for word in (part.word for part in explanation.parts):
        assert f"idf {word.idf:.2f} × saturation {word.saturation:.2f} × weight" in page.text
        assert f"in {word.df} of {explanation.match.n_images} images" in page.text
        assert f"bm25v words show {word.word} " in page.text
        assert f"bm25v words name {word.word} " in page.text
    assert f"{explanation.match.length:.2f}" in page.text
    assert f"{explanation.match.average_length:.2f}" in page.text
    assert f"{explanation.match.coverage:.0%}" in page.text
    assert explanation.missing
    assert all(missing.label in page.text for missing in explanation.missing[:24])
    assert f"and {len(explanation.missing) - 24} more words" in page.text


def test_the_explanation_page_does_not_say_that_images_are_missing_where_none_were_looked_for(
    gallery: Gallery, photos: Path
) -> None:
    explanation = gallery.explain(photos / "3.png", photos / "4.png")
    without_examples = [part for part in explanation.parts if not part.examples]
    assert any(part.word.df > 2 for part in without_examples), "else this test shows nothing"
    page = HtmlPage(render_explanation(explanation, top=len(explanation.parts)))
    assert "no other" not in page.text


@pytest.mark.parametrize("top", [None, 2])
@pytest.mark.parametrize("contributions", [(4.0, 2.0, 1.5), (3.0, 2.0, 1.0, -0.5, -1.5), (1.0,)])
def test_the_bars_of_the_explanation_page_add_up_to_the_score(
    contributions: tuple[float, ...], top: int | None
) -> None:
    image = gradient(40, 60)
    explanation = make_explanation(image, image, *contributions)
    text = render_explanation(explanation, top=top)
    bars = re.findall(r'class="bar" style="--start:([\d.]+)%;--size:([\d.]+)%"', text)
    whole = sum(value for value in contributions if value > 0)
    assert len(bars) == len(contributions[:top]) + (len(contributions) > len(contributions[:top]))
    end = 0.0
    printed = find_numbers(text, r"<b>([+−][\d.]+)</b></h3>")
    assert sum(printed) == pytest.approx(explanation.sparse, abs=0.01)
    for (start, size), value in zip(bars, printed, strict=True):
        left, right = float(start) * whole / 100, (float(start) + float(size)) * whole / 100
        assert (left if value > 0 else right) == pytest.approx(end, abs=0.02)
        end = right if value > 0 else left
    assert end == pytest.approx(explanation.sparse, abs=0.02)


def test_the_explanation_page_accepts_any_name_any_shape_and_no_words() -> None:
    hostile = '"><script>alert(1)</script>'
    for query, hit in ((gradient(1, 900), gradient(900, 1)), (gradient(3, 3), gradient(50, 40))):
        explanation = make_explanation(query, hit, 1.0, path=f"/photos/{hostile}\udcff.jpg")
        named = explanation.parts[0].word._replace(name=hostile)
        part = Part(named, (), explanation.parts[0].in_hit)
        for unusual in (explanation, Explanation((), hit, make_match("x", named), (part,))):
            page = HtmlPage(render_explanation(replace(unusual, query_paths=(hostile,))))
            assert sum(tag == "script" for tag, _ in page.tags) == 1
    none = Explanation((gradient(9, 9),), gradient(9, 9), make_match("x.jpg"), ())
    assert "there is nothing to add up" in HtmlPage(render_explanation(none)).text


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [(".png", "PNG"), (".JPG", "JPEG"), (".jpeg", "JPEG"), (".webp", "WEBP")],
)
def test_an_image_is_written_in_the_format_of_its_suffix(
    tmp_path: Path, suffix: str, kind: str
) -> None:
    explanation = make_explanation(gradient(9, 9), gradient(9, 9), 2.0, 1.0)
    path = tmp_path / f"why{suffix}"
    explanation.save(path)
    with Image.open(path) as image:
        assert image.format == kind
        assert image.size == draw(explanation).size


def test_an_explanation_is_written_as_pdf_or_page(tmp_path: Path) -> None:
    explanation = make_explanation(gradient(9, 9), gradient(9, 9), 2.0, 1.0)
    explanation.save(tmp_path / "why.pdf")
    assert (tmp_path / "why.pdf").read_bytes().startswith(b"%PDF")
    explanation.save(str(tmp_path / "why.htm"), top=1)
    page = (tmp_path / "why.htm").read_text(encoding="utf-8")
    assert page == render_explanation(explanation, top=1)


def test_an_explanation_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    explanation = make_explanation(gradient(9, 9), gradient(9, 9), 1.0)
    for name in ("why.gif", "why"):
        with pytest.raises(InvalidOption, match=r"ends in \.html, .*\.png, .*\.pdf"):
            explanation.save(tmp_path / name)
    with pytest.raises(InvalidOption, match=r"nope/why\.html: the folder .*nope does not exist"):
        explanation.save(tmp_path / "nope" / "why.html")
    (tmp_path / "why.html").mkdir()
    with pytest.raises(Bm25vError, match=r"why\.html cannot be written: Is a directory"):
        explanation.save(tmp_path / "why.html")
    for suffix in ("html", "png"):
        with pytest.raises(InvalidOption, match=r"top = 0: .* at least 1 word"):
            explanation.save(tmp_path / f"none.{suffix}", top=0)
    assert [path.name for path in tmp_path.iterdir()] == ["why.html"]


def test_the_explanation_page_uses_the_parameters_of_the_gallery(
    photos: Path, tmp_path: Path
) -> None:
    with Gallery.create(tmp_path / "g", vocabulary="toy", k1=0.9, b=0.3) as gallery:
        gallery.add(photos)
        explanation = gallery.explain(photos / "3.png", photos / "4.png")
    word, match = explanation.parts[0].word, explanation.match
    page = HtmlPage(render_explanation(explanation, top=1))
    length = f"{match.length:.2f} / {match.average_length:.2f}"
    expected = f"{word.tf:.2f} × 1.9 / ({word.tf:.2f} + 0.9 × (0.7 + 0.3 × {length}))"
    assert f"{expected} = {word.saturation:.3f}" in page.text
