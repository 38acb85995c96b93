"""Fills in templates, and writes what they make to files.

Every value is escaped, and a value that a template expects and does not get is an error.
"""

import base64
import os
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from bm25v import display, images
from bm25v.errors import Bm25vError, ImageError, InvalidOption
from bm25v.files import replace_file
from bm25v.search import QueryWord

PAGE_SUFFIXES = (".html", ".htm")

_FOLDER = Path(__file__).parent


class EmbeddedImage(NamedTuple):
    """An image as a template shows it; `problem` is the reason if there are no bytes."""

    bytes: bytes | None
    alt: str
    problem: str = ""


def render(template: str, **values: Any) -> str:
    """Return what a template makes of some values; characters that UTF-8 cannot write are replaced.

    >>> page = render("duplicates.html", n_groups=0, n_images=1200, groups=[], n_more=0)
    >>> "Compared: 1,200 images" in page, "prefers-color-scheme: dark" in page
    (True, True)
    """
    return display.printable(_environment().get_template(template).render(values))


def check_output(path: Path, suffixes: Collection[str]) -> None:
    """Refuse a path that cannot be written to, before any work is done."""
    if path.suffix.lower() not in suffixes:
        raise InvalidOption(
            f"{path} has none of the possible endings: "
            f"name a file that ends in {', '.join(suffixes)}"
        )
    if not path.parent.is_dir():
        raise InvalidOption(f"{path}: the folder {path.parent} does not exist: create it first")


def write_output(path: Path, content: str | bytes) -> None:
    try:
        replace_file(path, content)
    except OSError as error:
        raise Bm25vError(f"{path} cannot be written: {error.strerror}") from error


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
    kind = "png" if image.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"


def fixed(value: float, digits: int = 2) -> str:
    """Return a number with that many decimals, and a minus as wide as a plus."""
    return f"{value:.{digits}f}".replace("-", "−")


def signed(value: float) -> str:
    """Return a number with its sign and two decimals.

    >>> signed(2.5), signed(-2.5)
    ('+2.50', '−2.50')
    """
    return f"{value:+.2f}".replace("-", "−")


def weigh(word: QueryWord) -> str:
    """Return the label of a word, and its weight unless that is 1."""
    return word.label if word.weight == 1 else f"{word.label} × {word.weight:.3g}".replace("-", "−")


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
        "basename": os.path.basename,
        "count": display.count,
        "data_url": data_url,
        "dirname": os.path.dirname,
        "fixed": fixed,
        "sentence": lambda text: text[:1].upper() + text[1:],  # `capitalize` changes all letters
        "signed": signed,
        "thousands": "{:,.0f}".format,
        "weigh": weigh,
    }
    return environment


@cache
def _read_static(name: str) -> Markup:
    return Markup((_FOLDER / "static" / name).read_text(encoding="utf-8"))
