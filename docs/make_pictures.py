"""Makes the images of the documentation from what bm25v itself shows about the demo's photos.

It needs Chromium, and runs as `make pictures`. Plots come from `evaluate faithfulness` and
`evaluate zipf`.
"""

import base64
import io
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.text import Text

from tests.browser import Browser, browser

IMAGES = Path(__file__).parent / "images"
QUERY, HIT = "demo/queries/0082.png", "demo/photos/0103.png"  # two daisies
PETALS, ROSES = 242, 7056  # words
PAGE = Path("page.html")
_WIDTH = 860  # pixels, of most images
_SCREEN = 1280  # pixels, of a page that has two columns
_MARGIN = 20  # below the last element
_QUALITY = 66  # of WebP, out of 100
# All images are there.
_HAS_CROPS = """[...document.querySelectorAll(".chip .crop")]
  .every((crop) => crop.style.backgroundImage)"""
_IS_COMPLETE = """document.images.length > 3 && [...document.images].every((img) => img.complete)"""
_TERMINAL = """<style>body {{ margin: 0; padding: 22px 26px; background: #1b1a18; }}
pre {{ margin: 0; color: #ece8e2; font: 15px/17px ui-monospace, "DejaVu Sans Mono", monospace; }}
</style>{code}"""


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch, browser(Path(scratch) / "profile") as tab:
        os.chdir(scratch)
        os.environ["BM25V_GALLERY"] = "demo/gallery.bm25v"
        run("demo")
        Image.open(QUERY).convert("RGB").save(IMAGES / "query.webp", quality=_QUALITY)
        open_page(tab, f"explain {QUERY} {HIT}", width=_SCREEN)
        capture(tab, "why.webp", last=".explained")
        for word, name in ((PETALS, "word.webp"), (ROSES, "word-roses.webp")):
            open_page(tab, f"words show {word}", width=_WIDTH)
            capture(tab, name, last="section")
        run(f"words name {PETALS} 'white petals'")
        open_page(tab, f"explain {QUERY} {HIT}", width=_SCREEN)
        capture(tab, "explanation.webp", last=".explained")
        PAGE.write_text(show_terminal(f"explain {QUERY} {HIT} --show"), encoding="utf-8")
        tab.open(PAGE.resolve(), width=_WIDTH)
        capture(tab, "terminal.webp", last="pre")
        with serving() as url:
            capture_hits(tab, url)


def run(arguments: str, **variables: str) -> str:
    """Run a command of bm25v, and return what it prints."""
    command = [sys.executable, "-m", "bm25v", *shlex.split(arguments)]
    done = subprocess.run(
        command, env=os.environ | variables, stdout=subprocess.PIPE, check=True, text=True
    )
    return done.stdout


@contextmanager
def serving() -> Iterator[str]:
    """Serve the gallery within the block."""
    command = [sys.executable, "-m", "bm25v", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        try:
            yield next(word for word in line.split() if word.startswith("http"))
        finally:
            server.terminate()


def open_page(tab: Browser, arguments: str, *, width: int) -> None:
    """Let a command write a page, and open it."""
    run(f"{arguments} -o {PAGE}")
    tab.open(PAGE.resolve(), width=width, height=720)


def capture_hits(tab: Browser, url: str) -> None:
    """Save the web page of a server with the hits of a text, on the screen of a laptop."""
    tab.open(f"{url}?text=bee%20on%20an%20orange%20flower", width=1366, height=768)
    tab.wait_for("document.querySelector('.hit')")
    tab.wait_for(_IS_COMPLETE, seconds=60)
    tab.wait_for(_HAS_CROPS, seconds=60)
    tab.wait_for("document.querySelector('#preparing').hidden", seconds=120)
    screen = tab.capture([0, 0, 1366, 768])
    screen.save(IMAGES / "serve.webp", quality=_QUALITY, method=6)


def capture(tab: Browser, name: str, *, last: str) -> None:
    """Save the open page down to the end of an element, which is a CSS selector."""
    end = tab.value(f"document.querySelector('{last}').getBoundingClientRect().bottom + scrollY")
    width = tab.value("innerWidth")
    clip = {"x": 0, "y": 0, "width": width, "height": end + _MARGIN, "scale": 1}
    answer = tab.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
    image = Image.open(io.BytesIO(base64.b64decode(answer["data"]))).convert("RGB")
    image.save(IMAGES / name, quality=_QUALITY, method=6)


def show_terminal(arguments: str) -> str:
    """Return a page that shows what a command prints in a terminal of 80 columns, in colours."""
    printed = run(arguments, FORCE_COLOR="1", COLORTERM="truecolor", COLUMNS="80")
    console = Console(record=True, width=80, file=io.StringIO())
    console.print(Text.from_ansi(f"$ bm25v {arguments}\n{printed}"))
    return _TERMINAL.format(
        code=console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
    )


if __name__ == "__main__":
    main()
