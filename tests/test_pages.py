"""What all pages share: templates that escape every value, one style sheet, charts."""

import re
from pathlib import Path

import pytest
from jinja2 import UndefinedError

from bm25v import pages
from bm25v.pages.charts import Axis, Line, draw_legend, draw_lines
from bm25v.pages.render import render

FOLDER = Path(pages.__file__).parent
STYLE = (FOLDER / "static" / "style.css").read_text(encoding="utf-8")


def test_values_are_escaped_and_undecodable_names_are_replaced() -> None:
    page = render(
        "searches.html", title="<b>caf\udce9</b>", lead='"&', facts=[("<", ">")], searches=[]
    )
    assert "<h1>&lt;b&gt;caf?&lt;/b&gt;</h1>" in page
    assert '<p class="lead">&#34;&amp;</p>' in page
    assert "<dt>&gt;</dt><dd>&lt;</dd>" in page
    page.encode()


def test_a_value_that_a_template_does_not_get_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="searches"):
        render("searches.html", title="Cats", lead="", facts=[])


def test_names_in_charts_are_escaped() -> None:
    line = Line("<b>&\"'", [(0, 0), (1, 1)], "s0")
    axis = Axis("<i>", 0, 1, [(0, "<"), (1, "&")])
    for markup in (draw_lines('"<about>', [line], axis, axis), draw_legend([line])):
        assert not re.search(r"<[bi]>|<about>", markup)
        assert "&lt;b&gt;&amp;" in markup


def test_every_rule_of_the_style_sheet_is_used() -> None:
    sources = [
        path.read_text(encoding="utf-8")
        for path in FOLDER.rglob("*")
        if path.suffix in (".html", ".js", ".py")
    ]
    rules = re.sub(r"/\*.*?\*/|\{[^{}]*\}", " ", STYLE, flags=re.DOTALL)
    classes = set(re.findall(r"\.([a-z][\w-]*)", rules))
    words = set(re.findall(r"[\w-]+", " ".join(sources)))
    colours = {f"s{n}" for n in range(9)}
    assert len(classes) > 70
    assert classes - words - colours == set()


def test_every_class_in_a_template_has_a_rule() -> None:
    templates = " ".join(
        path.read_text(encoding="utf-8") for path in FOLDER.glob("templates/*.html")
    )
    used = {name for value in re.findall(r'class="([^"{}]*)"', templates) for name in value.split()}
    styled = set(re.findall(r"\.([a-z][\w-]*)", STYLE))
    assert used - styled == set()
