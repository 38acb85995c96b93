"""Commands that a page offers to copy: to explain a hit, and to name a word."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator

from bm25v.explain.explanation import Explanation
from bm25v.search.query import OPTIONS, Query, format_values


def explain_command(explanation: Explanation) -> str | None:
    """Return the command that opens the page of an explanation.

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
    images = (*map(os.path.abspath, explanation.query_paths), explanation.hit_path)
    options = (*list_options(query), "-g", explanation.gallery)
    return join_command("explain", *images, *options, "--open")


def list_options(query: Query) -> Iterator[str]:
    """Yield the options of a query for a command line, without its images and the page of hits.

    Paths are absolute, so that the command works in any folder.

    >>> list(list_options(Query.of("cat.jpg", must=12, min_size=(800, 600), include_query=True)))
    ['--must', '12', '--min-size', '800x600', '--include-query']
    """
    for name, option in OPTIONS.items():
        value = getattr(query, name)
        is_default = isinstance(value, int | float) and value == option.default
        if name in ("images", "k", "offset") or is_default:
            continue
        if option.kind == "flag":
            yield option.flag
        else:
            for text in format_values(option.kind, value):
                is_path = option.kind in ("folder", "hit", "image") and os.path.lexists(text)
                yield from (option.flag, os.path.abspath(text) if is_path else text)


def name_command(gallery: str, word: int) -> str:
    """Return the command that names a word; the name is to be filled in.

    >>> name_command("gallery.bm25v", 12)
    "bm25v words name 12 'NEW NAME' -g gallery.bm25v"
    >>> name_command("qdrant://host:6334/images", 12)
    "bm25v words name 12 'NEW NAME' -g qdrant://host:6334/images"
    """
    return join_command("words", "name", str(word), "NEW NAME", "-g", gallery)


def remove_command(gallery: str, path: str) -> str:
    """Return the command that removes an image from a gallery.

    >>> remove_command("gallery.bm25v", "/photos/cat.jpg")
    'bm25v remove /photos/cat.jpg -g gallery.bm25v'
    """
    return join_command("remove", path, "-g", gallery)


def join_command(*arguments: str) -> str:
    # Windows: it has other rules for quotes.
    join = subprocess.list2cmdline if sys.platform == "win32" else shlex.join
    return join(["bm25v", *arguments])
