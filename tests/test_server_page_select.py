"""Collecting images in the web page: select, download, copy, name."""

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bm25v import Gallery
from tests import test_server_page
from tests.browser import CHROMIUM, Browser
from tests.http_server import TOKEN, Client, serving, wait_until
from tests.test_browser import CONTRASTS
from tests.test_server_page import (
    HITS,
    LOADED,
    SIDEWAYS,
    check_health,
    open_page,
    parameters,
    search,
    text_of,
)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

folder, client = test_server_page.folder, test_server_page.client
image, axe = test_server_page.image, test_server_page.axe

SELECTED = 'JSON.parse(sessionStorage.getItem("bm25v-selection")).map(([id]) => id)'
MARKED = """[...document.querySelectorAll(".is-selected .check[aria-checked=true]")].length"""
BAR = "#selection:not([hidden])"
DOWNLOAD, COPY, NAME, CLEAR = 1, 2, 3, 4  # buttons of the bar


@pytest.fixture(autouse=True)
def nothing_selected(tab: Browser, client: Client) -> Iterator[None]:
    tab.open(f"{client.base_url}static/icon.svg")
    tab.value("sessionStorage.clear()")
    yield


def click_bar(tab: Browser, button: int) -> None:
    tab.wait_for(f"!document.querySelectorAll('{BAR} button')[{button}].hidden")
    tab.click(f"{BAR} button", button)


def shift_click(tab: Browser, selector: str, n: int) -> None:
    x, y = tab.centre(selector, n)
    for kind in ("mousePressed", "mouseReleased"):
        button: dict[str, Any] = {"button": "left", "clickCount": 1, "modifiers": 8}
        tab.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)


def count_selected(tab: Browser, n: int) -> None:
    tab.wait_for(f"{text_of(f'{BAR} button')}.startsWith('{n} selected')")


def test_images_are_selected_one_by_one_and_as_a_range(tab: Browser, client: Client) -> None:
    open_page(tab, client, width=700, height=400)
    assert tab.value("document.querySelector('#selection').hidden")
    ids = client.ids()
    tab.click(".cell .check", 3)
    shift_click(tab, ".cell .check", 1)
    count_selected(tab, 3)
    tab.click(".cell .check", 2)
    count_selected(tab, 2)
    assert sorted(tab.value(SELECTED)) == sorted([ids[1], ids[3]])
    assert tab.value(MARKED) == 2
    tab.value("scrollTo(0, document.body.scrollHeight)")
    tab.wait_for("document.querySelector('.cell[aria-posinset=\"90\"] .check')")
    assert not tab.value("document.querySelector('.cell[aria-posinset=\"50\"] .check')")
    shift_click(tab, '.cell[aria-posinset="90"] .check', 0)
    count_selected(tab, 89)
    assert sorted(tab.value(SELECTED)) == sorted(ids[1:]), "also those not in view"
    check_health(tab, client)


def test_the_keyboard_selects_and_opens_nothing(tab: Browser, client: Client) -> None:
    open_page(tab, client)
    tab.value("document.querySelector('.cell a').focus()")
    tab.press(" ")
    count_selected(tab, 1)
    for _ in range(3):
        tab.press("ArrowRight")
    tab.press(" ", shift=True)
    count_selected(tab, 4)
    tab.press(" ")
    count_selected(tab, 3)
    assert tab.value(SELECTED) == client.ids()[:3]
    assert parameters(tab) == {}
    check_health(tab, client)


def test_a_selection_survives_searches_and_reloading(
    tab: Browser, client: Client, image: str
) -> None:
    open_page(tab, client)
    tab.click(".cell .check", 0)
    open_page(tab, client, f"?image={image}")
    hits = tab.value(HITS)
    tab.click(".hit .check", 1)
    shift_click(tab, ".hit .check", 3)
    count_selected(tab, 4)
    tab.click(".hit .icon-button[aria-label^=Search]", 2)
    tab.wait_for(f"location.search === '?image={hits[2]}'")
    assert tab.value(SELECTED) == [client.ids()[0], *hits[1:4]]
    tab.click(f"{BAR} button")
    tab.wait_for(LOADED.format(selector="#selected img"))
    tab.click("#selected .icon-button", 1)
    tab.press("Escape")
    count_selected(tab, 3)
    assert tab.value(SELECTED) == [client.ids()[0], *hits[2:4]]
    click_bar(tab, CLEAR)
    tab.wait_for("document.querySelector('#selection').hidden")
    assert tab.value(SELECTED) == []
    assert tab.value(MARKED) == 0
    check_health(tab, client)


def test_a_selection_is_downloaded_with_a_token_that_no_address_has(
    tab: Browser, folder: Path, tmp_path: Path
) -> None:
    tab.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    with (
        Gallery.open(folder / "gallery.bm25v") as gallery,
        serving(gallery, folder / "cache", access={"token": TOKEN}) as client,
    ):
        tab.open(str(client.base_url))
        tab.wait_for('document.querySelector("#sign-in").open')
        tab.click("#token")
        tab.type(TOKEN)
        tab.press("Enter")
        tab.wait_for("document.querySelector('.cell img')")
        tab.click(".cell .check", 0)
        tab.click(".cell .check", 2)
        click_bar(tab, DOWNLOAD)
        assert "Downloaded" in tab.wait_for(
            f"{text_of('.said')}.startsWith('Downloaded') && {text_of('.said')}"
        )
        wait_until((tmp_path / "images.zip").exists)
        with zipfile.ZipFile(tmp_path / "images.zip") as archive:
            content = {name: archive.read(name) for name in archive.namelist()}
        first = folder / "first"
        assert content == {f"{n:03}.png": (first / f"{n:03}.png").read_bytes() for n in (0, 2)}
        assert tab.value("document.querySelectorAll('#selection button')[3].hidden"), "only reads"
        assert TOKEN not in " ".join(tab.addresses)
        check_health(tab, client)


def test_paths_are_copied(tab: Browser, client: Client, folder: Path) -> None:
    open_page(tab, client)
    tab.value("navigator.clipboard.writeText = async (text) => void (window.copied = text)")
    tab.click(".cell .check", 0)
    tab.click(".cell .check", 2)
    click_bar(tab, COPY)
    tab.wait_for(f"{text_of('.said')} === '2 paths copied'")
    paths = [folder / "first" / name for name in ("000.png", "002.png")]
    assert tab.value("copied") == "\n".join(map(str, paths))
    check_health(tab, client)


def test_a_selection_is_named_and_a_text_finds_it(tab: Browser, client: Client) -> None:
    open_page(tab, client)
    tab.click(".cell .check", 1)
    tab.click(".cell .check", 4)
    click_bar(tab, NAME)
    tab.wait_for("document.activeElement.matches('#selected input')")
    tab.type("the")
    tab.press("Enter")
    tab.wait_for(f"{text_of('#selected .no-match')}.includes('add one')")
    tab.value("document.activeElement.select()")
    tab.type("Anna's birthday")
    tab.press("Enter")
    tab.wait_for("!document.querySelector('#selected').open")
    assert tab.value(text_of(".said")) == "“Anna's birthday” is the name of 2 images now."
    tab.click(".said a")
    tab.wait_for("document.querySelectorAll('.hit').length === 2")
    chosen = [client.ids()[n] for n in (1, 4)]
    assert tab.value(HITS) == search(client, text="annas birthdays") == chosen
    assert "a name that people gave" in tab.value(text_of("main h1"))
    click_bar(tab, NAME)
    tab.wait_for("document.querySelector('.given-names')")
    tab.click(".given-names button")
    tab.wait_for(f"{text_of('.given-names button')}.startsWith('Really')")
    tab.click(".given-names button")
    tab.wait_for("!document.querySelector('.given-names li')")
    assert client.get("/v1/names").json() == {"names": []}
    check_health(tab, client)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1366])
def test_the_bar_and_its_dialogs_fit_and_can_be_read(
    tab: Browser, client: Client, image: str, width: int, dark: bool
) -> None:
    open_page(tab, client, f"?image={image}", width=width, height=844, dark=dark)
    tab.touch(*tab.centre(".hit .check"))
    count_selected(tab, 1)
    for button, shown in ((None, BAR), (0, "#selected img"), (NAME, "#selected input")):
        if button is not None:
            click_bar(tab, button)
        tab.wait_for(f"document.querySelector('{shown}')")
        assert not tab.value(SIDEWAYS), shown
        assert [entry for entry in tab.value(CONTRASTS) if entry[0] < 4.5] == [], shown
        tab.press("Escape")
    check_health(tab, client)


def test_axe_finds_nothing_in_the_bar_and_its_dialogs(
    tab: Browser, client: Client, image: str, axe: str
) -> None:
    open_page(tab, client, f"?image={image}")
    tab.click(".hit .check", 0)
    for button in (None, 0, NAME):
        if button is not None:
            click_bar(tab, button)
            tab.wait_for("document.querySelector('#selected').open")
        tab.value(axe + ";0")
        found = tab.value(
            """axe.run(document, {resultTypes: ["violations"]}).then(({violations}) => violations
            .map((v) => [v.id, v.nodes.slice(0, 3).map((node) => node.html.slice(0, 160))]))"""
        )
        assert found == [], button
        tab.press("Escape")
