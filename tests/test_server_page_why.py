"""The explanation of a hit on a phone: a tap lights a group, while both photos are in view."""

import pytest

from tests import test_server_page
from tests.browser import CHROMIUM, Browser
from tests.http_server import Client
from tests.test_server_page import open_page, text_of

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

client = test_server_page.client
folder, image = test_server_page.folder, test_server_page.image


def test_a_tap_lights_a_group_while_both_photos_stay_in_view(
    tab: Browser, client: Client, image: str
) -> None:
    hit = client.get(f"/v1/images/{image}/similar").json()["hits"][0]["id"]
    groups = client.get("/v1/explain", params={"query": image, "hit": hit}).json()["groups"]
    last = max(n for n, group in enumerate(groups) if group["in_hit"])
    assert last > 0
    open_page(tab, client, f"?image={image}&why={hit}", width=390, height=844)
    tab.wait_for('document.querySelectorAll("#why .map").length === 2')
    tab.value(f'document.querySelectorAll("#why .group")[{last}].scrollIntoView({{block: "end"}})')
    tab.touch(*tab.centre("#why .group h3", last))
    status = f"Bright: only {groups[last]['label']}"
    tab.wait_for(f"{text_of('#why .status')} === {status!r}")
    boxes = tab.value(
        '[...document.querySelectorAll("#why .map")].map((map) => map.getBoundingClientRect())'
        ".map(({ top, bottom }) => [top, bottom])"
    )
    assert all(0 <= top < bottom <= 844 / 2 for top, bottom in boxes)
    tab.click("#why .controls input")
    edge = 'getComputedStyle(document.querySelector("#why .edge")).display'
    assert tab.value(edge) == "none", "the original photos"
