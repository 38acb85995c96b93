"""The web page of the server, in a real browser: each thing that people do with it."""

import io
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from PIL import Image, ImageChops, ImageStat

from bm25v import Gallery
from bm25v.client import to_id
from tests.browser import CHROMIUM, Browser
from tests.conftest import make_image
from tests.http_server import TOKEN, Client, serving, wait_until
from tests.lexicons import save_vocabulary
from tests.test_browser import CONTRASTS
from tests.test_server import SlowBackbone
from tests.test_server_access import run_serve

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

N_IMAGES = 90
HITS = '[...document.querySelectorAll(".hit")].map((hit) => hit.dataset.id)'
CELLS = 'document.querySelectorAll(".cell").length'
LOADED = """[...document.querySelectorAll(`{selector}`)].length > 0 &&
  [...document.querySelectorAll(`{selector}`)].every((img) => img.complete && img.naturalWidth)"""
FILLED = """[...document.querySelectorAll(`{selector}`)].length > 0 &&
  [...document.querySelectorAll(`{selector}`)].every((crop) => crop.style.backgroundImage)"""
MASKED = 'document.querySelectorAll(".photo-box.is-masked").length'
STEPS = '[...document.querySelectorAll(".steps > *")].map((step) => step.textContent)'
TEXT = '(document.querySelector(`{selector}`)?.textContent ?? "")'
SIDEWAYS = "document.documentElement.scrollWidth > innerWidth"


def text_of(selector: str) -> str:
    return TEXT.format(selector=selector)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a gallery of ninety images in two folders."""
    folder = tmp_path_factory.mktemp("page")
    for seed in range(N_IMAGES):
        path = folder / ("first" if seed < 30 else "second") / f"{seed:03}.png"
        path.parent.mkdir(exist_ok=True)
        make_image(seed, side=96).crop((0, 0, 96, 96 if seed % 3 else 64)).save(path)
        os.utime(path, (1e9 - seed, 1e9 - seed))  # the page lists the newest first
    vocabulary = save_vocabulary(folder / "mine.vocab")
    with Gallery.create(folder / "gallery.bm25v", vocabulary=vocabulary) as gallery:
        gallery.add([folder / "first", folder / "second"])
    make_image(1000, side=96).save(folder / "mine.png")
    return folder


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Client]:
    with (
        Gallery.open(folder / "gallery.bm25v") as gallery,
        serving(gallery, folder / "cache", writable=True) as client,
    ):
        yield client


@pytest.fixture
def image(folder: Path) -> str:
    return to_id(str(folder / "first" / "003.png"))


def open_page(tab: Browser, client: Client, query: str = "", **options: Any) -> None:
    tab.open(f"{client.base_url}{query}", **options)
    tab.wait_for(f"{CELLS} || document.querySelector('.hit, .empty-state, dialog[open]') !== null")


def parameters(tab: Browser) -> dict[str, list[str]]:
    return parse_qs(urlsplit(tab.value("location.href")).query)


def search(client: Client, **options: Any) -> list[str]:
    results = client.post("/v1/search", json={"k": 24, **options}).json()
    return [hit["id"] for hit in results["hits"]]


def check_health(tab: Browser, client: Client) -> None:
    """Expect no errors, nothing forbidden, and no request to anybody else."""
    assert tab.errors == []
    assert tab.value("violations") == []
    own = (str(client.base_url), "blob:", "data:")
    assert [address for address in tab.addresses if not address.startswith(own)] == []


def test_the_grid_has_only_the_cells_in_view(tab: Browser, client: Client) -> None:
    open_page(tab, client, width=700, height=400)
    assert "90 images" in tab.wait_for(text_of("main h1"))
    tab.wait_for(LOADED.format(selector=".cell img"))
    first = tab.value(CELLS)
    assert 8 <= first < N_IMAGES / 2
    tab.value("scrollTo(0, document.body.scrollHeight)")
    last = f'.cell[aria-posinset="{N_IMAGES}"] img'
    tab.wait_for(LOADED.format(selector=last))
    assert tab.value(CELLS) < N_IMAGES / 2
    assert not tab.value("document.querySelector('.cell[aria-posinset=\"1\"]')")
    check_health(tab, client)


def find_similar(tab: Browser, cell: str = ".cell a", n: int = 0) -> None:
    """Open a photo of the grid, and search with it."""
    tab.click(cell, n)
    tab.wait_for('document.querySelector("#photo .main-button")')
    for part in ("similar img", "shows :is(button, p)"):  # nothing moves after these
        tab.wait_for(f'document.querySelector("#photo .{part}")')
    tab.click("#photo .main-button")
    tab.wait_for('document.querySelector(".hit")')


def test_an_image_of_the_grid_finds_others(tab: Browser, client: Client) -> None:
    open_page(tab, client)
    find_similar(tab, n=3)
    image = client.ids()[3]
    assert parameters(tab) == {"image": [image]}
    assert tab.value(HITS) == search(client, images=[image])
    tab.wait_for(LOADED.format(selector=".hit img"))
    tab.wait_for(FILLED.format(selector=".chip .crop"))
    check_health(tab, client)


def test_a_text_finds_images_and_says_what_was_understood(tab: Browser, client: Client) -> None:
    open_page(tab, client)
    tab.press("/")
    tab.type("a striped ca")
    tab.wait_for(
        '[...document.querySelectorAll("#terms option")].some((o) => o.value === "a striped cat")'
    )
    tab.type("t")
    tab.press("Enter")
    tab.wait_for('document.querySelector(".hit")')
    assert parameters(tab) == {"text": ["a striped cat"]}
    assert tab.value(HITS) == search(client, text="a striped cat")
    assert tab.value(text_of(".summary h1")) == "Best matches for cat"
    assert tab.value(text_of(".term.is-unknown")) == "striped"
    check_health(tab, client)


def test_hits_of_a_text_have_the_shares_of_its_words(tab: Browser, client: Client) -> None:
    open_page(tab, client, "?text=cat chair")
    (hit, *_) = client.post("/v1/search", json={"text": "cat chair"}).json()["hits"]
    whole = sum(max(0, part["value"]) for part in hit["text"])
    assert whole > 0
    shares = [f"{p['label']} {max(0, p['value']) / whole:.0%}" for p in hit["text"]]
    assert tab.value(text_of(".hit .path b")) == ", ".join(shares)


def test_a_text_that_is_not_understood_leaves_the_page_usable(
    tab: Browser, client: Client, folder: Path
) -> None:
    tab.open(f"{client.base_url}?text=flurb xyzzy&folder={folder / 'first'}")
    assert tab.wait_for(text_of(".summary h1")) == "Nothing known about flurb, xyzzy"
    said = tab.value(text_of("main"))
    assert "“dog on a beach”" in said
    assert "bm25v" not in said, "no command"
    assert tab.value(STEPS) == ["Clear the filter", "Show all images"]
    tab.click(".steps a", 1)
    tab.wait_for(CELLS)
    assert parameters(tab) == {"folder": [str(folder / "first")]}
    check_health(tab, client)


def test_an_explanation_shows_where_each_word_of_a_text_is(tab: Browser, client: Client) -> None:
    text = "a cat and a dog qwerty"
    (hit, *_) = search(client, text=text)
    open_page(tab, client, f"?text={text}&why={hit}")
    tab.wait_for('document.querySelectorAll("#why .map").length === 1')
    explained = client.post("/v1/explain", json={"text": text, "hit": hit}).json()
    rows = '[...document.querySelectorAll("#why .group h3")].map((row) => row.textContent)'
    assert tab.value(rows) == [shown_share(group) for group in explained["groups"]]
    assert tab.value(text_of("#why .lead")) == explained["sentence"]
    assert "not understood: qwerty" in tab.value(text_of("#why .note"))
    mask = 'document.querySelector("#why .map").style.getPropertyValue("--mask")'
    masks = [tab.value(mask)]
    for n in range(2):
        tab.hover("#why .group", n)
        masks.append(tab.wait_for(f"!{masks}.includes({mask}) && {mask}"))
        label = explained["groups"][n]["label"]
        assert tab.value(text_of("#why .status")) == f"Bright: only {label}"
    assert len(explained["words"]) == 8
    assert tab.value('document.querySelectorAll("#why tbody tr").length') >= 8
    check_health(tab, client)


@pytest.mark.parametrize("how", ["drop", "paste", "choose"])
def test_an_own_image_finds_others(tab: Browser, client: Client, folder: Path, how: str) -> None:
    open_page(tab, client)
    own = folder / "mine.png"
    if how == "drop":
        tab.drop(own)
    elif how == "paste":
        tab.paste(own.read_bytes())
    else:
        tab.choose_file("#file", own)
    tab.wait_for('document.querySelector(".hit")')
    expected = client.upload(own.read_bytes(), query='{"k": 24}').json()["hits"]
    assert tab.value(HITS) == [hit["id"] for hit in expected]
    assert "stays in this browser" in tab.value(text_of(".asked .about"))
    tab.hover(".asked .chip")
    tab.wait_for(f"{MASKED} === document.querySelectorAll('.photo-box').length")
    tab.click(".hit .frame")
    tab.wait_for('document.querySelectorAll("#why .map").length === 2')
    tab.open(tab.value("location.href"))
    tab.wait_for('document.querySelectorAll("#why .map").length === 2')
    assert tab.value(HITS) == [hit["id"] for hit in expected], "it is there after a reload"
    check_health(tab, client)


def test_a_file_that_is_no_image_is_refused_in_plain_words(
    tab: Browser, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("not an image")
    open_page(tab, client, "?text=cat")
    before = tab.value(f"[location.href, {HITS}]")
    tab.drop(tmp_path / "notes.txt")
    said = tab.wait_for(text_of("#problem:not([hidden])"))
    assert said.startswith("notes.txt: ")
    assert "image cannot be used" in said
    assert tab.value(f"[location.href, {HITS}]") == before
    tab.click(".hit .frame")
    tab.wait_for('document.querySelector("#problem").hidden')


def test_pointing_at_a_word_shows_it_in_the_query_and_in_every_hit(
    tab: Browser, client: Client, image: str
) -> None:
    open_page(tab, client, f"?image={image}")
    assert tab.value(MASKED) == 0
    for selector in (".asked .chip", ".hit .chip"):
        tab.hover(selector)
        tab.wait_for(f"{MASKED} === 25")
        masks = tab.value(
            """Promise.all([...document.querySelectorAll(".photo-box")].map(async (box) => {
              const address = box.style.getPropertyValue("--mask").slice(4, -1);
              const mask = Object.assign(new Image(), {src: address.replaceAll('"', "")});
              await mask.decode();
              const canvas = new OffscreenCanvas(56, 56).getContext("2d");
              canvas.drawImage(mask, 0, 0);
              return canvas.getImageData(0, 0, 56, 56).data.some((v, i) => i % 4 === 3 && v > 200);
            }))"""
        )
        assert masks[0], "the query has its own word"
        assert sum(masks) > 2
        tab.point_at(2, 2)
        tab.wait_for(f"{MASKED} === 0")
    check_health(tab, client)


@pytest.mark.parametrize(
    ("choice", "parameter"),
    [("Must have", "must"), ("Leave out", "without"), ("More", "boost"), ("Ignore", "boost")],
)
def test_a_detail_changes_the_search(
    tab: Browser, client: Client, image: str, choice: str, parameter: str
) -> None:
    open_page(tab, client, f"?image={image}")
    before = tab.value(HITS)
    tab.click(".asked .chip", 1)
    word = tab.value('Number(document.querySelectorAll(".asked .chip .crop")[1].dataset.word)')
    items = tab.value('[...document.querySelectorAll(".menu-item b")].map((b) => b.textContent)')
    tab.click(".menu-item", items.index(choice))
    tab.wait_for('document.querySelector(".changed")')
    assert tab.value(text_of(".changed small")) == choice
    factor = {"More": 4, "Ignore": 0}.get(choice)
    value: Any = [word] if factor is None else {str(word): factor}
    after = search(client, images=[image], **{parameter: value})
    assert tab.value(HITS) == after != before
    assert parameters(tab)[parameter] == [str(word) if factor is None else f"{word}:{factor}"]
    tab.click(".changed .icon-button")
    tab.wait_for('!document.querySelector(".changed")')
    assert tab.value(HITS) == before
    tab.value("history.back()")
    tab.wait_for('document.querySelector(".changed")')
    assert tab.value(HITS) == after
    check_health(tab, client)


def test_a_box_on_the_query_searches_by_that_part(tab: Browser, client: Client, image: str) -> None:
    open_page(tab, client, f"?image={image}")
    before = tab.value(HITS)
    tab.wait_for(LOADED.format(selector=".asked figure img"))
    box = 'document.querySelector(".asked .photo-box").getBoundingClientRect()'
    x, y, width, height = tab.value(f"(({{x, y, width, height}}) => [x, y, width, height])({box})")
    tab.drag((x + 0.1 * width, y + 0.2 * height), (x + 0.6 * width, y + 0.7 * height))
    tab.wait_for("location.search.includes('region')")
    tab.wait_for('document.querySelector(".query-region:not([hidden])")')
    (region,) = parameters(tab)["region"]
    shares = [float(share) for share in region.split(",")]
    assert shares == pytest.approx([0.1, 0.2, 0.5, 0.5], abs=0.02)
    tab.wait_for(f"{HITS}.join() !== '{','.join(before)}'")
    assert tab.value(HITS) == search(client, images=[image], region=shares)
    check_health(tab, client)


def test_hits_are_marked_as_good_and_bad(tab: Browser, client: Client, image: str) -> None:
    open_page(tab, client, f"?image={image}")
    before = tab.value(HITS)
    good, bad = before[2], before[5]
    tab.click(f'.hit[data-id="{good}"] .icon-button', 0)
    tab.wait_for('document.querySelectorAll(".changed").length === 1')
    assert tab.value(HITS) == search(client, images=[image], like=[good])
    if bad not in tab.value(HITS):
        bad = tab.value(HITS)[5]
    tab.click(f'.hit[data-id="{bad}"] .icon-button', 1)
    tab.wait_for('document.querySelectorAll(".changed").length === 2')
    assert parameters(tab) == {"image": [image], "like": [good], "unlike": [bad]}
    assert tab.value(HITS) == search(client, images=[image], like=[good], unlike=[bad])
    for left in (1, 0):
        tab.click(".changed .icon-button")
        tab.wait_for(f'document.querySelectorAll(".changed").length === {left}')
    assert tab.value(HITS) == before
    check_health(tab, client)


def shown_share(group: dict[str, Any]) -> str:
    """Return what the page writes for a group."""
    return f"{group['label']} {group['percent']}"


def test_more_of_a_group_and_none_of_it_change_the_search(
    tab: Browser, client: Client, image: str
) -> None:
    (_, hit, *_) = search(client, images=[image])
    for choice, factor in ((0, 4), (1, 0)):
        open_page(tab, client, f"?image={image}&why={hit}")
        tab.wait_for('document.querySelectorAll("#why .map").length === 2')
        explained = client.get("/v1/explain", params={"query": image, "hit": hit}).json()
        words = next(group["words"] for group in explained["groups"] if group["kind"] == "words")
        tab.click("#why .actions button", choice)
        tab.wait_for('document.querySelector(".changed")')
        assert sorted(parameters(tab)["boost"]) == sorted(f"{word}:{factor}" for word in words)
        boost = {str(word): float(factor) for word in words}
        assert tab.value(HITS) == search(client, images=[image], boost=boost)
    check_health(tab, client)


def test_a_hit_is_explained_side_by_side(tab: Browser, client: Client, image: str) -> None:
    open_page(tab, client, f"?image={image}")
    tab.click(".hit .frame", 1)
    tab.wait_for('document.querySelectorAll("#why .map").length === 2')
    (hit,) = parameters(tab)["why"]
    expected = client.get("/v1/explain", params={"query": image, "hit": hit, "words": 24}).json()
    lines = tab.value('[...document.querySelectorAll("#why dd")].map((dd) => dd.textContent)')
    assert lines == [line["value"] for line in expected["sum"]]
    rows = '[...document.querySelectorAll("#why .group h3")].map((row) => row.textContent)'
    assert tab.value(rows) == [shown_share(group) for group in expected["groups"]]
    assert tab.value(text_of("#why .lead")) == expected["sentence"]
    words = '[...document.querySelectorAll("#why td:nth-child(2)")].map((td) => td.textContent)'
    assert tab.value(words) == [f"{word['points']:.2f}" for word in expected["words"]]
    assert "word" not in tab.value(text_of("#why .group-list")), "no numbers of words"
    masks = """[...document.querySelectorAll("#why .map")]
      .map((map) => map.style.getPropertyValue("--mask"))"""
    tab.point_at(2, 2)
    all_words = tab.value(masks)
    tab.hover("#why .group h3", 1)
    tab.wait_for(f"{masks}.join() !== {','.join(all_words)!r}")
    label = expected["groups"][1]["label"]
    assert tab.value(text_of("#why .status")) == f"Bright: only {label}"
    tab.click("#why .controls input")
    mask = 'getComputedStyle(document.querySelector("#why .matched")).maskImage'
    assert tab.value(mask) == "none", "the original photos"
    tab.click("#why summary")
    tab.click("#why td a")
    tab.wait_for(FILLED.format(selector="#word .crop"))
    tab.press("Escape")
    tab.wait_for('!document.querySelector("#word").open && document.querySelector("#why").open')
    tab.press("Escape")
    tab.wait_for('!document.querySelector("#why").open')
    assert parameters(tab) == {"image": [image]}
    tab.value("history.forward()")
    tab.wait_for('document.querySelectorAll("#why .map").length === 2')
    check_health(tab, client)


def test_a_word_is_opened_and_named(tab: Browser, client: Client, image: str) -> None:
    open_page(tab, client, f"?image={image}")
    word = tab.value('Number(document.querySelector(".asked .chip .crop").dataset.word)')
    tab.click(".asked .chip")
    tab.click(".menu-item", 4)
    tab.wait_for(FILLED.format(selector="#word .crop"))
    assert parameters(tab) == {"image": [image], "word": [str(word)]}
    assert f"In {client.get(f'/v1/words/{word}').json()['df']} of 90" in tab.value(
        text_of("#word .lead")
    )
    tab.click("#word .naming input")
    tab.type("green <b>corner</b>")
    tab.press("Enter")
    tab.wait_for(f"{text_of('#word-title')} === 'green <b>corner</b>'")
    assert client.get(f"/v1/words/{word}").json()["name"] == "green <b>corner</b>"
    tab.click("#word .companions a")
    tab.wait_for(f"{text_of('#word-title')} !== 'green <b>corner</b>'")
    tab.press("Escape")
    tab.wait_for('!document.querySelector("#word").open')
    assert parameters(tab) == {"image": [image]}, "both words are closed"
    assert tab.wait_for(text_of(f".asked .chip:has([data-word='{word}'])")) == "green <b>corner</b>"
    open_page(tab, client, f"?word={word}")
    tab.wait_for(FILLED.format(selector="#word .crop"))
    tab.click("#word .main-button")
    tab.wait_for('document.querySelector(".hit")')
    assert tab.value(HITS) == search(client, must=[word])
    client.put(f"/v1/words/{word}/name", json={"name": None})
    check_health(tab, client)


def test_a_server_that_is_not_writable_shows_the_command(
    tab: Browser, folder: Path, tmp_path: Path
) -> None:
    with (
        Gallery.open(folder / "gallery.bm25v") as gallery,
        serving(gallery, folder / "cache") as client,
    ):
        word = client.get("/v1/words").json()["words"][0]["word"]
        open_page(tab, client, f"?word={word}")
        command = tab.wait_for(text_of("#word .naming code"))
        assert command.startswith(f"bm25v words name {word} 'NEW NAME' -g ")


def test_filters_are_in_the_address(tab: Browser, client: Client, folder: Path, image: str) -> None:
    open_page(tab, client)
    tab.click("#filter")
    tab.wait_for('document.querySelectorAll("#folder option").length === 3')
    tab.value(
        """(() => { const folder = document.querySelector("#folder"); folder.selectedIndex = 1;
        folder.dispatchEvent(new Event("change")); })()"""
    )
    tab.wait_for(f"{text_of('main h1')} === '30 images'")
    find_similar(tab, n=3)
    assert parameters(tab) == {"image": [image], "folder": [str(folder / "first")]}
    assert tab.value(HITS) == search(client, images=[image], folder=[str(folder / "first")])
    tab.value("history.go(-2)")
    tab.wait_for(f"{text_of('main h1')} === '30 images'")
    tab.click("#no-filter")
    tab.wait_for(f"{text_of('main h1')} === '90 images'")
    open_page(tab, client, "?date=..1999-12-31")
    assert "No image" in tab.wait_for(text_of(".empty-state h1"))
    check_health(tab, client)


def test_a_shared_address_shows_the_same(tab: Browser, client: Client, image: str) -> None:
    open_page(tab, client, f"?image={image}")
    tab.click(".asked .chip", 2)
    tab.click(".menu-item", 2)
    tab.wait_for('document.querySelector(".changed")')
    tab.click(".hit .frame", 4)
    tab.wait_for('document.querySelectorAll("#why .map").length === 2')
    address, hits, title = tab.value(f"[location.href, {HITS}, {text_of('#why-title')}]")
    tab.open("about:blank")
    tab.open(address)
    tab.wait_for('document.querySelectorAll("#why .map").length === 2')
    tab.wait_for('document.querySelector(".hit")')
    assert tab.value(f"[location.href, {HITS}, {text_of('#why-title')}]") == [address, hits, title]
    check_health(tab, client)


def test_back_returns_to_the_same_part_of_the_grid(tab: Browser, client: Client) -> None:
    open_page(tab, client, width=700, height=400)
    tab.value("scrollTo(0, 900)")
    tab.wait_for("document.querySelector('.cell[aria-posinset=\"30\"] a')")
    tab.hover('.cell[aria-posinset="30"] a')
    before = tab.value("scrollY")
    find_similar(tab, '.cell[aria-posinset="30"] a')
    assert tab.value("scrollY") == 0 < before
    tab.value("history.go(-2)")
    tab.wait_for("document.querySelector('.cell[aria-posinset=\"30\"] a')")
    assert tab.value("scrollY") == before


def test_the_keyboard_is_enough(tab: Browser, client: Client) -> None:
    def focused(expression: str) -> Any:
        return tab.value(f"document.activeElement.{expression}")

    def tab_to(selector: str) -> None:
        for _ in range(60):
            tab.press("Tab")
            if focused(f"matches({selector!r})"):
                return
        raise AssertionError(f"Tab never reaches {selector}")

    open_page(tab, client)
    tab_to(".cell a")
    columns = tab.value(
        """[...document.querySelectorAll(".cell")]
        .filter((cell) => cell.style.transform.endsWith(" 0px)")).length"""
    )
    tab.press("ArrowDown")
    tab.press("ArrowRight")
    assert focused("dataset.index") == str(columns + 1)
    tab.press("End")
    assert focused("dataset.index") == str(N_IMAGES - 1)
    tab.press("Home")
    tab.press("Enter")
    tab.wait_for('document.querySelector("#photo .main-button")')
    tab_to("#photo .main-button")
    tab.press("Enter")
    tab.wait_for('document.querySelector(".hit")')
    assert tab.value(HITS) == search(client, images=[client.ids()[0]])
    tab_to(".asked .plain-button")
    tab.press("Enter")
    tab.press("ArrowRight")
    tab.press("ArrowDown", shift=True)
    tab.press("Enter")
    tab.wait_for("location.search.includes('region')")
    assert parameters(tab)["region"] == ["0.3,0.25,0.5,0.55"]
    tab.wait_for('document.querySelector(".asked .row").children.length === 2')
    tab_to(".asked .chip")
    tab.wait_for(f"{MASKED} > 0")
    tab.press("Enter")
    tab.press("ArrowDown")
    assert focused("textContent").startswith("Leave out")
    word = tab.value('document.querySelector(".asked .chip .crop").dataset.word')
    tab.press("Enter")
    tab.wait_for('document.querySelector(".changed")')
    assert focused("dataset.key") == word, "the focus stays at the detail"
    tab_to(".hit .frame")
    tab.press("Enter")
    tab.wait_for('document.querySelectorAll("#why .map").length === 2')
    tab_to("#why .group")
    assert tab.value(text_of("#why .status")).startswith("Bright: only")
    tab.press("Escape")
    tab.wait_for('!document.querySelector("#why").open')
    assert focused("matches('.hit .frame')"), "the focus is where it was"
    check_health(tab, client)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1366])
def test_every_view_fits_and_can_be_read(
    tab: Browser, client: Client, image: str, width: int, dark: bool
) -> None:
    hit = search(client, images=[image])[0]
    word = client.get("/v1/words").json()["words"][0]["word"]
    for query in (
        "",
        f"?image={image}&must={word}&like={hit}",
        "?text=a striped cat",
        f"?image={image}&why={hit}",
        f"?word={word}",
        "?upload=1",
        "?folder=/first&date=2000..",
    ):
        open_page(tab, client, query, width=width, height=844, dark=dark)
        if "why" in query:
            tab.wait_for('document.querySelectorAll("#why .map").length === 2')
        assert not tab.value(SIDEWAYS), query
        low = [entry for entry in tab.value(CONTRASTS) if entry[0] < 4.5]
        assert low == [], query
    check_health(tab, client)


def test_a_finger_is_enough(tab: Browser, client: Client, image: str) -> None:
    open_page(tab, client, f"?image={image}", width=390, height=844)
    tab.touch(*tab.centre(".asked .chip"))
    tab.wait_for('document.querySelector("#word-menu").matches(":popover-open")')
    tab.wait_for(f"{MASKED} > 0")
    tab.touch(*tab.centre(".menu-item", 1))
    tab.wait_for('document.querySelector(".changed")')
    tab.touch(*tab.centre(".asked .plain-button"))
    tab.wait_for(f"{text_of('.asked .plain-button')} === 'Search by this box'")
    tab.touch(*tab.centre(".asked .plain-button"))
    tab.wait_for("location.search.includes('region=0.25%2C0.25%2C0.5%2C0.5')")
    tab.wait_for('document.querySelector(".asked .row").children.length === 2')
    tab.touch(*tab.centre(".hit .frame"))
    tab.wait_for('document.querySelectorAll("#why .map").length === 2')
    check_health(tab, client)


def test_a_server_that_has_gone_is_named_and_asked_again(
    tab: Browser, client: Client, folder: Path, tmp_path: Path
) -> None:
    with (
        Gallery.open(folder / "gallery.bm25v") as gallery,
        serving(gallery, folder / "cache") as gone,
    ):
        open_page(tab, gone)
    tab.click(".cell a")
    assert "Is “bm25v serve” still running?" in tab.wait_for(text_of("#photo .problem"))
    open_page(tab, client)
    offline = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    tab.call("Network.emulateNetworkConditions", offline=True, **offline)
    tab.click(".cell a", 3)
    tab.wait_for(text_of("#photo .problem"))
    assert tab.value(CELLS), "what was there stays"
    tab.call("Network.emulateNetworkConditions", offline=False, **offline)
    tab.click("#photo .problem button")
    tab.wait_for(LOADED.format(selector="#photo .similar img"))


def test_a_busy_server_is_named_and_asked_again(
    tab: Browser, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowBackbone(monkeypatch)
    with (
        Gallery.open(folder / "gallery.bm25v") as gallery,
        serving(gallery, folder / "cache", encoders=1, waiting=0) as client,
    ):
        open_page(tab, client)
        upload = threading.Thread(target=client.upload, args=[(folder / "mine.png").read_bytes()])
        upload.start()
        wait_until(lambda: slow.n_begun)
        tab.drop(folder / "mine.png")
        tab.wait_for('!document.querySelector("#busy").hidden')
        assert "busy" in tab.wait_for(text_of("#problem"))
        slow.go_on.set()
        upload.join(30)
        tab.click("#problem button")
        tab.wait_for('document.querySelector(".hit")')


def test_a_token_is_asked_for_and_kept_in_the_tab(tab: Browser, folder: Path, image: str) -> None:
    with (
        Gallery.open(folder / "gallery.bm25v") as gallery,
        serving(gallery, folder / "cache", access={"token": TOKEN}) as client,
    ):
        tab.open(f"{client.base_url}?image={image}")
        tab.wait_for('document.querySelector("#sign-in").open')
        for given, refused in (("a-wrong-token-of-tests", True), ("wröng", True), (TOKEN, False)):
            tab.value('document.querySelector("#sign-in-problem").textContent = ""')
            tab.value('document.querySelector("#token").value = ""')
            tab.click("#token")
            tab.type(given)
            tab.press("Enter")
            if refused:
                assert "not the right one" in tab.wait_for(text_of("#sign-in-problem"))
        tab.wait_for('document.querySelector(".hit")')
        tab.wait_for(LOADED.format(selector=".hit img"))
        tab.wait_for(FILLED.format(selector=".chip .crop"))
        tab.hover(".asked .chip")
        tab.wait_for(f"{MASKED} === 25")
        tab.click(".hit .frame")
        tab.wait_for('document.querySelectorAll("#why .map").length === 2')
        assert TOKEN not in " ".join(tab.addresses)
        assert tab.value("document.cookie + JSON.stringify(localStorage)") == "{}"
        address = tab.value("location.href")
        tab.open(address)
        tab.wait_for('document.querySelectorAll("#why .map").length === 2')
        check_health(tab, client)


def test_more_hits_are_added(tab: Browser, client: Client, image: str) -> None:
    open_page(tab, client, f"?image={image}")
    tab.click(".more")
    tab.wait_for('document.querySelectorAll(".hit").length === 48')
    expected = client.post("/v1/search", json={"images": [image], "k": 48}).json()["hits"]
    assert tab.value(HITS) == [hit["id"] for hit in expected]


def crop_requests(tab: Browser) -> int:
    return sum(address.endswith("/v1/crops") for address in tab.addresses)


def test_each_view_asks_for_its_crops_once(
    tab: Browser, client: Client, image: str, folder: Path
) -> None:
    open_page(tab, client, f"?image={image}")
    tab.wait_for(FILLED.format(selector=".chip .crop"))
    assert crop_requests(tab) == 1
    tab.click(".asked .chip", 1)
    tab.wait_for(FILLED.format(selector=".menu-head .crop"))
    word = tab.value('Number(document.querySelectorAll(".asked .chip .crop")[1].dataset.word)')
    sheet = client.post("/v1/crops", json={"crops": [{"word": word}], "size": 72}).content
    box = """(({x, y, width, height}) => [x, y, width, height])(
      document.querySelector(".menu-head .crop").getBoundingClientRect())"""
    shown = tab.capture(tab.value(box)).crop((8, 8, 64, 64))
    expected = Image.open(io.BytesIO(sheet)).convert("RGB").crop((8, 8, 64, 64))
    difference = ImageStat.Stat(ImageChops.difference(shown, expected)).mean
    assert max(difference) < 8, "the menu shows this word and no other"
    tab.press("Escape")
    tab.click(".more")
    tab.wait_for('document.querySelectorAll(".hit").length === 48')
    tab.wait_for(FILLED.format(selector=".chip .crop"))
    assert crop_requests(tab) == 2
    tab.click(".hit .frame")
    tab.wait_for('document.querySelectorAll("#why .map").length === 2')
    tab.click("#why summary")
    tab.click("#why td a")
    tab.wait_for(FILLED.format(selector="#word .crop"))
    assert crop_requests(tab) == 3
    check_health(tab, client)


# When the hits were there, and when all photos in view were.
TIMES = """window.times = {};
(function look() {
  const photos = [...document.querySelectorAll(".hit img")].filter(
    (img) => img.getBoundingClientRect().top < innerHeight);
  if (photos.length) times.hits ??= performance.now();
  if (photos.length && photos.every((img) => img.complete && img.naturalWidth))
    times.photos ??= performance.now();
  setTimeout(look, 20);
})();"""


def test_the_first_search_after_an_installation_shows_its_photos_at_once(
    tab: Browser, folder: Path, tmp_path: Path
) -> None:
    environment = {
        "NUMBA_CACHE_DIR": str(tmp_path / "numba"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    gallery = Gallery.open(folder / "gallery.bm25v")
    with gallery, run_serve(gallery, "--port", "0", environment=environment) as server:
        assert server.stdout is not None
        url = server.stdout.readline().split()[3]
        script = tab.call("Page.addScriptToEvaluateOnNewDocument", source=TIMES)
        try:
            tab.open(f"{url}?image={to_id(str(folder / 'first' / '003.png'))}")
            assert tab.wait_for(text_of("#preparing:not([hidden])")).startswith("Getting ready")
            tab.wait_for("times.photos")
            times = tab.value("times")
            assert times["photos"] - times["hits"] < 2000
            tab.wait_for(FILLED.format(selector=".chip .crop"))
            assert crop_requests(tab) == 1
            assert tab.value('!document.querySelector("#preparing").hidden'), "it compiles still"
            tab.wait_for('document.querySelector("#preparing").hidden', seconds=120)
        finally:
            tab.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script["identifier"])
            server.terminate()


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script of axe-core, which checks rules of accessibility."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed, so axe-core cannot be had")
    folder = tmp_path_factory.mktemp("axe")
    install = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder)]
    try:
        subprocess.run([*install, "axe-core@4"], check=True, timeout=60, capture_output=True)
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"axe-core cannot be had: {error}")
    return (folder / "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing(
    tab: Browser, client: Client, folder: Path, image: str, axe: str, dark: bool
) -> None:
    hit = search(client, images=[image])[0]
    word = client.get("/v1/words").json()["words"][0]["word"]
    menu = 'document.querySelector(".asked .chip").click()'
    for query, more in (
        ("", ""),
        (f"?image={image}&must={word}&like={hit}&folder={folder}/second", ""),
        (f"?image={image}", menu),
        (f"?image={image}&why={hit}", ""),
        (f"?word={word}", ""),
        ("?text=cat&date=2000..", ""),
    ):
        open_page(tab, client, query, dark=dark)
        if "why" in query:
            tab.wait_for('document.querySelectorAll("#why .map").length === 2')
        if more:
            tab.value(more)
        tab.value(axe + ";0")
        found = tab.value(
            """axe.run(document, {resultTypes: ["violations"]}).then(({violations}) => violations
            .map((v) => [v.id, v.nodes.slice(0, 3).map((node) => node.html.slice(0, 160))]))"""
        )
        assert found == [], query
