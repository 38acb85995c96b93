"""Options that several commands have."""

import os
import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bm25v.errors import InvalidOption

if TYPE_CHECKING:
    from bm25v.gallery import Gallery
    from bm25v.search.query import Kind, Option


DEFAULT_GALLERY = "gallery.bm25v"


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


class _GalleryType(PathType):
    """A gallery's folder, or, if that is possible, the address of a collection, as a text."""

    def __init__(self, *, takes_address: bool) -> None:
        super().__init__(path_type=Path)
        self._takes_address = takes_address

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or "://" not in value:
            return super().convert(value, param, ctx)
        if not self._takes_address:
            self.fail(f"{value}: this command needs a gallery in a folder", param, ctx)
        return value


def _gallery_option(
    help_text: str, *, takes_address: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "-g",
        "--gallery",
        "gallery_path",
        envvar="BM25V_GALLERY",
        default=lambda: find_gallery(),
        show_default=f"the nearest {DEFAULT_GALLERY} here or in a parent folder",
        show_envvar=True,
        type=_GalleryType(takes_address=takes_address),
        metavar="PATH",
        help=help_text,
    )


gallery_option = _gallery_option("The gallery's folder.")
collection_option = _gallery_option(
    "The gallery's folder, or a collection of Qdrant: qdrant://host:6334/images.",
    takes_address=True,
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

# What a help text shows before all other options, by the names of parameters.
_COMMON = (
    *("text", "k", "folder", "date", "must", "without", "region"),
    *("output_format", "as_json", "output", "open_page", "gallery_path"),
)


class QueryCommand(click.Command):
    """A command with the options of a query, which its function gets together, as `options`.

    Without pages it has no options for the next one. Its help shows the common options first.
    """

    def __init__(self, *args: Any, has_pages: bool = True, **more: Any) -> None:
        super().__init__(*args, **more)
        self._has_pages = has_pages

    @cached_property
    def _query_params(self) -> dict[str, click.Option]:
        """The options of `Query`, which is imported when the command is called."""
        from bm25v.search.query import OPTIONS

        left_out = {"images"} if self._has_pages else {"images", "k", "offset"}
        return {name: _make_option(name, OPTIONS[name]) for name in OPTIONS if name not in left_out}

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*self._query_params.values(), *super().get_params(ctx)]

    def invoke(self, ctx: click.Context) -> Any:
        from bm25v.search.query import OPTIONS

        options = {name: ctx.params.pop(name) for name in self._query_params}
        for name, value in options.items():
            parse = _PARSERS.get(OPTIONS[name].kind)
            if parse is not None and value is not None:
                options[name] = parse(OPTIONS[name].flag, value)
        ctx.params["options"] = options
        return super().invoke(ctx)

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


def _make_option(name: str, option: "Option") -> click.Option:
    from bm25v.search.scoring import MODES

    types: dict[Kind, click.ParamType[Any]] = {
        "count": click.IntRange(option.least),
        "share": click.FloatRange(0, 1),
        "mode": click.Choice(tuple(MODES)),
        "hit": PathType(),
        "image": PathType(),
    }
    metavars = {"count": "N", "box": "X,Y,W,H", "factor": "WORD=FACTOR", "mode": None}
    return click.Option(
        [option.flag, name],
        type=types.get(option.kind),
        is_flag=option.kind == "flag",
        multiple=option.is_list,
        default=None if option.is_list else option.default,
        show_default=bool(option.default),
        metavar=metavars.get(option.kind, option.kind.upper()),
        help=option.help,
    )


def open_gallery(gallery_path: Path | str) -> "Gallery":
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


def _parse_region(flag: str, region: str) -> tuple[float, ...]:
    """
    >>> _parse_region("--region", "120,40, 200,180")
    (120.0, 40.0, 200.0, 180.0)
    """
    try:
        numbers = tuple(float(number) for number in region.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) != 4:
        raise InvalidOption(
            f"{flag} {region}: give x,y,width,height, such as 120,40,200,180 or 0.1,0.2,0.5,0.5"
        )
    return numbers


def _parse_size(flag: str, size: str) -> int | tuple[int, ...]:
    """Return a width and height, or one number for both.

    >>> _parse_size("--min-size", "1920x1080"), _parse_size("--min-size", "800")
    ((1920, 1080), 800)
    """
    match = re.fullmatch(r"(\d+)(?:\s*[x×]\s*(\d+))?", size.strip().lower())
    if match is None:
        raise InvalidOption(f"{flag} {size}: give pixels, such as 1000 or 1920x1080")
    width, height = match.groups()
    return int(width) if height is None else (int(width), int(height))


def _parse_boosts(flag: str, boosts: tuple[str, ...]) -> dict[str, float]:
    """
    >>> _parse_boosts("--boost", ("19=2", "striped ear=0"))
    {'19': 2.0, 'striped ear': 0.0}
    """
    factors: dict[str, float] = {}
    for boost in boosts:
        word, _, factor = boost.rpartition("=")
        if not word or word in factors:
            raise InvalidOption(f"{flag} {boost}: give each word once, with a factor, such as 19=2")
        try:
            factors[word] = float(factor)
        except ValueError:
            raise InvalidOption(f"{flag} {boost}: {factor!r} is not a number") from None
    return factors


_PARSERS: dict["Kind", Callable[[str, Any], Any]] = {
    "box": _parse_region,
    "size": _parse_size,
    "factor": _parse_boosts,
}
