"""`bm25v search` and `bm25v explain`."""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from bm25v.cli.options import (
    COUNT,
    FILE,
    PathType,
    QueryCommand,
    collection_option,
    json_option,
    open_gallery,
    open_option,
    output_option,
)
from bm25v.cli.printing import (
    Column,
    choose_output,
    echo,
    echo_bytes,
    echo_wrapped,
    emit,
    output_width,
    print_notes,
    print_table,
    report_written,
    shorten_path,
)
from bm25v.cli.progress import progress_bar
from bm25v.display import count, display_path, duration
from bm25v.errors import Bm25vError, ImageError, InvalidOption

if TYPE_CHECKING:
    from bm25v.explain import Explanation
    from bm25v.gallery import Gallery
    from bm25v.search import Hit, QueryOptions, Results, WordContribution

_WHAT_TO_TYPE = (
    "A text can have words for what photos show, as in “dog on a beach”, names of folders, files "
    "and visual words, and dates, as in “June 2023”."
)
_TERM_WIDTH = 14  # cells of a word of a text above its column, at most
_BAR = 20  # cells of the whole score
_QUERY_WORDS = 8  # at most, below the hits
_UNKNOWN = 200  # characters of what is not understood
_IMAGE_COLUMNS, _LEAST_IMAGE_COLUMNS, _IMAGE_LINES = 60, 16, 30  # of an explained image
_THUMBNAIL_COLUMNS, _THUMBNAIL_LINES = 25, 12
_THUMBNAIL_SIDE = 180  # pixels


@click.command("search", cls=QueryCommand)
@click.argument("images", nargs=-1, type=PathType(), metavar="[IMAGE]...")
@click.option(
    "--format",
    "output_format",
    default="table",
    show_default=True,
    type=click.Choice(("table", "paths", "csv", "json")),
    help="What to print; paths: one on each line, and nothing else.",
)
@json_option
@output_option("Write the hits: a page with thumbnails (.html), a table (.csv) or JSON (.json).")
@open_option
@collection_option
@click.option("-0", "--null", is_flag=True, help="With --format paths: end each with a null byte.")
@click.option(
    "--words",
    "n_words",
    default=10,
    show_default=True,
    type=click.IntRange(0),
    metavar="N",
    help="Words of each hit, and of the query, in JSON and CSV: those that add most.",
)
@click.option("--show", is_flag=True, help="Show thumbnails in the terminal.")
@click.option("--server", metavar="URL", help="Search the gallery of this `bm25v serve` instead.")
@click.option("--token-file", type=FILE, help="With --server: a file with its token.")
def search(
    images: tuple[str, ...],
    options: "QueryOptions",
    output_format: str,
    as_json: bool,
    output: Path | None,
    open_page: bool,
    gallery_path: Path | str,
    null: bool,
    n_words: int,
    show: bool,
    server: str | None,
    token_file: Path | None,
) -> None:
    """Find the images most similar to IMAGE.

    Give several images to find what they have in common. Without an image, search by --text, or by
    visual words alone: --must and --boost. A WORD is a number or a name.

    In a terminal each hit is one line, and long paths are shortened. In a pipe, lines are complete.
    """
    if as_json:
        if output_format not in ("table", "json"):
            raise InvalidOption(f"--json and --format {output_format}: give one of them")
        output_format = "json"
    if null and output_format != "paths":
        raise InvalidOption("-0 ends paths with null bytes: give --format paths")
    _check_images(images)
    has_words = any(options[name] for name in ("must", "boost", "like"))
    if not images and options["text"] is None and not has_words:
        raise InvalidOption(
            "an empty query: give an IMAGE, a --text, or words by --must or --boost"
        )
    if server is not None:
        source = click.get_current_context().get_parameter_source("gallery_path")
        if source == ParameterSource.COMMANDLINE:
            raise InvalidOption("--server and --gallery: give one of them")
        if output or open_page or show:
            raise InvalidOption("-o, --open and --show need the files: not with --server")
        from bm25v.client import Client, read_token

        token = None if token_file is None else read_token(token_file)
        with Client(server, token=token) as client:
            results = client.search(images, **options)
        no_match = results.no_match
        labels = [""] * len(results)
    else:
        if output is not None or open_page:
            from bm25v.render.html import PAGE_SUFFIXES
            from bm25v.render.results_page import SUFFIXES

            suffixes = PAGE_SUFFIXES if open_page else SUFFIXES
            output = choose_output(output, suffixes, page="results", is_opened=open_page)
        if images:
            _start_loading(gallery_path)
        with open_gallery(gallery_path) as gallery:
            if images:
                _load_others(gallery)
            results = gallery.search(images, **options)
            labels = _label_hits(results)
            is_empty = not len(gallery)
            no_match = f"{gallery_path} has no images" if is_empty else results.no_match
            if output is not None:
                with progress_bar() as progress:
                    results.save(output, words=n_words, progress=progress)

    def print_results() -> None:
        print_notes(results.notes)
        is_table, unknown = output_format == "table", ", ".join(results.not_understood)
        if len(unknown) > _UNKNOWN:
            unknown = f"{unknown[:_UNKNOWN]}…"
        if unknown and not results.understood and results.no_match and no_match == results.no_match:
            echo(f"nothing known about {unknown}", err=not is_table)
            if is_table:
                echo_wrapped(_WHAT_TO_TYPE, style="dim")
        else:
            if unknown:
                echo(f"not understood: {unknown}", err=not is_table)
            if not results:
                echo(f"no match: {no_match}", err=not is_table)
        if output_format == "paths":
            end = b"\0" if null else b"\n"
            echo_bytes(b"".join(os.fsencode(hit.path) + end for hit in results))
        elif output_format == "csv":
            from bm25v.render.results_page import format_csv

            echo_bytes(format_csv(results, words=n_words))
        elif results:
            _print_hits(results, labels, show=show, has_files=server is None)

    emit(partial(results.to_dict, words=n_words), output_format == "json", print_results)
    report_written(output, is_opened=open_page, is_silent=output_format != "table")
    if options["text"] is not None and not results.understood and not results:
        sys.exit(1)


def _start_loading(gallery_path: Path | str) -> None:
    """Let a thread load the model, before the modules of a search are imported."""
    from bm25v.backbones import start_loading
    from bm25v.store.local.database import read_backbone

    with suppress(Bm25vError):  # opening the gallery raises it again
        start_loading(read_backbone(Path(gallery_path)))


def _load_others(gallery: "Gallery") -> None:
    """Load what hits are named and printed with, while the model is loaded."""
    for module in ("bm25v.explain.sums", "rich.console", "rich.table"):
        importlib.import_module(module)
    if gallery.vocabulary.lexicon is not None:
        gallery.vocabulary.lexicon.index  # noqa: B018 - makes it


def _check_images(images: tuple[str, ...]) -> None:
    """Raise an error if something else was given as an image: a folder, or a text."""
    from bm25v.images import SUFFIXES

    for image in images:
        if os.path.isdir(image):
            raise InvalidOption(
                f"{image} is a folder: give an image; `bm25v index {image}` indexes it"
            )
    is_text = {image: Path(image).suffix.lower() not in SUFFIXES for image in images}
    text = " ".join(image for image in images if is_text[image] and not os.path.lexists(image))
    if text.strip():
        raise InvalidOption(f'no image {text!r}; to search by text: --text "{text}"')


def _label_hits(results: "Results") -> list[str]:
    """Return what the query and each hit show, as far as their words have names; not for a text."""
    if not results or results.hits[0].text:
        return [""] * len(results)
    groups = results.group_words().hits
    return [", ".join(group.label for group in hit if group.label) for hit in groups]


def _print_hits(results: "Results", labels: Sequence[str], *, show: bool, has_files: bool) -> None:
    is_judged = not results.not_understood
    if results.is_weak and is_judged:
        echo("No good match. The closest are:")
    if not (show and _show_hits(results, labels)):
        _print_table(results, labels, has_files=has_files)
    if _is_steered(results):
        words = sorted(results.query, key=lambda word: -abs(word.weight))
        listed = ", ".join(f"{word.label} × {word.weight:.3g}" for word in words[:_QUERY_WORDS])
        n_more = len(words) - _QUERY_WORDS
        echo_wrapped(f"query: {listed}" + f" and {n_more} more" * (n_more > 0), style="dim")
    order, best = results.order, results.hits[0]
    if best.rank == 1 and best.strength is not None and is_judged:
        order = f"best match: {best.strength}; {order}"
    echo_wrapped(f"{order} ({duration(sum(results.ms.values()) / 1e3)})", style="dim")


def _show_hits(results: "Results", labels: Sequence[str]) -> bool:
    """Print thumbnails instead of a table, if the terminal can show them."""
    from bm25v.cli.show import Shown, can_show, show_images
    from bm25v.images import decode_image

    if not can_show():
        return False
    shown = []
    for hit, label in zip(results, labels, strict=True):
        try:
            pixels, problem = decode_image(hit.path, short_side=_THUMBNAIL_SIDE), ""
        except ImageError as error:
            pixels, problem = None, str(error)
        figures = " ".join(filter(None, (str(hit.rank), hit.strength, f"{hit.score:.3f}")))
        name = shorten_path(display_path(hit.path), _THUMBNAIL_COLUMNS)
        shown.append(Shown(pixels, (figures, name, problem or label, "")))
    show_images(shown, columns=_THUMBNAIL_COLUMNS, lines=_THUMBNAIL_LINES)
    return True


def _print_table(results: "Results", labels: Sequence[str], *, has_files: bool) -> None:
    from bm25v.explain.sums import list_shares

    first = results.hits[0]
    columns: dict[str, Callable[[Hit], str]] = {
        "#": lambda hit: str(hit.rank),
        "score": lambda hit: f"{hit.score:.3f}",
    }
    if not first.text:
        columns["coverage"] = lambda hit: f"{hit.coverage:.0%}"
    terms = _fit_titles([label for label, _ in list_shares(first)])
    rows = []
    for hit, label in zip(results, labels, strict=True):
        numbers = [show(hit) for show in columns.values()]
        shares = [f"{share:.0%}" for _, share in list_shares(hit)[: len(terms)]]
        # Images from memory have no file.
        is_missing = has_files and os.path.isabs(hit.path) and not os.path.lexists(hit.path)
        path = display_path(hit.path) + " (missing)" * is_missing
        if hit.copies:
            path += f" ({len(hit.copies) + 1} copies)"
        rows.append([*numbers, *shares, path, label])
    heads: list[str | Column] = [*columns, *terms, Column("image", "path")]
    if any(labels):
        heads.append(Column("both show", "list"))
    print_table(heads, [row[: len(heads)] for row in rows])


def _fit_titles(labels: Sequence[str]) -> list[str]:
    """Return titles for the words of a text: as many as fit into two fifths of the line."""
    width, titles = output_width(), []
    room, most = 2 * width // 5, max(_TERM_WIDTH, width // 10)
    for label in labels:
        title = label if len(label) <= most else f"{label[: most - 1]}…"
        room -= len(title) + 2
        if room < 0:
            break
        titles.append(title)
    return titles


def _is_steered(results: "Results") -> bool:
    """Return whether the weights of words are others than those of one image."""
    from bm25v.search.scoring import MODES

    scoring, weights = MODES[results.mode], [word.weight for word in results.query]
    if results.hits[0].text:
        return False
    if scoring.bags == "full":  # by the strength of a word, up to 1
        return any(weight < 0 or weight > 1 for weight in weights)
    return any(weight != 1 for weight in weights)


@click.command("explain", cls=QueryCommand, has_pages=False)
@click.argument("images", nargs=-1, type=PathType(), metavar="[IMAGE]...")
@click.argument("hit", type=PathType())
@json_option
@output_option(
    "Write both images, bright where they match: a page (.html), or an image (.png, .jpg, .webp, "
    ".pdf)."
)
@open_option
@collection_option
@click.option(
    "--words",
    "n_words",
    type=COUNT,
    help="Visual words to list with their numbers  [default: none; 24 in the details of a page]",
)
@click.option("--show", is_flag=True, help="Show both images in the terminal.")
def explain(
    images: tuple[str, ...],
    hit: str,
    options: "QueryOptions",
    as_json: bool,
    output: Path | None,
    open_page: bool,
    gallery_path: Path | str,
    n_words: int | None,
    show: bool,
) -> None:
    """Show why HIT, an image of the gallery, matches IMAGE.

    Give several images, and the options of a search, to explain a hit of that search.
    """
    _check_images(images)
    if output is not None or open_page:
        from bm25v.render.explanation_page import FORMATS

        output = choose_output(output, FORMATS, page="why", is_opened=open_page)
    with open_gallery(gallery_path) as gallery:
        explanation = gallery.explain(images, hit, **options)
    if output is not None:
        explanation.save(output, **({} if n_words is None else {"words": n_words}))
    emit(explanation.to_dict, as_json, lambda: _print_explanation(explanation, n_words))
    if show and not as_json:
        _show_explanation(explanation)
    report_written(output, is_opened=open_page, is_silent=as_json)


def _print_explanation(explanation: "Explanation", n_words: int | None) -> None:
    print_notes(explanation.notes)
    echo(f"{explanation.title}: {display_path(explanation.hit_path)}")
    echo_wrapped(explanation.sentence)
    print_table(
        ["share", Column("of the score", "text"), Column("", "text"), Column("", "text")],
        [
            (group.percent, group.label, _draw_bar(group.share), group.about)
            for group in explanation.groups
        ],
    )
    if n_words is not None:
        _print_details(explanation, n_words)


def _draw_bar(share: float) -> str:
    return "▄" * max(1, round(_BAR * min(1.0, abs(share))))


def _print_details(explanation: "Explanation", n_words: int) -> None:
    from bm25v.explain.sums import sum_up

    match = explanation.match
    echo()
    for line in sum_up(match):
        echo(" ".join(filter(None, (line.label, line.value, line.about and f"({line.about})"))))
    echo_wrapped(explanation.about_rank)
    if not match.text:
        echo(f"share of the query matched {match.coverage:.0%}, rare words counting more")
    if not explanation.parts:
        return
    echo(f"visual words (BM25) {match.sparse:.2f}, the sum of:")
    _print_contributions(explanation, n_words)
    echo(
        f"total word strength {match.length:.2f} (average of {count(match.n_images, 'image')} "
        f"{match.average_length:.2f})"
    )


def _print_contributions(explanation: "Explanation", top: int) -> None:
    """Print what each word adds, IDF × saturation (× weight), and the numbers behind that."""
    contributions = explanation.rounded_contributions()
    words = [part.word for part in explanation.parts[:top]]
    columns: dict[str, Callable[[WordContribution], str]] = {
        "IDF": lambda word: f"{word.idf:.2f}",
        "× saturation": lambda word: f"{word.saturation:.2f}",
        "× weight": lambda word: f"{word.weight:.3g}",
        "tf here": lambda word: f"{word.tf:.2f}",
        "in query": lambda word: f"{word.query_tf:.2f}",
        "images": lambda word: f"{word.df:,}",
    }
    if all(word.weight == 1 for word in words):
        del columns["× weight"]
    if not any(word.query_tf for word in words):
        del columns["in query"]
    rows = [
        (f"{adds:.2f}", word.label, *(show(word) for show in columns.values()))
        for adds, word in zip(contributions, words, strict=False)
    ]
    rest = contributions[top:]
    if rest:
        rows.append((f"{sum(rest):.2f}", count(len(rest), "more word"), *[""] * len(columns)))
    print_table(["adds", Column("word", "text"), *columns], rows)


def _show_explanation(explanation: "Explanation") -> None:
    """Show both images with what matched, if the terminal can show them."""
    from bm25v.cli.show import Shown, can_show, show_images
    from bm25v.explain.heatmaps import highlight, list_photos

    if not can_show():
        return
    shown = [
        Shown(highlight(photo.pixels, photo.grid, explanation.visibility), (photo.role.lower(),))
        for photo in list_photos(explanation.fine)
    ]
    columns = output_width() // max(1, len(shown)) - 2
    columns = min(_IMAGE_COLUMNS, max(_LEAST_IMAGE_COLUMNS, columns))
    show_images(shown, columns=columns, lines=_IMAGE_LINES)
