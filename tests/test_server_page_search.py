"""The search view of the web page, in a real browser: the parts of a query, and what changes it."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bm25v import Gallery
from bm25v.explain.heatmaps import make_mask
from tests.browser import CHROMIUM, Browser
from tests.conftest import make_image
from tests.http_server import Client, serving
from tests.lexicons import save_vocabulary
from tests.test_server_page import (
    CELLS,
    FILLED,
    HITS,
    LOADED,
    MASKED,
    STEPS,
    check_health,
    client,  # noqa: F401 - a fixture, as those below
    folder,  # noqa: F401
    image,  # noqa: F401
    open_page,
    parameters,
    search,
    text_of,
)

# ruff: noqa: F811 - fixtures

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

MENU = '[...document.querySelectorAll(".menu-item")].map((item) => item.textContent)'
CHIPS = '[...document.querySelectorAll(".asked .chip")].map((chip) => chip.textContent)'
CHANGES = '[...document.querySelectorAll(".changed")].map((line) => line.textContent)'


def type_text(tab: Browser, text: str) -> None:
    tab.value('document.querySelector("#text").value = ""')
    tab.click("#text")
    tab.type(text)
    tab.press("Enter")


def choose(tab: Browser, verb: str, chip: int = 0) -> None:
    """Choose from the menu of a chip of the query."""
    tab.click(".asked .chip", chip)
    tab.wait_for(f"{MENU}.length && !{MENU}.join().includes('…')")
    position = [item.startswith(verb) for item in tab.value(MENU)].index(True)
    tab.click(".menu-item", position)


@pytest.fixture
def named(client: Client, image: str) -> Iterator[list[int]]:
    """The two strongest words of an image, which have one name."""
    query = {"images": [image], "words": 8}
    words = [w["word"] for w in client.post("/v1/search", json=query).json()["query"][:2]]
    for word in words:
        client.put(f"/v1/words/{word}/name", json={"name": "striped ear"})
    yield words
    for word in words:
        client.put(f"/v1/words/{word}/name", json={"name": None})


def test_a_text_beside_an_image_keeps_the_image(tab: Browser, client: Client, image: str) -> None:
    open_page(tab, client, f"?image={image}")
    type_text(tab, "cat")
    tab.wait_for("location.search.includes('text=cat')")
    tab.wait_for(f"{text_of('.query-text span')} === '“cat”'")
    assert parameters(tab) == {"image": [image], "text": ["cat"]}
    assert (
        tab.value(HITS)
        == search(client, images=[image], text="cat")
        != search(client, images=[image])
    )
    assert tab.value(text_of("main h1")) == "Best matches for your image and cat"
    tab.click(".query-images .remove")
    tab.wait_for("!location.search.includes('image')")
    tab.wait_for('!document.querySelector(".query-images")')
    assert tab.value(HITS) == search(client, text="cat")
    tab.click(".query-text .remove")
    tab.wait_for(CELLS)
    assert parameters(tab) == {}, "nothing is left of the query"
    tab.value("history.go(-2)")
    tab.wait_for('document.querySelector(".query-images") && document.querySelector(".query-text")')
    tab.click(".query-text .remove")
    tab.wait_for('!document.querySelector(".query-text")')
    assert parameters(tab) == {"image": [image]}
    check_health(tab, client)


def test_a_query_has_several_images(tab: Browser, client: Client, folder: Path, image: str) -> None:
    open_page(tab, client, f"?image={image}&region=0,0,0.5,0.5")
    other = tab.value(HITS)[3]
    tab.click(f'.hit[data-id="{other}"] .tools a', 1)
    tab.wait_for('document.querySelectorAll(".query-images figure").length === 2')
    assert parameters(tab) == {"image": [image, other]}, "a region is that of one image"
    assert tab.value(HITS) == search(client, images=[image, other])
    tab.hover(".asked .chip")
    tab.wait_for(f"{MASKED} === 26")
    tab.point_at(2, 2)
    own = (folder / "mine.png").read_bytes()
    tab.click(".add-image")
    tab.choose_file("#file", folder / "mine.png")
    tab.wait_for('document.querySelectorAll(".query-images figure").length === 3')
    query = json.dumps({"images": [image, other], "k": 24})
    expected = client.upload(own, query=query).json()["hits"]
    assert tab.value(HITS) == [hit["id"] for hit in expected]
    tab.wait_for(LOADED.format(selector=".query-images img"))
    tab.drop(folder / "mine.png", x=900)
    tab.wait_for('document.querySelectorAll(".query-images figure").length === 4')
    tab.drop(folder / "mine.png", x=300)
    tab.wait_for('document.querySelectorAll(".query-images figure").length === 1')
    assert parameters(tab).keys() == {"upload"}, "on the left, it is a new search"
    tab.value("history.back()")
    tab.wait_for('document.querySelectorAll(".query-images figure").length === 4')
    for left in (3, 2):
        tab.click(".query-images .remove")
        tab.wait_for(f'document.querySelectorAll(".query-images figure").length === {left}')
    assert parameters(tab) == {"image": [image, other]}, "uploads come first"
    check_health(tab, client)


def test_an_upload_belongs_to_its_tab(tab: Browser, client: Client, folder: Path) -> None:
    open_page(tab, client)
    tab.drop(folder / "mine.png")
    tab.wait_for('document.querySelector(".hit")')
    assert tab.value("JSON.stringify(localStorage)") == "{}"
    address = tab.value("location.href")
    tab.value("sessionStorage.clear()")  # as in another tab
    tab.open(address)
    assert "not in the address" in tab.wait_for(text_of(".empty-state h1"))
    tab.click(".choose-image")
    tab.choose_file("#file", folder / "mine.png")
    tab.wait_for('document.querySelector(".hit")')
    key = parameters(tab)["upload"][0]
    tab.value("Date.now = () => 1, 0")  # long ago
    tab.drop(folder / "mine.png")
    tab.wait_for("new URLSearchParams(location.search).get('upload').startsWith('1-')")
    tab.open(tab.value("location.href"))
    tab.wait_for('document.querySelector(".hit, .empty-state")')
    stored = tab.value(
        """new Promise((done) => {
          const opening = indexedDB.open("bm25v-uploads");
          opening.onsuccess = () => {
            const store = opening.result.transaction("files").objectStore("files");
            store.getAllKeys().onsuccess = ({target}) => done(target.result);
          };
        })"""
    )
    assert key in stored
    assert not [other for other in stored if other.startswith("1-")], "old ones are deleted"


def test_words_of_one_name_are_one_chip(
    tab: Browser, client: Client, image: str, named: list[int]
) -> None:
    open_page(tab, client, f"?image={image}")
    groups = client.post("/v1/search", json={"images": [image]}).json()["groups"]
    assert [group["label"] for group in groups].count("striped ear") == 1
    assert tab.value(CHIPS) == [group["label"] or "" for group in groups]
    assert 1 < len(groups) <= 6
    labels = '[...document.querySelectorAll(".chip")].map((chip) => chip.ariaLabel)'
    assert set(tab.value(labels)) == {"striped ear", "a detail"}
    per_hit = (
        '[...document.querySelectorAll(".hit")].map((h) => h.querySelectorAll(".chip").length)'
    )
    assert set(tab.value(per_hit)) <= {1, 2, 3}
    tab.wait_for(FILLED.format(selector=".chip .crop"))
    position = tab.value(CHIPS).index("striped ear")
    choose(tab, "Must have", position)
    tab.wait_for(f"{CHANGES}.length === 1")
    assert parameters(tab) == {"image": [image], "must": ["striped ear"]}
    assert tab.value(HITS) == search(client, images=[image], must=["striped ear"])
    assert tab.value(CHANGES) == ["Must havestriped ear"]
    assert "striped ear" not in tab.value(CHIPS), "it is among the changes"
    tab.click(".changed a")
    tab.wait_for(f"{CHANGES}.length === 0")
    choose(tab, "More", tab.value(CHIPS).index("striped ear"))
    tab.wait_for(f"{CHANGES}.length === 1")
    assert parameters(tab) == {"image": [image], "boost": ["striped ear:4"]}
    boost = dict.fromkeys(map(str, named), 4.0)
    assert tab.value(HITS) == search(client, images=[image], boost=boost)
    assert "word" not in tab.value(text_of("main")), "no number of a word"
    check_health(tab, client)


def test_a_menu_says_how_many_images_remain(
    tab: Browser, client: Client, folder: Path, image: str
) -> None:
    some = str(folder / "first" / "00*.png")
    query: dict[str, Any] = {"images": [image], "folder": [some]}

    def list_words(**more: Any) -> list[int]:
        groups = client.post("/v1/search", json={**query, **more}).json()["groups"]
        return [group["words"][0] for group in groups]

    def count(word: int, **more: Any) -> dict[str, int]:
        remaining: dict[str, int] = client.post(
            "/v1/remaining", json={**query, **more, "word": word}
        ).json()
        return remaining

    words = list_words()
    first = next(word for word in words if 0 < count(word)["must"] < 9)
    second = next(w for w in list_words(must=[first]) if not count(w, must=[first])["must"])
    open_page(tab, client, f"?image={image}&folder={some}")
    tab.click(".asked .chip", words.index(first))
    tab.wait_for(f"!{MENU}.join().includes('…')")
    numbers = [f"{n} image{'' if n == 1 else 's'}" for n in count(first).values()]
    assert tab.value(MENU)[:2] == [f"Must have{numbers[0]}", f"Leave out{numbers[1]}"]
    tab.click(".menu-item")
    tab.wait_for(f"{CHANGES}.length === 1")
    assert tab.value(f"{HITS}.length") == count(first)["must"]
    tab.click(f".asked .chip:has([data-word='{second}'])")
    tab.wait_for(f"{MENU}[0] === 'Must have0 images'")
    before = tab.value("location.href")
    tab.click(".menu-item")
    assert tab.value("location.href") == before, "it leaves nothing"
    tab.click(".menu-item", 1)
    tab.wait_for(f"{CHANGES}.length === 2")
    check_health(tab, client)


def test_a_liked_hit_stays_and_is_marked(tab: Browser, client: Client, image: str) -> None:
    open_page(tab, client, f"?image={image}")
    liked = tab.value(HITS)[5]
    tab.click(f'.hit[data-id="{liked}"] .icon-button')
    tab.wait_for(f"{CHANGES}.length === 1")
    assert tab.value(text_of(f'.hit[data-id="{liked}"] .liked')) == "liked"
    assert tab.value('document.querySelectorAll(".liked").length') == 1
    assert tab.value('document.querySelectorAll(".strength, .divide").length') == 0, "not known"
    assert tab.value(text_of("main h1")) == "Best matches"
    tab.click(f'.hit[data-id="{liked}"] .icon-button', 1)
    tab.wait_for(f"{CHANGES}.join() === 'Less like this'")
    assert parameters(tab) == {"image": [image], "unlike": [liked]}
    check_health(tab, client)


def test_a_line_is_drawn_before_the_first_weak_hit(tab: Browser, client: Client) -> None:
    for query in client.ids():
        hits = client.post("/v1/search", json={"images": [query], "k": 24}).json()["hits"]
        strengths = [hit["strength"] for hit in hits]
        if strengths[0] != "weak" and "weak" in strengths:
            break
    open_page(tab, client, f"?image={query}")
    items = '[...document.querySelectorAll(".hits-list > li")].map((item) => item.className)'
    listed = tab.value(items)
    at = strengths.index("weak")
    assert listed[at] == "divide"
    assert listed.count("divide") == 1
    assert listed[at + 1].startswith("hit weak")
    opacity = 'getComputedStyle(document.querySelector(".hit.weak img")).opacity'
    assert tab.value(opacity) == "1", "weak hits look like others"
    tab.click(".more")
    tab.wait_for('document.querySelectorAll(".hit").length === 48')
    assert tab.value(items).count("divide") == 1
    assert tab.value(HITS) == search(client, images=[query], k=48)
    check_health(tab, client)


def test_a_search_without_hits_offers_the_next_steps(
    tab: Browser, client: Client, folder: Path, image: str, named: list[int]
) -> None:
    words = [word["word"] for word in client.get("/v1/words").json()["words"]]
    unnamed = next(word for word in words if word not in named)
    nowhere = folder / "none*"
    query = f"?image={image}&text=cat&must=striped ear&without={unnamed}&folder={nowhere}"
    tab.open(f"{client.base_url}{query}")
    assert tab.wait_for(text_of("main h1")) == "No match for your image and cat"
    assert tab.value(text_of(".summary p")) == "No image has all that you require."
    assert tab.value(STEPS) == [
        "Remove “Must have”striped ear",
        "Remove “Leave out”",
        "Clear the filter",
        "Search without the text",
        "Show all images",
    ]
    tab.wait_for(FILLED.format(selector=".steps .crop"))
    tab.click(".steps a", 1)
    tab.wait_for(f"{STEPS}.length === 4")
    assert "without" not in parameters(tab)
    tab.click(".steps a", 1)
    tab.wait_for('document.querySelector(".hit")')
    assert parameters(tab) == {"image": [image], "text": ["cat"], "must": ["striped ear"]}
    open_page(tab, client, f"?image={image}&must=nobody named it")
    assert tab.value(text_of(".empty-state h1")) == "This search is not possible"
    tab.click(".steps a")
    tab.wait_for('document.querySelector(".hit")')
    assert parameters(tab) == {"image": [image]}
    check_health(tab, client)


def test_a_text_that_nobody_understands_offers_topics(tab: Browser, tmp_path: Path) -> None:
    vocabulary = save_vocabulary(tmp_path / "mine.vocab")
    with Gallery.create(tmp_path / "g", vocabulary=vocabulary) as gallery:
        gallery.add({str(seed): make_image(seed) for seed in range(20)})
        with serving(gallery, tmp_path / "cache") as client:
            topics = [topic["name"] for topic in client.get("/v1/topics").json()["topics"]]
            assert topics
            open_page(tab, client)
            type_text(tab, "flurb")
            links = """[...document.querySelectorAll(".found .topic > span:last-child")]
              .map((name) => name.firstChild.data)"""
            tab.wait_for(f"{links}.length")
            assert tab.value(links) == topics
            tab.click(".found .topic")
            tab.wait_for('document.querySelector(".hit")')
            assert parameters(tab) == {"text": [topics[0]]}
            check_health(tab, client)


@pytest.mark.parametrize("query", ["?image={image}&like={like}&must=5", "?text=cat", "?text=flurb"])
def test_targets_are_large_on_a_phone(tab: Browser, client: Client, image: str, query: str) -> None:
    like = search(client, images=[image])[2]
    tab.open(f"{client.base_url}{query.format(image=image, like=like)}", width=390, height=844)
    tab.wait_for('document.querySelector(".summary")')
    if tab.value('document.querySelector(".asked .chip")') is not None:
        tab.value('document.querySelector(".asked .chip").click()')
    small = """[...document.querySelectorAll(
        ".results a, .results button, .menu-item, .top a, .top button")]
      .filter((target) => target.checkVisibility())
      .map((target) => [target.outerHTML, target.getBoundingClientRect()])
      .filter(([, {width, height}]) => width < 44 || height < 44).map(([html]) => html)"""
    assert tab.value(small) == []
    said = tab.value('document.querySelector("main").innerText')
    assert not [word for word in ("Click", "click", "Point at", "drop") if word in said]


def test_photos_are_dark_until_it_is_known_where_a_detail_is(
    tab: Browser, client: Client, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def wait(*_: Any) -> Any:
        assert go_on.wait(30)
        return make_mask(*_)

    monkeypatch.setattr("bm25v.server.searches.make_mask", wait)
    open_page(tab, client, f"?image={image}")
    tab.hover(".asked .chip")
    dark = """[...document.querySelectorAll(".photo-box img:first-child")]
      .filter((img) => getComputedStyle(img).opacity === "0.5").length"""
    tab.wait_for(f"{dark} === 25")
    assert tab.value(MASKED) == 0
    go_on.set()
    tab.wait_for(f"{MASKED} === 25")
    tab.point_at(2, 2)
    tab.wait_for(f"{dark} === 0")
    check_health(tab, client)


def test_an_explanation_shows_every_image_of_the_query(tab: Browser, client: Client) -> None:
    first, second, *_ = client.ids()
    (hit, *_) = search(client, images=[first, second])
    open_page(tab, client, f"?image={first}&image={second}&why={hit}")
    tab.wait_for('document.querySelectorAll("#why .map").length === 3')
    roles = '[...document.querySelectorAll("#why figcaption small")].map((s) => s.textContent)'
    assert tab.value(roles) == ["Query", "Query", "Hit"]
    masks = """[...document.querySelectorAll("#why .map")]
      .map((map) => map.style.getPropertyValue("--mask"))"""
    assert len(set(tab.value(masks))) == 3
    check_health(tab, client)
