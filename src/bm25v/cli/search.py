"""`bm25v search` and `bm25v explain`."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from bm25v.cli.options import (
    PathType,
    engine_option,
    gallery_option,
    is_empty_query,
    json_option,
    open_collection,
    open_option,
    query_options,
)
from bm25v.cli.printing import (
    Column,
    echo,
    echo_wrapped,
    fit_items,
    make_columns,
    open_in_browser,
    output_width,
    path_column,
    print_json,
    print_table,
    shorten_path,
    temporary_page,
)
from bm25v.cli.show import (
    EXAMPLE_SIDE,
    Box,
    Shown,
    can_show,
    show_examples,
    show_images,
    thumbnail_box,
)
from bm25v.display import count, display_path, duration
from bm25v.errors import WrongUse

if TYPE_CHECKING:
    from bm25v.collect import Collection
    from bm25v.explanations import Explanation
    from bm25v.search import Hit, QueryOptions, Results
    from bm25v.search.engine import Standing

_ORDERS = {
    "hybrid": "sorted by similarity + {factor:.3g} × BM25",
    "words": "sorted by words (BM25)",
    "two-stage": "sorted by similarity",
    "sparse": "sorted by words of the index (BM25)",
    "dense": "sorted by similarity",
    "concepts": "sorted by the probability of what the text names",
}
_NARROW, _WIDE = 80, 100  # columns: below, fewer numbers are shown; from there on, more
_TERMS = 4  # of a text, at most
_HIT_WORDS = 5  # at most, beside a hit
_QUERY_WORDS = 8  # at most, below the hits
_IMAGE_COLUMNS, _LEAST_IMAGE_COLUMNS, _IMAGE_LINES = 60, 16, 30  # of an explained image
_THUMBNAIL_SIDE = 180  # pixels
_SHOWN_WORDS = 3  # of an explanation, with other images that show them


@click.command("search")
@click.argument("images", nargs=-1, type=PathType(), metavar="[IMAGE]...")
@gallery_option
@engine_option
@click.option(
    "-o",
    "--output",
    type=PathType(dir_okay=False, path_type=Path),
    help="Write the hits: a page with thumbnails (.html), a table (.csv) or JSON (.json).",
)
@open_option
@click.option("--show", is_flag=True, help="Show thumbnails in the terminal.")
@click.option(
    "--collect",
    type=PathType(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Copy the hits into a folder, numbered by rank.",
)
@click.option("--link", is_flag=True, help="With --collect: make links instead of copies.")
@query_options
@click.option("-v", "--verbose", is_flag=True, help="Show the time of each stage.")
@click.option("--server", metavar="URL", help="Search the gallery of this `bm25v serve` instead.")
@click.option(
    "--token-file",
    type=PathType(dir_okay=False, path_type=Path),
    help="With --server: a file with its token.",
)
@json_option
def search(
    images: tuple[str, ...],
    gallery_path: Path,
    engine: str | None,
    server: str | None,
    token_file: Path | None,
    output: Path | None,
    open_page: bool,
    show: bool,
    collect: Path | None,
    link: bool,
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
    from bm25v.cli.progress import progress_bar
    from bm25v.explanations.explanation import explain_hits
    from bm25v.pages.results_page import write_results
    from bm25v.search import Query

    if not images and is_empty_query(options):
        raise WrongUse("an empty query: give an IMAGE, a --text, or words by --must or --boost")
    if link and collect is None:
        raise WrongUse("--link without --collect: give the folder for the links")
    _check_images(images)
    if server is not None:
        if engine is not None:
            raise WrongUse("--server and --engine: give one of them")
        if output or open_page or show or collect:
            raise WrongUse("-o, --open, --show and --collect need the files: not with --server")
        _search_server(server, token_file, images, options, verbose, as_json)
        return
    output = _check_output(output, open_page)
    with open_collection(gallery_path, engine) as gallery:
        results = gallery.search(images, **options)
        n_images = len(gallery)
        if output is not None:
            query = Query.of(images, **options)
            explain_several = partial(explain_hits, gallery.engine, query)
            command = _explain_command(images, gallery_path, engine, options)
            with progress_bar() as progress:
                write_results(results, output, explain_several, command=command, progress=progress)
    collection = None if collect is None else _collect(results, collect, link)
    if as_json:
        print_json(results.to_dict())
    else:
        for note in results.notes:
            echo(f"note: {note}", err=True)
        if not n_images:
            echo(f"no match: {engine or gallery_path} has no images")
        elif not results:
            echo(f"no match: {results.no_match}")
        else:
            _print_hits(results, verbose, show=show)
        if collection is not None and collect is not None:
            done = "linked" if link else "copied"
            n_hits = count(len(collection.files), "hit")
            echo(f"{n_hits} {done} to {display_path(str(collect))}")
        if output is not None:
            echo(f"written: {display_path(str(output))}")
    if open_page and output is not None:
        open_in_browser(output)


def _search_server(
    url: str,
    token_file: Path | None,
    images: tuple[str, ...],
    options: "QueryOptions",
    verbose: bool,
    as_json: bool,
) -> None:
    """Search the gallery of a server, and print its hits."""
    from bm25v.client import Client, read_token

    token = None if token_file is None else read_token(token_file)
    results = Client(url, token=token).search(images, **options)
    if as_json:
        print_json(results.to_dict())
        return
    for note in results.notes:
        echo(f"note: {note}", err=True)
    if results:
        _print_hits(results, verbose, show=False)
    else:
        echo(f"no match: {results.no_match}")


def _check_output(output: Path | None, open_page: bool) -> Path | None:
    """Return the file to write, which is a temporary page if one is to be opened."""
    from bm25v.pages.results_page import PAGE_SUFFIXES, check_output

    if output is None:
        return temporary_page("results") if open_page else None
    if open_page and output.suffix.lower() not in PAGE_SUFFIXES:
        raise WrongUse(f"--open opens a page, and {output} is none: name a file like hits.html")
    check_output(output)
    return output


def _explain_command(
    images: tuple[str, ...],
    gallery_path: Path,
    engine: str | None,
    query_options: "QueryOptions",
) -> Callable[[str], str]:
    """Return what makes the command that explains a hit of this search."""
    from bm25v.pages.commands import join_command

    context = click.get_current_context()
    paths = [os.path.abspath(image) for image in images]
    options = [f"--engine={engine}" if engine else f"--gallery={os.path.abspath(gallery_path)}"]
    for name in sorted(query_options.keys() - {"k", "offset", "include_query"}):
        if context.get_parameter_source(name) == ParameterSource.COMMANDLINE:
            (option,) = (option for option in context.command.params if option.name == name)
            value = context.params[name]
            values = value if isinstance(value, tuple) else (value,)
            options += [f"{option.opts[0]}={value}" for value in values]
    return lambda hit: join_command("explain", *paths, hit, *options, "--open")


def _collect(results: "Results", folder: Path, link: bool) -> "Collection":
    from bm25v.collect import collect_hits

    collection = collect_hits(results, folder, link=link)
    for skipped in collection.skipped:
        echo(f"not copied: {display_path(skipped.hit)}: {skipped.reason}", err=True)
    return collection


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


def _print_hits(results: "Results", verbose: bool, *, show: bool) -> None:
    if results.is_weak:
        echo("No good match. The closest are:")
    if show and can_show():
        _show_hits(results)
    else:
        _print_table(results)
    if _is_steered(results):
        echo_wrapped(_list_weights(results, output_width()), style="dim")
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


def _show_hits(results: "Results") -> None:
    """Print thumbnails instead of a table."""
    from bm25v.errors import ImageError
    from bm25v.images import decode_image

    box, shown = thumbnail_box(), []
    for hit in results:
        try:
            pixels, problem = decode_image(hit.path, short_side=_THUMBNAIL_SIDE), ""
        except ImageError as error:
            pixels, problem = None, str(error)
        figures = " ".join(filter(None, (str(hit.rank), hit.strength, f"{hit.score:.3f}")))
        name = shorten_path(display_path(hit.path), box.columns)
        words = fit_items(_list_words(hit, with_contributions=False), box.columns)
        shown.append(Shown(pixels, (figures, name, problem or ", ".join(words), "")))
    show_images(shown, box)


def _print_table(results: "Results") -> None:
    is_wide = output_width() >= _WIDE
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
    terms = _list_terms(results)
    hidden = set() if is_wide else {"by words", "BM25"}
    if results.mode == "concepts":
        hidden |= {"BM25", "coverage"} if not results.sparse_factor else {"coverage"}
    if results.mode == "sparse" or results.candidates is None:
        hidden.add("by words")
    if results.mode in ("sparse", "words"):
        hidden.add("BM25")  # it is the score
    is_ordered_by_words = results.mode != "concepts" or results.sparse_factor
    words_title = "words that add most" if is_ordered_by_words else "words that the best hits share"
    words = [_list_words(hit, with_contributions=is_wide) for hit in results]
    print_table(
        [
            *(column for column in make_columns(header, rows) if column.title not in hidden),
            *make_columns(*terms),
            path_column("image", (hit.path for hit in results)),
            Column(words_title, words),
        ]
    )


def _list_terms(results: "Results") -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return a column with the probability of each term of a text: its titles and its values."""
    titles = tuple(part.label for part in results.hits[0].concepts)[:_TERMS]
    values = [tuple(f"{p.probability:.0%}" for p in hit.concepts[:_TERMS]) for hit in results]
    return titles, values


def _is_steered(results: "Results") -> bool:
    """Return whether the weights of words are others than those of one image."""
    weights = [word.weight for word in results.query]
    if results.mode == "concepts":
        return bool(results.sparse_factor)
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
@engine_option
@click.option(
    "-o",
    "--output",
    type=PathType(dir_okay=False, path_type=Path),
    help="Write both images with a heat map of each word: a page (.html), or an image of the first "
    "words (.png, .jpg, .webp, .pdf).",
)
@open_option
@click.option("--top", type=click.IntRange(1), help="Words to show  [default: 5; all on a page]")
@click.option("--show", is_flag=True, help="Show both images in the terminal.")
@query_options
@json_option
def explain(
    images: tuple[str, ...],
    hit: str,
    gallery_path: Path,
    engine: str | None,
    output: Path | None,
    open_page: bool,
    top: int | None,
    show: bool,
    options: "QueryOptions",
    as_json: bool,
) -> None:
    """Show why HIT, an image of the gallery, matches IMAGE.

    Give several images, and the options of a search, to explain a hit of that search.
    """
    _check_images(images)
    if output is None and open_page:
        output = temporary_page("why")
    if output is not None:
        from bm25v.pages.explanation_page import check_output

        check_output(output)  # before the work
    with open_collection(gallery_path, engine) as gallery:
        explanation = gallery.explain(images, hit, **options)
    if output is not None:
        explanation.save(output, top=top)
    if as_json:
        print_json(explanation.to_dict())
    else:
        _print_explanation(explanation, top or 5)
        if show:
            _show_images(explanation)
        if output is not None:
            echo(f"written: {display_path(str(output))}")
    if open_page and output is not None:
        open_in_browser(output)


def _print_explanation(explanation: "Explanation", top: int) -> None:
    match = explanation.match
    for note in explanation.notes:
        echo(f"note: {note}", err=True)
    echo(f"{explanation.title}: {display_path(explanation.hit_path)}")
    echo(f"score {match.formula}")
    if explanation.standing is not None:
        echo_wrapped(_describe_standing(explanation.standing), style="dim")
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


def _describe_standing(standing: "Standing") -> str:
    """Return what the rank of a hit depends on."""
    neighbours = (
        (standing.rank - 1, standing.score_above),
        (standing.rank + 1, standing.score_below),
    )
    facts = [f"rank {rank:,} has {score:.3f}" for rank, score in neighbours if score is not None]
    if standing.rank_by_words is not None:
        facts.append(
            f"by similarity alone it would be rank {standing.rank_by_similarity:,}, "
            f"by words alone rank {standing.rank_by_words:,}"
        )
    return "; ".join(facts)


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
    """Show both images with what matched, then other images that show the first words."""
    from bm25v.explanations.crops import cut_examples
    from bm25v.explanations.heatmaps import highlight
    from bm25v.explanations.maps import combine_maps

    if not can_show():
        return
    in_queries, in_hit = combine_maps(explanation)
    maps = [("query", *pair) for pair in zip(explanation.query_images, in_queries, strict=True)]
    if explanation.hit_image is not None and in_hit is not None:
        maps.append(("hit", explanation.hit_image, in_hit))
    columns = min(
        _IMAGE_COLUMNS, max(_LEAST_IMAGE_COLUMNS, output_width() // max(1, len(maps)) - 2)
    )
    strength = explanation.visibility
    shown = [Shown(highlight(image, grid, strength), (role,)) for role, image, grid in maps]
    show_images(shown, Box(columns, _IMAGE_LINES))
    first = explanation.parts[:_SHOWN_WORDS]
    crops = cut_examples((e for part in first for e in part.examples), side=EXAMPLE_SIDE)
    for part in first:
        examples = [crops[example] for example in part.examples if example in crops]
        if examples:
            echo(f"{part.word.label} in other images:")
            show_examples(examples)
