"""Options that several commands have."""

import inspect
import os
import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from bm25v.errors import WrongUse

if TYPE_CHECKING:
    from bm25v.api import Gallery
    from bm25v.engine_gallery import EngineGallery
    from bm25v.search import QueryOptions


DEFAULT_GALLERY = "gallery.bm25v"
MODES = ("hybrid", "words", "two-stage", "sparse", "dense", "concepts")


class PathType(click.Path):  # noqa: TID251 - the one place
    """A path; an empty one, which would mean the current folder, is wrong use."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path as the command gets it."""
        if value == "":
            self.fail("an empty path: for the current folder, give .", param, ctx)
        return super().convert(value, param, ctx)


gallery_option = click.option(
    "-g",
    "--gallery",
    "gallery_path",
    envvar="BM25V_GALLERY",
    default=lambda: find_gallery(),
    show_default=f"the nearest {DEFAULT_GALLERY} here or in a parent folder",
    show_envvar=True,
    type=PathType(path_type=Path),
    help="The gallery's folder.",
)
engine_option = click.option(
    "--engine",
    metavar="URL",
    help="Use this collection of Qdrant instead of a gallery: qdrant://host:6334/images.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
open_option = click.option(
    "--open",
    "open_page",
    is_flag=True,
    help="Open the page in the browser; without -o, a page in the folder for temporary files.",
)
vocabulary_option = click.option(
    "--vocabulary", default="default", show_default=True, help="A vocabulary's name or folder."
)
dense_option = click.option(
    "--dense", metavar="BACKBONE", help="A second backbone for dense vectors: dinov2-s-int8."
)

_QUERY_OPTIONS = (
    click.option(
        "--text",
        metavar="TEXT",
        help="What to search for, in words: 'a cat on a chair without a dog'. By a text tower, or "
        "by concepts and the names of visual words.",
    ),
    click.option(
        "--region",
        metavar="X,Y,W,H",
        help="Use only this box of the image: in pixels, or in fractions if none is above 1.",
    ),
    click.option("--must", multiple=True, metavar="WORD", help="Only images that have the word."),
    click.option(
        "--without", multiple=True, metavar="WORD", help="Only images that do not have the word."
    ),
    click.option(
        "--boost",
        multiple=True,
        metavar="WORD=FACTOR",
        help="Multiply the word's weight; 0 mutes it, below 0 it counts against an image.",
    ),
    click.option(
        "--not",
        "negative",
        multiple=True,
        type=PathType(),
        metavar="IMAGE",
        help="A counter-example: its words count against an image.",
    ),
    click.option(
        "--like",
        multiple=True,
        type=PathType(),
        metavar="HIT",
        help="More like this image of the gallery.",
    ),
    click.option(
        "--unlike",
        multiple=True,
        type=PathType(),
        metavar="HIT",
        help="Less like this image of the gallery.",
    ),
    click.option(
        "--query-words",
        type=click.IntRange(min=1),
        metavar="N",
        help="Search with N words of each image, weighted by strength. 64 find more by words  "
        "[default: the stored words, with equal weights]",
    ),
    click.option(
        "--min-coverage",
        default=0.0,
        type=click.FloatRange(0, 1),
        help="Only images that match this share of the query, rare words counting more (0 to 1).",
    ),
    click.option(
        "--folder",
        multiple=True,
        metavar="FOLDER",
        help="Only images in this folder, or with a path like '2023/**/*.jpg' or '*.png'.",
    ),
    click.option(
        "--date",
        metavar="DATE",
        help="Only images taken then: 2023, 2023-06, 2023-06-01 or a range such as "
        "2021..2023-06. By the EXIF date, else by the time of the file.",
    ),
    click.option(
        "--min-size",
        metavar="SIZE",
        help="Only images of at least this size in pixels: 1000 (both sides) or 1920x1080.",
    ),
    click.option("--max-size", metavar="SIZE", help="Only images of at most this size."),
    click.option(
        "--include-query",
        is_flag=True,
        help="Also list the images of the query, and their copies, if the gallery has them.",
    ),
    click.option("-k", default=10, show_default=True, type=click.IntRange(1), help="Hits to show."),
    click.option(
        "--offset",
        default=0,
        type=click.IntRange(0),
        metavar="N",
        help="Skip the best N hits, to show the next page.",
    ),
    click.option(
        "--mode",
        type=click.Choice(MODES),
        help="What orders the hits: hybrid (similarity + words), words, two-stage (the paper's), "
        "sparse (the words of the index), dense (similarity)  [default: hybrid]",
    ),
    click.option(
        "--candidates",
        type=click.IntRange(1),
        help="Images that the first stage passes to the second  [default: 1000; 200 in mode "
        "two-stage]",
    ),
)


def query_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a query; it gets them together, as `options`."""
    own = inspect.signature(function).parameters

    @wraps(function)
    def command(**values: Any) -> None:
        options = {name: value for name, value in values.items() if name not in own}
        if options["region"] is not None:
            options["region"] = _parse_region(options["region"])
        options["boost"] = _parse_boosts(options["boost"])
        for name in ("min_size", "max_size"):
            options[name] = _parse_size(name, options[name])
        function(options=options, **{name: values[name] for name in own if name in values})

    decorated: Callable[..., None] = command
    for option in reversed(_QUERY_OPTIONS):
        decorated = option(decorated)
    return decorated


def open_collection(gallery_path: Path, engine: str | None) -> "Gallery | EngineGallery":
    """Open the collection of an engine if one is given, else the gallery."""
    from bm25v.api import Gallery
    from bm25v.engine_gallery import EngineGallery

    if engine is None:
        return Gallery.open(gallery_path)
    source = click.get_current_context().get_parameter_source("gallery_path")
    if source == ParameterSource.COMMANDLINE:
        raise WrongUse("--gallery and --engine: give one of them")
    return EngineGallery.open(engine)


def is_empty_query(options: "QueryOptions") -> bool:
    """Return whether options alone, without an image, search for nothing."""
    return not any(options[name] for name in ("must", "boost", "like")) and options["text"] is None


def find_gallery() -> Path:
    """Return the nearest default gallery, here or in a parent folder; else the one to create here.

    A home folder is the last one that is looked at: what lies above belongs to somebody else.
    """
    here, home = Path.cwd(), Path(os.path.expanduser("~"))
    for folder in (here, *here.parents):
        if (folder / DEFAULT_GALLERY / "catalog.sqlite").is_file():
            return Path(os.path.relpath(folder / DEFAULT_GALLERY))
        if folder == home:
            break
    return Path(DEFAULT_GALLERY)


def split_list(text: str) -> list[str]:
    """Return the items of a comma-separated list.

    >>> split_list("dense, hnsw,")
    ['dense', 'hnsw']
    """
    return [item.strip() for item in text.split(",") if item.strip()]


def _parse_region(region: str) -> tuple[float, ...]:
    """Return the numbers of a box.

    >>> _parse_region("120,40, 200,180")
    (120.0, 40.0, 200.0, 180.0)
    """
    try:
        numbers = tuple(float(number) for number in region.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) != 4:
        raise WrongUse(
            f"--region {region}: give x,y,width,height, such as 120,40,200,180 or 0.1,0.2,0.5,0.5"
        )
    return numbers


def _parse_size(name: str, size: str | None) -> int | tuple[int, ...] | None:
    """Return a width and height, or one number for both.

    >>> _parse_size("min_size", "1920x1080"), _parse_size("min_size", "800")
    ((1920, 1080), 800)
    """
    if size is None:
        return None
    match = re.fullmatch(r"(\d+)(?:\s*[x×]\s*(\d+))?", size.strip().lower())
    if match is None:
        option = name.replace("_", "-")
        raise WrongUse(f"--{option} {size}: give pixels, such as 1000 or 1920x1080")
    width, height = match.groups()
    return int(width) if height is None else (int(width), int(height))


def _parse_boosts(boosts: tuple[str, ...]) -> dict[str, float]:
    """Return words and their factors.

    >>> _parse_boosts(("19=2", "striped ear=0"))
    {'19': 2.0, 'striped ear': 0.0}
    """
    factors: dict[str, float] = {}
    for boost in boosts:
        word, _, factor = boost.rpartition("=")
        if not word or word in factors:
            raise WrongUse(f"--boost {boost}: give each word once, with a factor, such as 19=2")
        try:
            factors[word] = float(factor)
        except ValueError:
            raise WrongUse(f"--boost {boost}: {factor!r} is not a number") from None
    return factors
