"""What pages of HTML that stand alone share: their frame, pictures inside, text made safe."""

import base64
from collections.abc import Iterable
from html import escape
from pathlib import Path


def document(title: str, body: str, *, styles: Iterable[str]) -> str:
    """Return a whole page; the style sheets become a part of it.

    >>> page = document("Cats & dogs", "<p>…</p>", styles=["report.css"])
    >>> "<title>Cats &amp; dogs</title>" in page, "prefers-color-scheme: dark" in page
    (True, True)
    """
    sheets = (Path(__file__).with_name(name) for name in styles)
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
<body>
{body}
</body>
</html>
"""


def facts(kind: str, shown: Iterable[tuple[str, str]]) -> str:
    """Return a list of (value, what it is)."""
    items = "".join(f"<div><dt>{text(w)}</dt><dd>{text(v)}</dd></div>" for v, w in shown)
    return f'<dl class="{kind}">{items}</dl>'


def picture(jpeg: bytes, alt: str) -> str:
    """Return a picture as a part of the page."""
    data = base64.b64encode(jpeg).decode()
    return f'<img src="data:image/jpeg;base64,{data}" alt="{text(alt)}">'


def text(plain: str) -> str:
    """Escape for HTML; file names that are not Unicode lose what is not.

    >>> text("<b> & \\udcff")
    '&lt;b&gt; &amp; ?'
    """
    return escape(plain.encode(errors="replace").decode())
