"""Makes the pictures of the documentation, from bm25v's own pages and the demo's photos.

In: nothing; the photos come with `bm25v demo`. Out: files in docs/images. It needs Chromium, and
runs as `make pictures`. Not this module's job: plots, which `evaluate`, `zipf` and `bench` draw.
"""

import base64
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from rich.console import Console
from rich.text import Text

import bm25v
from bm25v import demo
from bm25v.explanations.word_portrait import make_portraits
from bm25v.pages.word_page import render_word
from bm25v.server.images import to_id
from tests.browser import Browser, browser
from tests.http_server import serving

IMAGES = Path(__file__).parent / "images"
QUERY, HIT = "demo/queries/0082.png", "demo/photos/0103.png"  # two daisies
PETALS, ROSES = 242, 7056  # words
PAGE = Path("page.html")
_WIDTH = 860  # pixels, of most pictures
_SCREEN = 1280  # pixels, of a page that has two columns
_MARGIN = 20  # below the last element
_QUALITY = 66  # of WebP, out of 100
# All images are there, and the dialog of the address is filled in.
_IS_COMPLETE = """!document.querySelector("dialog[open] .loading") &&
  document.images.length > 3 && [...document.images].every((img) => img.complete)"""
_TERMINAL = """<style>body {{ margin: 0; padding: 22px 26px; background: #1b1a18; }}
pre {{ margin: 0; color: #ece8e2; font: 15px/17px ui-monospace, "DejaVu Sans Mono", monospace; }}
</style>{code}"""


def main() -> None:
    """Make all pictures."""
    with tempfile.TemporaryDirectory() as scratch, browser(Path(scratch) / "profile") as tab:
        os.chdir(scratch)
        demo.run(Path("demo"))
        gallery = bm25v.Gallery.open("demo/gallery.bm25v")
        Image.open(QUERY).convert("RGB").save(IMAGES / "query.webp", quality=_QUALITY)
        gallery.explain(QUERY, HIT).save(PAGE)
        tab.open(PAGE.resolve(), width=_SCREEN, height=720)
        capture(tab, "why.webp", last=".aside")
        tab.value("document.querySelectorAll('.word')[1].focus()")
        capture(tab, "why-one-word.webp", last=".aside")
        for word, name in ((PETALS, "word.webp"), (ROSES, "word-roses.webp")):
            (portrait,) = make_portraits(gallery.store, [word])
            open_text(tab, render_word(portrait))
            capture(tab, name, last="section")
        gallery.name_words({PETALS: "white petals"})
        gallery.explain(QUERY, HIT).save(PAGE)
        tab.open(PAGE.resolve(), width=_SCREEN, height=720)
        capture(tab, "explanation.webp", last=".aside")
        open_text(tab, run_in_terminal(f"explain {QUERY} {HIT} --top 3 --show"))
        capture(tab, "terminal.webp", last="pre")
        with serving(gallery, Path(scratch) / "cache") as client:
            capture_server(tab, str(client.base_url))


def capture_server(tab: Browser, url: str) -> None:
    """Save views of the web page of a server, as screens of a laptop and of a phone."""
    query = to_id(os.path.abspath(HIT))
    hits = f"?image={query}"
    laptop: dict[str, Any] = {"width": 1366, "height": 768}
    tab.open(url + hits, **laptop)
    tab.wait_for("document.querySelector('.hit')")
    hit = tab.value("document.querySelectorAll('.hit')[1].dataset.id")
    for name, address, options in (
        ("serve.webp", hits, laptop),
        ("serve-dark.webp", "", {**laptop, "dark": True}),
        ("serve-phone.webp", hits, {"width": 390, "height": 844}),
        ("serve-why.webp", f"{hits}&why={hit}", laptop),
        ("serve-word.webp", f"{hits}&word={PETALS}", laptop),
    ):
        tab.open(url + address, **options)
        tab.wait_for(_IS_COMPLETE, seconds=60)
        screen = tab.capture([0, 0, options["width"], options["height"]])
        screen.save(IMAGES / name, quality=_QUALITY, method=6)


def open_text(tab: Browser, page: str) -> None:
    """Open a page that is not a file yet."""
    PAGE.write_text(page, encoding="utf-8")
    tab.open(PAGE.resolve(), width=_WIDTH)


def capture(tab: Browser, name: str, *, first: str = "body", last: str) -> None:
    """Save the open page from one element to another; both are CSS selectors."""
    top = tab.value(f"document.querySelector('{first}').getBoundingClientRect().top + scrollY")
    end = tab.value(f"document.querySelector('{last}').getBoundingClientRect().bottom + scrollY")
    width = tab.value("innerWidth")
    clip = {"x": 0, "y": top, "width": width, "height": end + _MARGIN - top, "scale": 1}
    answer = tab.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
    image = Image.open(io.BytesIO(base64.b64decode(answer["data"]))).convert("RGB")
    image.save(IMAGES / name, quality=_QUALITY, method=6)


def run_in_terminal(arguments: str) -> str:
    """Return a page that shows what a command prints in a terminal of 80 columns, in colours."""
    command = [sys.executable, "-m", "bm25v", *arguments.split(), "-g", "demo/gallery.bm25v"]
    colours = {"FORCE_COLOR": "1", "COLORTERM": "truecolor", "COLUMNS": "80"}
    done = subprocess.run(command, env=os.environ | colours, stdout=subprocess.PIPE, check=True)
    console = Console(record=True, width=80, file=io.StringIO())
    console.print(Text.from_ansi(f"$ bm25v {arguments}\n{done.stdout.decode()}"))
    return _TERMINAL.format(
        code=console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
    )


if __name__ == "__main__":
    main()
