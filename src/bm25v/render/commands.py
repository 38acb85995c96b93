"""Commands that a page offers to copy: the same search with other words, and pages of words."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator

from bm25v.explain.explanation import Explanation
from bm25v.search.query import Query, list_paths

_LISTS = {"must": "--must", "without": "--without", "like": "--like", "unlike": "--unlike"}
_VALUES = {
    "text": "--text",
    "query_words": "--query-words",
    "min_coverage": "--min-coverage",
    "date": "--date",
    "mode": "--mode",
    "candidates": "--candidates",
}


def search_command(explanation: Explanation, *more: str) -> str | None:
    """Return the command for the search that was explained, with more options.

    None if no command can express it: an image that is not from a file, a mask, a date that is no
    text.
    """
    query = explanation.query
    if query is None or not isinstance(query.date, str | None):
        return None
    is_mask = query.region is not None and explanation.region is None
    are_files = all(explanation.query_paths) and all(isinstance(i, str) for i in query.negative)
    if is_mask or not are_files:
        return None
    images = [os.path.abspath(path) for path in explanation.query_paths]
    options = _list_options(explanation, query)
    return join_command("search", *more, *images, *options, *_gallery_option(explanation.gallery))


def word_page_command(gallery: str, word: int) -> str | None:
    """Return the command that writes the page of a word; None for a collection of an engine.

    >>> word_page_command("my photos/gallery.bm25v", 12)
    "bm25v words show 12 -g 'my photos/gallery.bm25v' -o word-12.html"
    """
    if _is_address(gallery):
        return None
    return join_command("words", "show", str(word), "-g", gallery, "-o", f"word-{word}.html")


def name_command(gallery: str, word: int) -> str:
    """Return the command that names a word; the name is to be filled in.

    >>> name_command("gallery.bm25v", 12)
    "bm25v words name 12 'NEW NAME' -g gallery.bm25v"
    >>> name_command("qdrant://host:6334/images", 12)
    "bm25v words name 12 'NEW NAME' --engine qdrant://host:6334/images"
    """
    return join_command("words", "name", str(word), "NEW NAME", *_gallery_option(gallery))


def join_command(*arguments: str) -> str:
    # Windows: it has other rules for quotes.
    join = subprocess.list2cmdline if sys.platform == "win32" else shlex.join
    return join(["bm25v", *arguments])


def _gallery_option(gallery: str) -> tuple[str, str]:
    return ("--engine" if _is_address(gallery) else "-g", gallery)


def _is_address(gallery: str) -> bool:
    return "://" in gallery


def _list_options(explanation: Explanation, query: Query) -> Iterator[str]:
    for name, option in _VALUES.items():
        if value := getattr(query, name):
            yield from (option, str(value))
    if explanation.region is not None:
        yield from ("--region", ",".join(f"{share:.4g}" for share in explanation.region))
    for name, option in _LISTS.items():
        for value in getattr(query, name):
            yield from (option, str(value))
    for word, factor in query.boost.items():
        yield from ("--boost", f"{word}={factor:g}")
    for image in query.negative:
        yield from ("--not", str(image))
    for folder in list_paths(query.folder):
        yield from ("--folder", folder)
    for name, size in (("--min-size", query.min_size), ("--max-size", query.max_size)):
        if size is not None:
            yield from (name, str(size) if isinstance(size, int) else "x".join(map(str, size)))
    if query.include_query:
        yield "--include-query"
