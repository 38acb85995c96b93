"""Browsing in the web page: months, folders, photos, words and duplicates, in a real browser."""

import json
import os
import shutil
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from bm25v import Gallery
from bm25v.client import to_id
from tests.browser import CHROMIUM, Browser
from tests.conftest import make_image
from tests.http_server import TOKEN, Client, serving, wait_until
from tests.lexicons import save_vocabulary
from tests.test_browser import CONTRASTS
from tests.test_duplicates import make_photo
from tests.test_server_page import (
    CELLS,
    FILLED,
    LOADED,
    SIDEWAYS,
    axe,
    check_health,
    open_page,
    parameters,
    text_of,
)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
__all__ = ["axe"]  # a fixture

N_IMAGES = 450  # more than two blocks of the grid
MONTHS = 15  # of which each has as many images
NEIGHBOURS = """["before", "after"].map((kind) => document.querySelector(`#photo .${kind}`)
  ?.getAttribute("href")?.match(/photo=([^&]*)/)[1] ?? null)"""
IN_VIEW = """[...document.querySelectorAll(".cell")].filter((cell) => {
  const box = cell.getBoundingClientRect(); return box.top >= 70 && box.bottom <= innerHeight; })
  .map((cell) => Number(cell.getAttribute("aria-posinset")) - 1)"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gallery of many images, one month after the other, in three folders."""
    folder = tmp_path_factory.mktemp("browse")
    for seed in range(N_IMAGES):
        name = ("sea", "sea/deep", "land")[seed % 3]
        path = folder / name / f"{seed:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        make_image(seed, side=48).save(path)
        month, day = divmod(seed, N_IMAGES // MONTHS)
        date = datetime(2020 + month // 12, month % 12 + 1, 1 + day % 28, 12, seed % 60)
        os.utime(path, (moment := time.mktime(date.timetuple()), moment))
    vocabulary = save_vocabulary(folder / "mine.vocab")
    with Gallery.create(folder / "gallery.bm25v", vocabulary=vocabulary) as gallery:
        gallery.add([folder / "sea", folder / "land"])
    return folder


@pytest.fixture(scope="module")
def gallery(folder: Path) -> Iterator[Gallery]:
    with Gallery.open(folder / "gallery.bm25v") as gallery:
        yield gallery


@pytest.fixture(scope="module")
def client(gallery: Gallery, folder: Path) -> Iterator[Client]:
    with serving(gallery, folder / "cache", writable=True) as client:
        yield client


@pytest.fixture(scope="module")
def ids(client: Client) -> list[str]:
    """All images, newest first."""
    page = client.get("/v1/images?order=date&limit=1000").json()
    return [image["id"] for image in page["images"]]


def test_a_month_is_a_click_away_and_the_grid_stays_small(
    tab: Browser, client: Client, ids: list[str]
) -> None:
    open_page(tab, client, width=1366, height=768)
    assert tab.value(text_of(".cell .month")) == "Mar 2021"
    first = 'document.querySelector(".cell a").getAttribute("href")'
    assert tab.value(first).endswith(ids[0])
    years = '[...document.querySelectorAll(".months section > button")].map((b) => b.textContent)'
    assert tab.value(years) == ["2021 90", "2020 360"]
    current = text_of(".months [aria-current]")
    assert tab.value(current) == "Mar 30"
    tab.click(".months section > button", 1)
    assert tab.wait_for(f"{current} === 'Dec 30' && {current}")
    assert 90 in tab.value(IN_VIEW)
    tab.click(".is-open div button", 9)
    start = 90 + 9 * 30
    tab.wait_for(f"{current} === 'Mar 30' && {IN_VIEW}.includes({start})")
    tab.wait_for(LOADED.format(selector=f'.cell[aria-posinset="{start + 1}"] img'))
    assert tab.value(CELLS) < N_IMAGES / 4
    tab.value("scrollTo({top: 0, behavior: 'instant'})")
    tab.wait_for(f"{current} === 'Mar 30' && {text_of('.is-open > button')}.startsWith('2021')")
    check_health(tab, client)


def test_on_a_phone_months_and_folders_are_menus(tab: Browser, client: Client) -> None:
    open_page(tab, client, width=390, height=844)
    shown = '[...document.querySelectorAll(".browser > nav")].some((nav) => nav.checkVisibility())'
    assert not tab.value(shown)
    menu = 'document.querySelector(".menus select[aria-label=Month]")'
    tab.value(f"{menu}.selectedIndex = 8; {menu}.dispatchEvent(new Event('change'))")
    tab.wait_for(f"{IN_VIEW}.includes(240)")
    assert tab.value(f"{menu}.selectedOptions[0].textContent") == "Jul 2020 (30)"
    assert tab.value(f"{menu}.getBoundingClientRect().top") < 100, "it stays in view"
    check_health(tab, client)


def test_a_folder_is_a_filter_and_shows_what_is_in_it(
    tab: Browser, client: Client, folder: Path
) -> None:
    open_page(tab, client, width=1366, height=768)
    tree = '[...document.querySelectorAll(".folder-tree a")].map((a) => a.textContent)'
    assert tab.value(tree) == ["All folders", "land150", "sea300"]
    tab.click(".folder-tree a", 2)
    tab.wait_for(f"{text_of('main h1')} === '300 images'")
    assert parameters(tab) == {"folder": [str(folder / "sea")]}
    assert tab.value(tree) == ["All folders", "land150", "sea300", "deep150"]
    assert tab.value('document.querySelector(".folder-tree a:last-child").title') == str(
        folder / "sea" / "deep"
    )
    assert tab.value(text_of(".months section > button")) == "2021 60"
    tab.click(".folder-tree a", 0)
    tab.wait_for(f"{text_of('main h1')} === '450 images'")
    check_health(tab, client)


@pytest.mark.parametrize("index", [0, 199, 200, 437, N_IMAGES - 1])
def test_photos_have_their_neighbours_also_beyond_what_was_loaded(
    tab: Browser, client: Client, ids: list[str], index: int
) -> None:
    open_page(tab, client, f"?photo={ids[index]}")
    around = [ids[index - 1] if index else None, ids[index + 1] if index + 1 < N_IMAGES else None]
    tab.wait_for(f"JSON.stringify({NEIGHBOURS}) === {json.dumps(around, separators=(',', ':'))!r}")
    key, other = ("ArrowLeft", index - 1) if index else ("ArrowRight", 1)
    tab.press(key)
    tab.wait_for(f"location.search.endsWith({ids[other]!r})")
    tab.wait_for(f"{NEIGHBOURS}.includes({ids[index]!r})")
    check_health(tab, client)


def test_the_grid_follows_the_photo_that_is_open(
    tab: Browser, client: Client, ids: list[str]
) -> None:
    open_page(tab, client, width=700, height=400)
    tab.click(".cell a")
    for index in range(1, 40):
        tab.wait_for(f"{NEIGHBOURS}[1] === {ids[index]!r}")
        tab.press("ArrowRight")
    tab.wait_for(f"{NEIGHBOURS}[1] === {ids[40]!r}")
    tab.press("Escape")
    tab.wait_for('!document.querySelector("#photo").open')
    tab.wait_for(f"{IN_VIEW}.includes(39)")
    assert parameters(tab) == {}
    check_health(tab, client)


def test_a_photo_is_zoomed_and_its_groups_stay_bright_after_a_tap(
    tab: Browser, client: Client, ids: list[str]
) -> None:
    open_page(tab, client, f"?photo={ids[5]}", width=390, height=844)
    tab.wait_for('document.querySelector("#photo .shown-groups button")')
    tab.touch(*tab.centre("#photo .shown-groups button"))
    tab.wait_for('document.querySelector("#photo .map.is-lit")')
    label = tab.value(text_of("#photo .shown-groups button"))
    assert tab.value(text_of("#photo .shown-groups [aria-pressed=true]")) == label
    assert tab.value(text_of("#photo .shown-groups a")) == f"Search for “{label}”"
    tab.touch(*tab.centre("#photo .shown-groups button"))
    tab.wait_for('!document.querySelector("#photo .map.is-lit")')
    fitted = tab.value('document.querySelector("#photo .map").clientWidth')
    tab.click("#photo .zoom")
    tab.wait_for(f'document.querySelector("#photo .zoomed img")?.clientWidth >= {2 * fitted}')
    tab.click("#photo .zoom")
    tab.wait_for('document.querySelector("#photo .map")')
    check_health(tab, client)


def test_a_photo_whose_file_is_missing_says_so_and_can_be_removed(
    tab: Browser, client: Client, gallery: Gallery, folder: Path
) -> None:
    path = folder / "land" / "new.png"
    make_image(999, side=48).save(path)
    gallery.add(path)
    path.unlink()
    address = f"?photo={to_id(str(path))}"
    with serving(gallery, folder / "cache") as reader:
        open_page(tab, reader, address)
        tab.wait_for(f"{text_of('#photo .note')}.includes('The file is missing')")
        assert tab.value(text_of("#photo .note code")).startswith(f"bm25v remove {path} -g ")
        assert tab.value(text_of("#photo .photo-facts code")) == str(path)
        assert not tab.value("document.querySelector('#photo [download], #photo .zoom')")
    open_page(tab, client, address)
    tab.wait_for('document.querySelector("#photo .note button")')
    assert tab.value(text_of("main h1")) == f"{N_IMAGES + 1} images"
    tab.click("#photo .note button")
    tab.wait_for(f"{text_of('main h1')} === '{N_IMAGES} images'")
    assert not tab.value('document.querySelector("#photo").open')
    check_health(tab, client)


CARDS = """[...document.querySelectorAll(".word-card")].map((card) =>
  Number(new URLSearchParams(card.getAttribute("href").split("?")[1]).get("word")))"""


def test_words_are_browsed_searched_and_renamed(
    tab: Browser, client: Client, gallery: Gallery
) -> None:
    by_df = [word.word for word in gallery.words(sort="df")]
    ears = [by_df[4], by_df[30], by_df[60]]
    gallery.name_words(dict.fromkeys(ears, "striped ear"))
    open_page(tab, client)
    tab.click(".pages a")
    tab.wait_for(f"{CARDS}.length === 48")
    assert tab.value(CARDS)[:3] == ears, "named ones first"
    assert tab.value(text_of(".word-card b")) == "striped ear"
    tab.wait_for(FILLED.format(selector=".word-card .crop"))
    tab.click(".more")
    tab.wait_for(f"{CARDS}.length === 96")
    tab.click(".choices a", 1)
    tab.wait_for(f"{CARDS}[0] === {by_df[0]}")
    assert tab.value(CARDS) == by_df[:48]
    tab.click(".list-head input")
    tab.type("EAR")
    tab.wait_for(f"{CARDS}.length === 3")
    assert parameters(tab) == {"page": ["words"], "name": ["EAR"], "sort": ["df"]}
    tab.click(".word-card", 1)
    title = text_of("#word-title")
    tab.wait_for(f"{title} === 'striped ear'")
    tab.wait_for(f"{text_of('#word .lead')}.includes('no. {ears[1]}')")
    assert "Others named striped ear" in tab.value(text_of("#word"))
    tab.press("ArrowRight")
    tab.wait_for(f"{text_of('#word .lead')}.includes('no. {ears[2]}')")
    assert tab.value('document.querySelectorAll("#word .neighbours a").length') == 1, "the last"
    tab.click("#word .neighbours a")
    tab.wait_for(f"{text_of('#word .lead')}.includes('no. {ears[1]}')")
    tab.value('document.querySelector("#word .naming input").value = ""')
    tab.click("#word .naming input")
    tab.type("tail")
    tab.press("Enter")
    tab.wait_for(f"{title} === 'tail'")
    tab.press("Escape")
    tab.wait_for(f"{CARDS}.length === 2")
    check_health(tab, client)
    gallery.name_words(dict.fromkeys(ears))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Copies: two with one content and a larger version of these; and two of another photo."""
    photos = tmp_path / "home" / "photos"
    photos.mkdir(parents=True)
    make_photo(2).save(photos / "photo.png")
    shutil.copy(photos / "photo.png", photos / "copy.png")
    make_photo(2).resize((480, 360), Image.Resampling.BICUBIC).save(photos / "large.png")
    make_photo(5).save(photos / "other.png")
    shutil.copy(photos / "other.png", photos / "other-copy.png")
    return photos


GROUPS = """[...document.querySelectorAll(".duplicates")].map((group) =>
  [...group.querySelectorAll(":scope > ol code")].map((c) => c.textContent.split("/").pop()))"""


def test_duplicates_are_moved_to_the_trash_and_it_is_said_where(
    tab: Browser, photos: Path, tmp_path: Path
) -> None:
    trash = tmp_path / "home" / ".bm25v-trash"
    with Gallery.create(tmp_path / "home" / "g", vocabulary="toy") as gallery:
        gallery.add(photos)
        with serving(gallery, tmp_path / "cache", writable=True) as client:
            open_page(tab, client)
            tab.click(".pages a", 1)
            tab.wait_for(f"{GROUPS}.length === 2")
            groups = tab.value(GROUPS)
            large = next(i for i, group in enumerate(groups) if group[0] == "large.png")
            assert sorted(map(len, groups)) == [2, 3]
            assert tab.value(text_of(".is-best .verdict")) == "Keep"
            buttons = f".duplicates:nth-child({large + 1})"
            assert tab.value(f"document.querySelectorAll('{buttons} li button.small').length") == 2
            tab.click(f"{buttons} li button.small", 1)
            tab.wait_for(f"{GROUPS}[{large}].length === 2")
            moved = trash / groups[large][2]
            assert tab.value(text_of(f"{buttons} .moved code")) == str(moved)
            assert moved.exists()
            tab.click(f"{buttons} > .row button")
            tab.wait_for(f"{GROUPS}[{large}].length === 1")
            assert sorted(os.listdir(trash)) == ["copy.png", "log.jsonl", "photo.png"]
            assert (photos / "large.png").exists()
            tab.click(".choices a", 1)
            tab.wait_for(f"{GROUPS}.length === 1 && {GROUPS}[0].length === 2")
            (photos / groups[1 - large][1]).unlink()
            tab.click(".duplicates > .row button")
            assert "nothing was moved" in tab.wait_for(text_of(".duplicates .no-match"))
            tab.click(".list-head button")
            tab.wait_for(f"{text_of('main h1')} === '0 groups'")
            assert "1 image whose files are missing" in tab.value(text_of("main .hint"))
            check_health(tab, client)


def test_duplicates_of_a_server_that_only_reads_are_shown_with_their_paths(
    tab: Browser, photos: Path, tmp_path: Path
) -> None:
    with Gallery.create(tmp_path / "home" / "g", vocabulary="toy") as gallery:
        gallery.add(photos)
        with serving(gallery, tmp_path / "cache", access={"token": TOKEN}) as client:
            tab.open(f"{client.base_url}?page=duplicates")
            tab.wait_for('document.querySelector("#sign-in").open')
            assert "takes minutes" in tab.value(text_of("main .hint"))
            tab.click("#token")
            tab.type(TOKEN)
            tab.press("Enter")
            tab.wait_for(f"{GROUPS}.length === 2")
            tab.wait_for(LOADED.format(selector=".duplicates img"))
            texts = '[...document.querySelectorAll(".duplicates button")].map((b) => b.textContent)'
            assert set(tab.value(texts)) == {"Copy"}
            assert "--writable" in tab.value(text_of("main .hint"))
            check_health(tab, client)


SMALL = """[...document.querySelectorAll("a, button, select, input")]
  .filter((e) => e.checkVisibility() && !e.closest(".skip, [hidden], .ask"))
  .map((e) => [e, e.getBoundingClientRect()])
  .filter(([e, box]) => box.height && (box.height < 44 || box.width < 44)
    && !(e.closest("dialog[open]") ? false : document.querySelector("dialog[open]")))
  .map(([e, box]) => [e.outerHTML.slice(0, 120), box.width, box.height])"""


def list_views(client: Client, ids: list[str]) -> dict[str, str]:
    """Return the views of this file, each with what is there once it is complete."""
    word = client.get("/v1/words?sort=df").json()["words"][0]["word"]
    return {
        "": ".cell a",
        f"?photo={ids[3]}": "#photo .shown-groups button, #photo .shows p",
        "?page=words": ".word-card",
        f"?page=words&word={word}": "#word .companions a",
        "?page=duplicates": ".list-head button",
        "nothing": ".empty-state a",
    }


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1366])
def test_every_view_of_browsing_fits_and_can_be_read_and_touched(
    tab: Browser, client: Client, ids: list[str], width: int, dark: bool
) -> None:
    for address, complete in list_views(client, ids).items():
        tab.open(f"{client.base_url}{address}", width=width, height=844, dark=dark)
        tab.wait_for(f"document.querySelector({complete!r})")
        assert not tab.value(SIDEWAYS), address
        assert [entry for entry in tab.value(CONTRASTS) if entry[0] < 4.5] == [], address
        if width == 390:
            assert tab.value(SMALL) == [], address
        check_health(tab, client)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_in_views_of_browsing(
    tab: Browser, client: Client, ids: list[str], axe: str, dark: bool
) -> None:
    for address, complete in list_views(client, ids).items():
        tab.open(f"{client.base_url}{address}", dark=dark)
        tab.wait_for(f"document.querySelector({complete!r})")
        tab.value(axe + ";0")
        found: Any = tab.value(
            """axe.run(document, {resultTypes: ["violations"]}).then(({violations}) => violations
            .map((v) => [v.id, v.nodes.slice(0, 3).map((node) => node.html.slice(0, 160))]))"""
        )
        assert found == [], address


def test_an_unknown_address_leads_home(tab: Browser, client: Client) -> None:
    tab.open(f"{client.base_url}nothing")
    tab.wait_for("document.querySelector('main h1')")
    assert tab.value(text_of("main h1")) == "There is no page at this address"
    tab.click(".empty-state a")
    wait_until(lambda: tab.value("location.pathname === '/'"))
    tab.wait_for(CELLS)
    check_health(tab, client)
