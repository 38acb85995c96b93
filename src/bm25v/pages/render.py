"""Fills in templates: plain values in, one self-contained HTML page out.

Every value is escaped by jinja2, and a value that a template expects and does not get is an error.
Strings from outside may hold what no encoding can write; `bm25v.display.printable` replaces that.
"""

import base64
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from bm25v import display, images
from bm25v.errors import ImageError

_FOLDER = Path(__file__).parent
_PNG = b"\x89PNG"


class EmbeddedImage(NamedTuple):
    """An image as a template shows it; `problem` is the reason if there are no bytes."""

    bytes: bytes | None
    alt: str
    problem: str = ""


def render(template: str, **values: Any) -> str:
    """Return the page that a template makes of some values.

    >>> values = {"lead": "", "facts": [], "searches": [], "commands": []}
    >>> page = render("searches.html", title="Cats & dogs", **values)
    >>> "<title>Cats &amp; dogs</title>" in page, "prefers-color-scheme: dark" in page
    (True, True)
    """
    return display.printable(_environment().get_template(template).render(values))


def embed_thumbnail(path: str, *, side: int, alt: str) -> EmbeddedImage:
    """Return a small version of an image file, or why there is none.

    >>> embed_thumbnail("/nowhere/rose.jpg", side=96, alt="A rose")
    EmbeddedImage(bytes=None, alt='A rose', problem='does not exist')
    """
    try:
        return EmbeddedImage(images.make_thumbnail(path, side=side), alt)
    except ImageError as error:
        return EmbeddedImage(None, alt, str(error))


def data_url(image: bytes) -> str:
    """Return an address that holds a whole PNG or JPEG, so that a page needs no other file.

    >>> data_url(b"...")
    'data:image/jpeg;base64,Li4u'
    """
    kind = "png" if image.startswith(_PNG) else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"


def fixed(value: float, digits: int = 2) -> str:
    """Return a number with that many decimals, and a minus as wide as a plus.

    >>> fixed(2.5), fixed(-2.5, 1)
    ('2.50', '−2.5')
    """
    return f"{value:.{digits}f}".replace("-", "−")


def signed(value: float) -> str:
    """Return a number with its sign and two decimals.

    >>> signed(2.5), signed(-2.5)
    ('+2.50', '−2.50')
    """
    return f"{value:+.2f}".replace("-", "−")


def thousands(value: float) -> str:
    """Return a whole number with commas.

    >>> thousands(12345)
    '12,345'
    """
    return f"{value:,.0f}"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["static"] = _read_static
    environment.filters |= {
        "count": display.count,
        "data_url": data_url,
        "fixed": fixed,
        "percent": display.percent,
        "signed": signed,
        "thousands": thousands,
    }
    return environment


@cache
def _read_static(name: str) -> Markup:
    """Return one of our own files, which goes into a page as it is."""
    return Markup((_FOLDER / "static" / name).read_text(encoding="utf-8"))
