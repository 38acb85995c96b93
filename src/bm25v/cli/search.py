"""`bm25v search` and `bm25v explain`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bm25v.cli.options import PathType, gallery_option, is_empty_query, json_option, query_options
from bm25v.cli.printing import (
    Column,
    console,
    echo,
    echo_wrapped,
    fit_items,
    make_columns,
    output_width,
    path_column,
    print_json,
    print_table,
)
from bm25v.display import count, display_path, duration
from bm25v.errors import WrongUse

if TYPE_CHECKING:
    from bm25v.explanations import Explanation
    from bm25v.search import Hit, QueryOptions, Results

_ORDERS = {
    "hybrid": "sorted by similarity + {factor:.3g} × BM25",
    "words": "sorted by words (BM25)",
    "two-stage": "sorted by similarity",
    "sparse": "sorted by words of the index (BM25)",
    "dense": "sorted by similarity",
}
_NARROW, _WIDE = 80, 100  # columns: below, fewer numbers are shown; from there on, more
_HIT_WORDS = 5  # at most, beside a hit
_QUERY_WORDS = 8  # at most, below the hits
_IMAGE_COLUMNS, _LEAST_IMAGE_COLUMNS = 60, 16  # of an image in the terminal
_IMAGE_GAP = 2  # columns between two images


@click.command("search")
@click.argument("images", nargs=-1, type=PathType(), metavar="[IMAGE]...")
@gallery_option
@query_options
@click.option("-v", "--verbose", is_flag=True, help="Show the time of each stage.")
@json_option
def search(
    images: tuple[str, ...],
    gallery_path: Path,
    options: "QueryOptions",
    verbose: bool,
    as_json: bool,
) -> None:
    """Find the images most similar to IMAGE.

    Give several images to find what they have in common. Without an image, search by --text, or by
    visual words alone: --must and --boost. A WORD is a number or a name.

    In a terminal each hit is one line: long paths are shortened, and 100 columns have more numbers
    than 80. In a pipe, lines are complete.
    """
    from bm25v.api import Gallery

    if not images and is_empty_query(options):
        raise WrongUse("an empty query: give an IMAGE, a --text, or words by --must or --boost")
    _check_images(images)
    with Gallery.open(gallery_path) as gallery:
        results = gallery.search(images, **options)
        n_images = len(gallery)
    if as_json:
        print_json(results.to_dict())
        return
    for note in results.notes:
        echo(f"note: {note}", err=True)
    if not n_images:
        echo(f"no match: {gallery_path} has no images")
    elif not results:
        echo(f"no match: {results.no_match}")
    else:
        _print_hits(results, verbose)


def _check_images(images: tuple[str, ...]) -> None:
    """Raise an error if something else was given as an image: a folder, or a text."""
    from bm25v.images import SUFFIXES

    for image in images:
        if os.path.isdir(image):
            raise WrongUse(f"{image} is a folder: give an image; `bm25v index {image}` indexes it")
    is_text = {image: Path(image).suffix.lower() not in SUFFIXES for image in images}
    text = " ".join(image for image in images if is_text[image] and not os.path.lexists(image))
    if text.strip():
        raise WrongUse(f'no image {text!r}; to search by text: --text "{text}"')


def _print_hits(results: "Results", verbose: bool) -> None:
    width = output_width()
    is_wide = width >= _WIDE
    if results.is_weak:
        echo("No good match. The closest are:")
    header = ("#", "by words", "score", "BM25", "coverage")
    rows = [
        (
            str(hit.rank),
            str(hit.first_rank),
            f"{hit.score:.3f}",
            f"{hit.sparse:.2f}",
            f"{hit.coverage:.0%}",
        )
        for hit in results
    ]
    hidden = set() if is_wide else {"by words", "BM25"}
    if results.mode == "sparse" or results.candidates is None:
        hidden.add("by words")
    if results.mode in ("sparse", "words"):
        hidden.add("BM25")  # it is the score
    words = [_list_words(hit, with_contributions=is_wide) for hit in results]
    print_table(
        [
            *(column for column in make_columns(header, rows) if column.title not in hidden),
            path_column("image", (hit.path for hit in results)),
            Column("words that add most", words),
        ]
    )
    if _is_steered(results):
        echo_wrapped(_list_weights(results, width), style="dim")
    n = results.candidates
    which = "all images" if n is None else f"the best {count(n, 'candidate')} of the index"
    order = f"{which}, {_ORDERS[results.mode]}".format(factor=results.sparse_factor or 0)
    best = results.hits[0]
    if best.rank == 1 and best.strength is not None:
        order = f"best match: {best.strength}; {order}"
    seconds = duration(sum(results.ms.values()) / 1e3)
    echo_wrapped(f"{order} ({seconds})", style="dim")
    if verbose:
        stages = ", ".join(f"{stage} {ms:.1f} ms" for stage, ms in results.ms.items())
        echo_wrapped(stages, style="dim")


def _is_steered(results: "Results") -> bool:
    """Return whether the weights of words are others than those of one image."""
    weights = [word.weight for word in results.query]
    if results.mode in ("hybrid", "words"):  # by the strength of a word, up to 1
        return any(weight < 0 or weight > 1 for weight in weights)
    return any(weight != 1 for weight in weights)


def _list_words(hit: "Hit", *, with_contributions: bool) -> list[str]:
    return [
        f"{word.label} ({word.contribution:.2f})" if with_contributions else word.label
        for word in hit.words[:_HIT_WORDS]
    ]


def _list_weights(results: "Results", width: int) -> str:
    """Return the words of the query with their weights, the largest first, as many as fit."""
    words = sorted(results.query, key=lambda word: -abs(word.weight))
    items = [f"{word.label} × {word.weight:.3g}" for word in words[:_QUERY_WORDS]]
    listed = fit_items(items, width - len(f"query:  and {len(words)} more"))
    n_more = len(words) - len(listed)
    return f"query: {', '.join(listed)}" + (f" and {n_more} more" if n_more else "")


@click.command("explain")
@click.argument("images", nargs=-1, type=PathType(), metavar="[IMAGE]...")
@click.argument("hit", type=PathType())
@gallery_option
@click.option(
    "-o",
    "--output",
    type=PathType(dir_okay=False, path_type=Path),
    help="Write both images with a heat map of each word: a page (.html), or an image of the first "
    "words (.png, .jpg, .webp, .pdf).",
)
@click.option("--top", type=click.IntRange(1), help="Words to show  [default: 5; all on a page]")
@click.option("--show", is_flag=True, help="Show both images in the terminal.")
@query_options
@json_option
def explain(
    images: tuple[str, ...],
    hit: str,
    gallery_path: Path,
    output: Path | None,
    top: int | None,
    show: bool,
    options: "QueryOptions",
    as_json: bool,
) -> None:
    """Show why HIT, an image of the gallery, matches IMAGE.

    Give several images, and the options of a search, to explain a hit of that search.
    """
    from bm25v.api import Gallery

    _check_images(images)
    if output is not None:
        from bm25v.pages.explanation_page import check_output

        check_output(output)  # before the work
    with Gallery.open(gallery_path) as gallery:
        explanation = gallery.explain(images, hit, **options)
    if output is not None:
        explanation.save(output, top=top)
    if as_json:
        print_json(explanation.to_dict())
        return
    _print_explanation(explanation, top or 5)
    if show:
        _show_images(explanation)
    if output is not None:
        echo(f"written: {display_path(str(output))}")


def _print_explanation(explanation: "Explanation", top: int) -> None:
    match = explanation.match
    for note in explanation.notes:
        echo(f"note: {note}", err=True)
    strength = f": a {match.strength} match" if match.strength else ""
    echo(f"{display_path(explanation.hit_path)}{strength}")
    echo(f"score {match.formula}")
    echo(f"share of the query matched {match.coverage:.0%}, rare words counting more")
    if explanation.parts:
        echo(f"by words (BM25) {match.sparse:.2f}, the sum of:")
        _print_contributions(explanation, top)
    else:
        echo("by words (BM25) 0.00: no word of the query")
    echo(
        f"total word strength {match.length:.2f} (average of {count(match.n_images, 'image')} "
        f"{match.average_length:.2f})"
    )


def _print_contributions(explanation: "Explanation", top: int) -> None:
    """Print what each word adds, IDF × saturation (× weight), and the numbers behind that."""
    contributions = explanation.rounded_contributions()
    header = ("adds", "word", "IDF", "× saturation", "× weight", "tf here", "in query", "images")
    words = [part.word for part in explanation.parts[:top]]
    rows = [
        (
            f"{contribution:.2f}",
            word.label,
            f"{word.idf:.2f}",
            f"{word.saturation:.2f}",
            f"{word.weight:.3g}",
            f"{word.tf:.2f}",
            f"{word.query_tf:.2f}",
            f"{word.df:,}",
        )
        for contribution, word in zip(contributions, words, strict=False)
    ]
    rest = contributions[top:]
    if rest:
        rows.append((f"{sum(rest):.2f}", count(len(rest), "more word"), "", "", "", "", "", ""))
    hidden = {"× weight"} if all(word.weight == 1 for word in words) else set()
    if output_width() < _NARROW:
        hidden |= {"in query", "images"}
    columns = make_columns(header, rows, texts=("word",))
    print_table([column for column in columns if column.title not in hidden])


def _show_images(explanation: "Explanation") -> None:
    from rich.table import Table

    from bm25v.explanations.explanation import combine_maps
    from bm25v.explanations.heatmaps import overlay
    from bm25v.explanations.terminal import draw_half_blocks

    out = console()
    if out.color_system is None or out.no_color:
        echo("note: this terminal has no colours to show images with: use -o", err=True)
        return
    in_queries, in_hit = combine_maps(explanation)
    maps = list(zip(explanation.query_images, in_queries, strict=True))
    if explanation.hit_image is not None and in_hit is not None:
        maps.append((explanation.hit_image, in_hit))
    per_row = max(1, min(len(maps), out.width // (_LEAST_IMAGE_COLUMNS + _IMAGE_GAP)))
    columns = max(1, min(_IMAGE_COLUMNS, out.width // per_row - _IMAGE_GAP))
    for start in range(0, len(maps), per_row):
        row = Table.grid(padding=(0, _IMAGE_GAP))
        shown = maps[start : start + per_row]
        row.add_row(*(draw_half_blocks(overlay(*pair), columns=columns) for pair in shown))
        out.print(row)
