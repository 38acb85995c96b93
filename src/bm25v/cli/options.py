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

from bm25v.errors import InvalidOption

if TYPE_CHECKING:
    from bm25v.engine_gallery import EngineGallery
    from bm25v.gallery import Gallery


DEFAULT_GALLERY = "gallery.bm25v"
_MODES = {  # what orders the hits
    "hybrid": "similarity of the whole images, plus words",
    "words": "all words of an image",
    "two-stage": "the best candidates by words, ordered by similarity, as in the paper",
    "sparse": "the words of the index alone",
    "dense": "similarity alone",
    "concepts": "what a text names",
}
MODES = tuple(_MODES)


class PathType(click.Path):  # noqa: TID251 - the one place
    """A path; an empty one, which would mean the current folder, is wrong use, and so is a URL."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("an empty path: for the current folder, give .", param, ctx)
        if isinstance(value, str) and value.lower().startswith(("http://", "https://")):
            self.fail(f"{value}: URLs are not read; download it, and give the file", param, ctx)
        return super().convert(value, param, ctx)


ANY_PATH = PathType(path_type=Path)
FILE = PathType(dir_okay=False, path_type=Path)
FOLDER = PathType(file_okay=False, path_type=Path)
COUNT = click.IntRange(1)

gallery_option = click.option(
    "-g",
    "--gallery",
    "gallery_path",
    envvar="BM25V_GALLERY",
    default=lambda: find_gallery(),
    show_default=f"the nearest {DEFAULT_GALLERY} here or in a parent folder",
    show_envvar=True,
    type=ANY_PATH,
    help="The gallery's folder.",
)
engine_option = click.option(
    "--engine",
    metavar="URL",
    help="Use this collection of Qdrant instead of a gallery: qdrant://host:6334/images.",
)


def output_option(
    help_text: str, kind: PathType = FILE, *, is_required: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option -o, for what a command writes."""
    return click.option("-o", "--output", required=is_required, type=kind, help=help_text)


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
    "--dense", metavar="BACKBONE", help="A second backbone for dense vectors: dinov2-s."
)

# The options of a query, in the order of the help text.
_QUERY_OPTIONS = (
    click.option(
        "--text",
        metavar="TEXT",
        help="What to search for, in words: 'a cat on a chair without a dog'.",
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
    click.option("--must", multiple=True, metavar="WORD", help="Only images that have the word."),
    click.option(
        "--without", multiple=True, metavar="WORD", help="Only images that do not have the word."
    ),
    click.option(
        "--region",
        metavar="X,Y,W,H",
        help="Use only this box of the image: in pixels, or in fractions if none is above 1.",
    ),
    click.option(
        "--boost",
        multiple=True,
        metavar="WORD=FACTOR",
        help="Multiply the word's weight; 0 mutes it, below 0 it counts against an image.",
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
        "--not",
        "negative",
        multiple=True,
        type=PathType(),
        metavar="IMAGE",
        help="A counter-example: its words count against an image.",
    ),
    click.option(
        "--min-size",
        metavar="SIZE",
        help="Only images of at least this size in pixels: 1000 (both sides) or 1920x1080.",
    ),
    click.option("--max-size", metavar="SIZE", help="Only images of at most this size."),
    click.option(
        "--min-coverage",
        default=0.0,
        type=click.FloatRange(0, 1),
        metavar="SHARE",
        help="Only images that match this share of the query, rare words counting more (0 to 1).",
    ),
    click.option(
        "--include-query",
        is_flag=True,
        help="Also list the images of the query, and their copies, if the gallery has them.",
    ),
    click.option(
        "--mode",
        type=click.Choice(MODES),
        help="What orders the hits. "
        + " ".join(f"{mode}: {order}." for mode, order in _MODES.items())
        + "  [default: hybrid; for a text, dense or concepts]",
    ),
    click.option(
        "--candidates",
        type=COUNT,
        metavar="N",
        help="Images that the first stage passes to the second  [default: 1000; 200 in mode "
        "two-stage]",
    ),
    click.option(
        "--query-words",
        type=COUNT,
        metavar="N",
        help="Search with the N strongest words of each image  [default: all words in the modes "
        "hybrid and words; those of the index, with equal weights, in the others]",
    ),
)
_PAGING_OPTIONS = (
    click.option(
        "-k", default=10, show_default=True, type=COUNT, metavar="N", help="Hits to show."
    ),
    click.option(
        "--offset",
        default=0,
        type=click.IntRange(0),
        metavar="N",
        help="Skip the best N hits, to show the next page.",
    ),
)
# What a help text shows before all other options, by the names of parameters.
_COMMON = (
    *("text", "k", "folder", "date", "must", "without", "region"),
    *("output_format", "as_json", "output", "open_page", "gallery_path"),
)


class QueryCommand(click.Command):
    """A command with the options of a query; its help shows the common ones first."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], "More": []}
        params = {p.name: p for p in self.get_params(ctx) if isinstance(p, click.Option)}
        for name in (*_COMMON, *(name for name in params if name not in _COMMON)):
            record = params[name].get_help_record(ctx) if name in params else None
            if record is not None:
                sections["Options" if name in _COMMON else "More"].append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def query_options(*, has_pages: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a query; it gets them together, as `options`."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
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
        for option in reversed(_QUERY_OPTIONS + (_PAGING_OPTIONS if has_pages else ())):
            decorated = option(decorated)
        return decorated

    return decorate


def open_collection(gallery_path: Path, engine: str | None) -> "Gallery | EngineGallery":
    """Open the collection of an engine if one is given, else the gallery."""
    from bm25v.engine_gallery import EngineGallery

    if engine is None:
        return open_gallery(gallery_path)
    source = click.get_current_context().get_parameter_source("gallery_path")
    if source == ParameterSource.COMMANDLINE:
        raise InvalidOption("--gallery and --engine: give one of them")
    return EngineGallery.open(engine)


def open_gallery(gallery_path: Path) -> "Gallery":
    from bm25v.gallery import Gallery

    return Gallery.open(gallery_path)


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
    """
    >>> split_list("dense, hnsw,")
    ['dense', 'hnsw']
    """
    return [item.strip() for item in text.split(",") if item.strip()]


def _parse_region(region: str) -> tuple[float, ...]:
    """
    >>> _parse_region("120,40, 200,180")
    (120.0, 40.0, 200.0, 180.0)
    """
    try:
        numbers = tuple(float(number) for number in region.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) != 4:
        raise InvalidOption(
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
        raise InvalidOption(f"--{option} {size}: give pixels, such as 1000 or 1920x1080")
    width, height = match.groups()
    return int(width) if height is None else (int(width), int(height))


def _parse_boosts(boosts: tuple[str, ...]) -> dict[str, float]:
    """
    >>> _parse_boosts(("19=2", "striped ear=0"))
    {'19': 2.0, 'striped ear': 0.0}
    """
    factors: dict[str, float] = {}
    for boost in boosts:
        word, _, factor = boost.rpartition("=")
        if not word or word in factors:
            raise InvalidOption(
                f"--boost {boost}: give each word once, with a factor, such as 19=2"
            )
        try:
            factors[word] = float(factor)
        except ValueError:
            raise InvalidOption(f"--boost {boost}: {factor!r} is not a number") from None
    return factors
