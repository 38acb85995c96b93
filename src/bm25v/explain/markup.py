"""What pages of HTML that stand alone share: frame and look, pictures inside, text made safe."""

import base64
from collections.abc import Iterable
from html import escape
from pathlib import Path

SCALE = '<span class="scale">faint <span class="glow" aria-hidden="true"></span> strongest</span>'


def document(title: str, body: str, *, styles: Iterable[str | Path] = (), kind: str = "") -> str:
    """Return a whole page; the style sheets, of this folder or elsewhere, become a part of it.

    >>> page = document("Cats & dogs", "<p>…</p>")
    >>> "<title>Cats &amp; dogs</title>" in page, "prefers-color-scheme: dark" in page
    (True, True)
    """
    sheets = (Path(__file__).parent / name for name in ("look.css", *styles))
    style = "".join(sheet.read_text(encoding="utf-8") for sheet in sheets)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{text(title)}</title>
<style>
{style}</style>
</head>
<body{f' class="{kind}"' if kind else ""}>
{body}
</body>
</html>
"""


def facts(kind: str, shown: Iterable[tuple[str, str]]) -> str:
    """Return a list of (value, what it is), or nothing if it is empty."""
    items = "".join(f"<div><dt>{text(w)}</dt><dd>{text(v)}</dd></div>" for v, w in shown)
    return f'<dl class="{kind}">{items}</dl>' if items else ""


def bar(before: float, value: float, whole: float) -> str:
    """Return a part of a sum as a bar that starts where the parts before it end.

    >>> bar(5, 2, 8)
    '<div class="bar" style="--start:62.50%;--size:25.00%"><i></i></div>'
    """
    start, size = (
        100 * share / (whole or 1) for share in (min(before, before + value), abs(value))
    )
    return f'<div class="bar" style="--start:{start:.2f}%;--size:{size:.2f}%"><i></i></div>'


def picture(jpeg: bytes, alt: str) -> str:
    """Return a picture as a part of the page."""
    return f'<img src="{embedded(jpeg, "jpeg")}" alt="{text(alt)}">'


def embedded(image: bytes, kind: str) -> str:
    """Return the address of a picture that is a part of the page."""
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"


def text(plain: str) -> str:
    """Escape for HTML; file names that are not Unicode lose what is not.

    >>> text("<b> & \\udcff")
    '&lt;b&gt; &amp; ?'
    """
    return escape(plain.encode(errors="replace").decode())


def breakable(name: str) -> str:
    """Escape a file's name, and say where a line may break in it.

    >>> breakable("a_cat.jpg")
    'a_<wbr>cat.jpg'
    """
    return text(name).replace("_", "_<wbr>")
