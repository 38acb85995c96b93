"""What a notebook shows: HTML fragments that add up, escape every value and change nothing else."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter

from bm25v import render
from bm25v.explain import Explanation, Part
from bm25v.explain.words import WordList
from bm25v.gallery import Gallery
from bm25v.render.html import fixed
from bm25v.render.notebook import MAX_HITS, MAX_WORDS
from bm25v.search import Results
from tests.browser import CHROMIUM, Browser
from tests.conftest import make_image
from tests.html_page import HtmlPage, find_numbers
from tests.lexicons import save_vocabulary
from tests.test_explain import gradient, make_explanation, make_match

FOLDER = Path(render.__file__).parent
STYLE = (FOLDER / "static" / "notebook.css").read_text(encoding="utf-8")
HOSTILE = '"><script>alert(1)</script>'
VIEWPORT = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
ADDED = r"<b>([+−][\d.]+)</b></div>"
ADDS = r"<tr><td>[^<]*</td><td>(−?[\d.]+)</td>"


def read(value: object) -> HtmlPage:
    """Return the fragment of a value, which is self-contained and has no script."""
    text = value._repr_html_()  # type: ignore[attr-defined]
    fragment = HtmlPage(text)
    assert text.startswith('<div class="bm25v">')
    assert not re.search(r"https?://|url\(|@import|<link|<script|\son\w+=", text)
    assert all(
        source.startswith("data:image/jpeg;base64,") for source in fragment.values("img", "src")
    )
    assert all(fragment.values("img", "alt"))
    return fragment


def test_results_show_every_hit_with_its_values(gallery: Gallery, photos: Path) -> None:
    results = gallery.search(photos / "3.png")
    assert len(results) > 1
    fragment = read(results)
    assert f"{len(results)} hits" in fragment.text
    assert len(fragment.values("img", "src")) == len(results)
    for hit in results:
        assert Path(hit.path).name in fragment.text
        assert f"score {fixed(hit.score, 3)}" in fragment.text
        assert f"{hit.sparse:.2f}" in fragment.text
        assert f"{hit.coverage:.0%}" in fragment.text
        assert all(word.label in fragment.text for word in hit.words[:3])
    assert all(word.label in fragment.text for word in results.query[:8])
    assert fragment.values("p", "title").count(str(photos)) == len(results)


def test_the_words_of_a_hit_add_up_to_its_bm25_score(gallery: Gallery, photos: Path) -> None:
    results = gallery.search([photos / "3.png", photos / "4.png"], negative=photos / "5.png", k=12)
    cards = results._repr_html_().split('<div class="frame">')[1:]
    assert len(cards) == len(results) > 1
    for hit, card in zip(results, cards, strict=True):
        assert sum(find_numbers(card, ADDED)) == pytest.approx(round(hit.sparse, 2))
        assert sum(find_numbers(hit._repr_html_(), ADDED)) == pytest.approx(round(hit.sparse, 2))


def test_a_hit_and_a_match_are_one_card(gallery: Gallery, photos: Path) -> None:
    hit = gallery.search(photos / "3.png", mode="two-stage")[1]
    card = read(hit)
    assert len(card.values("img", "src")) == 1
    assert f"{hit.rank} {Path(hit.path).name}" in card.text
    rank = f"rank {hit.first_rank} in the first stage"
    assert any(rank in about for about in card.values("div", "title"))
    match = gallery.match(photos / "3.png", hit)
    assert f"score {match.score:.3f}" in read(match).text
    assert match.formula in read(match).values("div", "title")
    by_words = gallery.search(photos / "3.png", mode="sparse")[1]
    assert "score" not in read(by_words).text, "the score is BM25"


def test_results_without_hits_show_the_reason_and_the_query(gallery: Gallery, photos: Path) -> None:
    word = gallery.search(photos / "3.png").query[0].word
    results = gallery.search(photos / "3.png", min_coverage=1, without=word)
    fragment = read(results)
    assert results.no_match
    assert f"No match {results.no_match}" in fragment.text
    assert results.query[0].label in fragment.text
    noted = replace(results, notes=("a note",), query=results.query * 3)
    assert "a note" in read(noted).text
    assert f"and {len(noted.query) - 8} more" in read(noted).text


def test_a_text_is_shown_by_its_words(photos: Path, tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "texts", vocabulary=save_vocabulary(tmp_path / "mine"))
    gallery.add(photos)
    results = gallery.search(text="cat dog qwerty")
    shown = read(results).text
    assert "Understood cat dog" in " ".join(shown.split())
    assert "Not understood qwerty" in " ".join(shown.split())
    assert "coverage" not in shown
    whole = sum(max(0, part.value) for part in results[0].text)
    card = " ".join(read(results[0]).text.split())
    for part in results[0].text:
        assert f"{part.label} {max(0, part.value) / whole:.0%}" in card
    explained = " ".join(read(results[0].explain()).text.split())
    assert re.search(r"cat −?0\.\d{3} dog −?0\.\d{3} score 0\.\d{3}", explained)
    assert "of the query" not in explained
    assert "idf × saturation × weight" in explained
    by_vector = gallery.search(text="cat", mode="dense")[0]
    assert "word" not in read(by_vector).text, "they did not order the hits"


def test_a_weight_of_the_query_is_shown_unless_it_is_1(gallery: Gallery, photos: Path) -> None:
    word = gallery.search(photos / "3.png", mode="sparse").query[0].label
    assert f"{word} ×" not in read(gallery.search(photos / "3.png", mode="sparse")).text
    number = int(word.removeprefix("word "))
    boosted = gallery.search(photos / "3.png", boost={number: 2.5}, mode="sparse")
    assert f"{word} × 2.5" in read(boosted).text


def test_a_file_that_is_missing_or_unreadable_is_shown_as_the_reason(
    gallery: Gallery, photos: Path
) -> None:
    results = gallery.search(photos / "3.png")
    Path(results[1].path).unlink()
    Path(results[2].path).write_bytes(b"no image")
    for value in (results, gallery.search(photos / "3.png", k=3)):
        fragment = read(value)
        assert "does not exist" in fragment.text
        assert len(fragment.values("img", "src")) == len(value) - 2
    assert "does not exist" in read(results[1]).text
    missing = results[1].path
    word = next(w for w in gallery.words(best=12) if missing in dict(w.best))
    for shown in (word, WordList([word]), gallery.word(word.word)):
        assert "does not exist" in read(shown).text


def test_names_are_escaped(gallery: Gallery, photos: Path) -> None:
    hostile = photos / f"{HOSTILE.replace('/', '')}.png"
    make_image(50).save(hostile)
    gallery.add(hostile)
    results = gallery.search(hostile)
    word = results[0].words[0].word
    gallery.name_words({word: HOSTILE})
    results = gallery.search(hostile)
    explanation = gallery.explain(hostile, results[0])
    values = (
        results,
        results[0],
        explanation,
        gallery.word(word),
        gallery.words(),
        gallery.words()[0],
    )
    for value in values:
        fragment = read(value)
        assert "script" not in {tag for tag, _ in fragment.tags}
    for value in values[:4]:
        assert HOSTILE in read(value).text
    undecodable = replace(results[0], path="/photos/caf\udce9.jpg")
    assert "caf?.jpg" in read(replace(results, hits=(undecodable,))).text
    for name in ("", "a", "x" * 300, "a\nb.jpg", "日本語のとても長い名前.jpg"):
        assert name in read(replace(results[0], path=f"/photos/{name}")).text


def test_ten_hits_are_well_under_300_kb(gallery: Gallery, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (900, 1200, 3), dtype=np.uint8)
    photo = Image.fromarray(noise).filter(ImageFilter.GaussianBlur(4))
    photo.save(tmp_path / "photo.jpg")
    hit = replace(gallery.search(make_image(3))[0], path=str(tmp_path / "photo.jpg"))
    results = Results("two-stage", (hit,) * 10, {})
    assert 50_000 < len(results._repr_html_()) < 250_000
    assert len(hit._repr_html_()) < 100_000
    many = replace(results, hits=(hit,) * (MAX_HITS + 6))
    assert len(read(many).values("img", "src")) == MAX_HITS
    assert "and 6 more hits" in read(many).text


@pytest.mark.parametrize(
    "contributions", [(4.0, 2.0, 1.5), (3.0, 2.0, 1.0, -0.5, -1.5), (1.0,) * 9]
)
def test_the_words_of_an_explanation_add_up_to_the_score(contributions: tuple[float, ...]) -> None:
    explanation = make_explanation(gradient(40, 60), gradient(60, 40), *contributions)
    text = explanation._repr_html_()
    *printed, total = find_numbers(text, ADDS)
    assert len(printed) == len(contributions)
    assert sum(printed) == pytest.approx(round(explanation.sparse, 2)) == pytest.approx(total)
    bars = find_numbers(text, r'class="bar" style="--size:([\d.]+)%"')
    assert bars == pytest.approx([100 * abs(g.share) for g in explanation.groups], abs=0.01)


def test_an_explanation_shows_both_photos_and_every_group(gallery: Gallery, photos: Path) -> None:
    explanation = gallery.explain(photos / "3.png", photos / "4.png")
    fragment = read(explanation)
    alts = fragment.values("img", "alt")
    assert alts == ["What matched in the query", "What matched in the hit"]
    assert explanation.title in fragment.text
    assert explanation.sentence in fragment.text
    for group in explanation.groups:
        assert f"{group.label} {group.percent}" in fragment.text
    assert "Query 3.png" in fragment.text
    assert "Hit 4.png" in fragment.text
    assert f"{explanation.match.coverage:.0%} of the query" in fragment.text
    assert explanation.missing
    assert all(word.label in fragment.text for word in explanation.missing[:8])
    assert len(explanation._repr_html_()) < 200_000


def test_an_explanation_without_images_words_or_files_is_shown(
    gallery: Gallery, photos: Path
) -> None:
    word = gallery.search(photos / "3.png")[0].words[0].word
    by_word = gallery.explain(None, photos / "3.png", must=word)
    assert "only words, no image" in read(by_word).text
    assert read(by_word).values("img", "alt")[0] == "What matched in the hit"
    assert "the text “a cat”" in read(replace(by_word, text="a cat")).text
    (photos / "4.png").unlink()
    missing = gallery.explain(photos / "3.png", photos / "4.png")
    assert missing.notes[0] in read(missing).text
    assert "its file cannot be read" in read(missing).text
    none = Explanation((gradient(9, 9),), gradient(9, 9), make_match("x.jpg"), ())
    assert "Details" in read(none).text
    silent = np.zeros((7, 7), dtype=np.float32)
    part = make_explanation(gradient(9, 9), gradient(9, 9), 2.0).parts[0]
    nowhere = replace(none, parts=(Part(part.word, (silent,), silent),))
    assert len(read(nowhere).values("img", "src")) == 2
    for shape in ((1, 900), (900, 1), (1, 1)):
        read(make_explanation(gradient(*shape), gradient(*shape), 2.0))


def titles(fragment: HtmlPage) -> list[str]:
    """Return the tooltips of images."""
    return [title for title in fragment.values("div", "title") if title]


def test_a_word_is_shown_with_the_images_where_it_is_strongest(gallery: Gallery) -> None:
    words = gallery.words()
    word = max(words, key=lambda word: word.df)
    fragment = read(word)
    assert titles(fragment) == [image.path for image in word.best]
    assert f"in {word.df} images" in fragment.text
    assert f"idf {word.idf:.2f}" in fragment.text
    assert f"tf {word.best[0].tf:.1f}" in fragment.text
    use = gallery.word(word.word)
    fragment = read(use)
    assert titles(fragment) == [image.path for image in use.images[:8]]
    assert f"in {word.df} of 12 images" in fragment.text
    gallery.name_words({word.word: "corner"})
    assert re.search(rf"corner\s+word {word.word}\b", read(gallery.word(word.word)).text)


def test_a_word_that_is_mostly_in_one_folder_names_it(
    make_gallery: Callable[[str], Gallery], tmp_path: Path
) -> None:
    for colour, name in (("red", "fewer"), ("blue", "more")):
        (tmp_path / "colours" / name).mkdir(parents=True)
        Image.new("RGB", (32, 32), colour).save(tmp_path / "colours" / name / "1.png")
    gallery = make_gallery("g")
    gallery.add(tmp_path / "colours")
    uses = [gallery.word(word.word) for word in gallery.words()]
    alone = next(use for use in uses if [f.name for f in use.folders] == ["more"])
    assert f"{alone.folders[0].lift:.1f} × as frequent in more" in read(alone).text


def test_a_list_of_words_stays_short(gallery: Gallery) -> None:
    words = gallery.words()
    assert len(words) > MAX_WORDS
    fragment = read(words)
    assert f"{len(words)} words" in fragment.text
    assert f"and {len(words) - MAX_WORDS} more words" in fragment.text
    assert words[MAX_WORDS - 1].label in fragment.text
    assert isinstance(words[2:5], WordList)
    assert "more words" not in read(words[2:5]).text
    assert words[2:5] == list(words)[2:5]
    assert repr(words[:2]) == f"[{words[0]!r},\n {words[1]!r}]"
    assert repr(words).endswith(f",\n ... {len(words) - 10} more]")
    assert (repr(words[:0]), repr(words[:1])) == ("[]", f"[{words[0]!r}]")


def test_the_style_is_limited_to_the_fragment_and_all_of_it_is_used() -> None:
    rules = re.sub(r"/\*.*?\*/", "", STYLE, flags=re.DOTALL).strip()
    inside = rules.removeprefix(".bm25v.bm25v.bm25v {").removesuffix("}")
    assert len(rules) - len(inside) == 21
    selectors = re.findall(r"([^{};]+)\{[^{}]*\}", inside)
    assert not re.search(r"[{}]", re.sub(r"[^{};]+\{[^{}]*\}", "", inside)), "one rule holds all"
    styled = {"bm25v", *re.findall(r"\.([a-z][\w-]*)", " ".join(selectors))}
    notebook, macros = (
        " ".join(
            path.read_text(encoding="utf-8")
            for pattern in patterns
            for path in FOLDER.glob(f"templates/{pattern}")
        )
        for patterns in (["notebook*.html"], ["macros.html", "explained.html"])
    )
    assert styled - set(re.findall(r"[\w-]+", notebook + macros)) == set()
    classes = {
        name for value in re.findall(r'class="([^"{}]*)"', notebook) for name in value.split()
    }
    assert len(classes) > 15
    assert classes - styled == set()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.parametrize("width", [320, 1100])
def test_fragments_fit_and_change_nothing_around_them(
    tab: Browser, gallery: Gallery, photos: Path, tmp_path: Path, width: int
) -> None:
    results = gallery.search(photos / "3.png")
    explanation = gallery.explain(photos / "3.png", photos / "4.png")
    values = (
        results,
        results[0],
        explanation,
        gallery.words(),
        gallery.word(results.query[0].word),
    )
    around = (
        "<p>text <small>small</small> <b>bold</b></p><ol><li>item</ol><dl><dt>term<dd>value</dl>"
    )
    styles = """[...document.querySelectorAll(".around, .around *")].map((element) => {
      const style = getComputedStyle(element);
      return [style.margin, style.padding, style.font, style.color, style.display].join(); })"""
    computed = []
    for shown in ((), values):
        fragments = "".join(value._repr_html_() for value in shown)
        page = tmp_path / "page.html"
        page.write_text(
            f'<!doctype html>{VIEWPORT}<body style="color:#123456">{fragments}'
            f'<div class="around">{around}</div>',
            encoding="utf-8",
        )
        tab.open(page, width=width)
        assert tab.value("document.documentElement.scrollWidth") <= width
        assert [url for url in tab.addresses if not url.startswith("data:")] == [page.as_uri()]
        computed.append(tab.value(styles))
    assert computed[0] == computed[1]
    colour = 'getComputedStyle(document.querySelector(".bm25v .figure span")).color'
    assert tab.value(colour) == "rgb(18, 52, 86)", "text has the colour of the notebook"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_rules_of_a_notebook_do_not_move_a_fragment(
    tab: Browser, gallery: Gallery, photos: Path, tmp_path: Path
) -> None:
    theirs = """.output p:not(.inline), .output figure:not(.inline) { margin: 1em; padding: 1em; }
      .output b { font-size: 2em; }
      .output img { max-width: 100%; height: auto; } .output small { font-size: 2em; }"""
    fragment = gallery.search(photos / "3.png")._repr_html_()
    boxes = """[...document.querySelectorAll(".bm25v *:not(style)")].map((element) => {
      const box = element.getBoundingClientRect();
      return [box.x, box.y, box.width, box.height].map(Math.round).join(); })"""
    computed = []
    for style in ("", theirs):
        page = tmp_path / "page.html"
        page.write_text(f'{VIEWPORT}<style>{style}</style><div class="output">{fragment}</div>')
        tab.open(page)
        computed.append(tab.value(boxes))
    assert len(computed[0]) > 50
    assert computed[0] == computed[1]
