"""What a person can choose from: folders for a filter, names for a text.

In: the gallery, and the beginning of a name. Out: JSON. Not this module's job: what a text means.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from bm25v.search.filters import RowFilter
from bm25v.searchable import Searchable
from bm25v.server import problems
from bm25v.server.responses import FOLDERS, PREFIX, TERMS, describe_json, json_response
from bm25v.server.slots import Slots
from bm25v.vocabulary.phrases import fold

_MAX_FOLDERS = 1000


def suggestion_routes(gallery: Searchable, searching: Slots) -> APIRouter:
    """Return the routes that list folders and names."""
    router = APIRouter(
        prefix=PREFIX, tags=["suggestions"], responses=problems.describe(401, 403, 422, 503)
    )

    @router.get("/folders", responses=describe_json(FOLDERS))
    async def list_folders() -> Response:
        """List the folders with images, each with the number of images in it and below it."""

        def work() -> Response:
            counts = gallery.engine.read(lambda view: view.count_folders(RowFilter()))
            return json_response(describe_folders(counts))

        return await searching.run(work)

    @router.get("/terms", responses=describe_json(TERMS))
    async def list_terms(
        prefix: Annotated[str, Query(min_length=1, max_length=100)],
        limit: Annotated[int, Query(ge=1, le=100)] = 8,
    ) -> Response:
        """List names that a text may use and that start like this: concepts and named words."""

        def work() -> Response:
            start = fold(prefix)
            found = {name for name in _list_names(gallery) if fold(name).startswith(start)}
            terms = sorted(found, key=lambda name: (len(name), name))[:limit]
            return json_response({"terms": terms})

        return await searching.run(work)

    return router


def describe_folders(counts: Mapping[str, int]) -> dict[str, Any]:
    """Return the folder that holds all images that are files, and the folders below it.

    >>> describe_folders({"": 3, "/p": 3, "/p/a": 2, "/p/b": 1, "shop": 1})
    {'root': '/p', 'folders': [{'path': '/p/a', 'pictures': 2}, {'path': '/p/b', 'pictures': 1}]}
    """
    files = {path or os.sep: n for path, n in counts.items() if os.path.isabs(path or os.sep)}
    n_files = max(files.values(), default=0)
    root = max((path for path in files if files[path] == n_files), key=len, default="")
    below = sorted(path for path in files if files[path] < n_files)[:_MAX_FOLDERS]
    return {"root": root, "folders": [{"path": path, "pictures": files[path]} for path in below]}


def _list_names(gallery: Searchable) -> Iterator[str]:
    yield from gallery.word_names.values()
    concepts = gallery.vocabulary.concepts
    if concepts is not None:
        for concept in concepts.table.concepts:
            yield from concept.names
