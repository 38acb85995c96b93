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
    from_script = {"on"}
    strengths = {"strong", "fair", "weak"}
    rules = re.sub(r"/\*.*?\*/|\{[^{}]*\}", " ", STYLE, flags=re.DOTALL)
    classes = set(re.findall(r"\.([a-z][\w-]*)", rules))
    used = set(re.findall(r"[\w-]+", str(attributes)))
    assert len(classes) > 50
    assert classes - used - from_script - strengths == set()


def test_every_class_in_a_template_has_a_rule() -> None:
    used = {name for value in re.findall(r'class="([^"{}]*)"', TEMPLATES) for name in value.split()}
    styled = set(re.findall(r"\.([a-z][\w-]*)", STYLE))
    assert used - styled == set()


def test_the_explanation_page_shows_every_group_and_is_self_contained(
    gallery: Gallery, photos: Path
) -> None:
    explanation = gallery.explain(photos / "3.png", photos / "4.png", boost={5: 2.5}, must=[])
    text = render_explanation(explanation, words=len(explanation.parts))
    page = HtmlPage(text)
    assert f"Query {photos.name}/3.png" in page.text
    assert not re.search(r"https?://|@import|<link|url\((?!data:)", text)
    rows = [attrs for tag, attrs in page.tags if "group" in (attrs.get("class") or "").split()]
    assert len(rows) == len(explanation.groups) > 1
    for row, group in zip(rows, explanation.groups, strict=True):
        assert group.label in page.text
        is_lit = group.in_hit is not None
        expected = (group.label, "0") if is_lit else (None, None)
        assert (row.get("data-label"), row.get("tabindex")) == expected
    maps = [attrs for _, attrs in page.tags if attrs.get("class") == "map"]
    assert [m["aria-label"] for m in maps] == [
        "What matched in the query",
        "What matched in the hit",
    ]
    for layer in ("--photo:url(data:image/jpeg", "--all:url(data:image/png", "--all-edge:url(data"):
        assert all(layer in str(m["style"]) for m in maps)
    for row, group in zip(rows, explanation.groups, strict=True):
        for layer in ("--hit:url(data:image/png", "--hit-edge:url(data:image/png"):
            assert (layer in str(row.get("style"))) == (group.in_hit is not None)
        in_query = group.in_queries[0] if group.in_queries else None
        assert ("--q0:url(data:image/png" in str(row.get("style"))) == (in_query is not None)
    assert explanation.title in page.text
    assert explanation.sentence in page.text
    details = HtmlPage(re.search(r"<details>.*</details>", text, re.DOTALL)[0]).text  # type: ignore[index]
    assert explanation.about_rank in details
    assert f"{explanation.match.coverage:.0%}" in details
    for word in (part.word for part in explanation.parts):
        assert word.label in details
        assert f"{word.idf:.2f}" in details
        assert f"{word.saturation:.2f}" in details
    assert explanation.missing
    assert all(missing.label in details for missing in explanation.missing[:24])
    assert f"and {len(explanation.missing) - 24} more words" in details


@pytest.mark.parametrize("contributions", [(4.0, 2.0, 1.5), (3.0, 2.0, 1.0, -0.5, -1.5), (1.0,)])
def test_the_bars_of_the_explanation_page_are_the_shares_of_the_groups(
    contributions: tuple[float, ...],
) -> None:
    image = gradient(40, 60)
    explanation = make_explanation(image, image, *contributions)
    text = render_explanation(explanation)
    bars = find_numbers(text, r'class="bar" style="--size:([\d.]+)%"')
    whole = sum(value for value in contributions if value > 0)
    assert bars == pytest.approx([100 * abs(v) / whole for v in contributions], abs=0.01)
    assert text.count('class="group against"') == sum(value < 0 for value in contributions)
    printed = find_numbers(text, r"<b>(−?\d+)%</b></h3>")
    assert printed == [round(100 * value / whole) for value in contributions]


def test_the_explanation_page_accepts_any_name_any_shape_and_no_words() -> None:
    hostile = '"><script>alert(1)</script>'
    for query, hit in ((gradient(1, 900), gradient(900, 1)), (gradient(3, 3), gradient(50, 40))):
        explanation = make_explanation(query, hit, 1.0, path=f"/photos/{hostile}\udcff.jpg")
        named = explanation.parts[0].word._replace(name=hostile)
        part = Part(named, (), explanation.parts[0].in_hit)
        groups = (explanation.groups[0]._replace(label=hostile, in_queries=()),)
        alone = Explanation((), hit, make_match("x", named), (part,), groups=groups)
        for unusual in (explanation, alone):
            page = HtmlPage(render_explanation(replace(unusual, query_paths=(hostile,))))
            assert sum(tag == "script" for tag, _ in page.tags) == 1
    none = Explanation((gradient(9, 9),), gradient(9, 9), make_match("x.jpg"), ())
    assert "Nothing counts for it." in HtmlPage(render_explanation(none)).text


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
    explanation.save(str(tmp_path / "why.htm"), words=1)
    page = (tmp_path / "why.htm").read_text(encoding="utf-8")
    assert page == render_explanation(explanation, words=1)


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
        with pytest.raises(InvalidOption, match=r"words = -1: .* 0 words or more"):
            explanation.save(tmp_path / f"none.{suffix}", words=-1)
    assert [path.name for path in tmp_path.iterdir()] == ["why.html"]


def test_the_explanation_page_uses_the_parameters_of_the_gallery(
    photos: Path, tmp_path: Path
) -> None:
    with Gallery.create(tmp_path / "g", vocabulary="toy", k1=0.9, b=0.3) as gallery:
        gallery.add(photos)
        explanation = gallery.explain(photos / "3.png", photos / "4.png")
    word, match = explanation.parts[0].word, explanation.match
    page = HtmlPage(render_explanation(explanation, words=1))
    length = f"{match.length:.2f} / {match.average_length:.2f}"
    assert f"tf × 1.9 / (tf + 0.9 × (0.7 + 0.3 × {length}))" in page.text
    shown = 0.7 + 0.3 * match.length / match.average_length
    assert word.saturation == pytest.approx(word.tf * 1.9 / (word.tf + 0.9 * shown), rel=1e-3)
