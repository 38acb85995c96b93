"""What a person can choose from: folders for a filter, names for a text.

In: the gallery, and the beginning of a name. Out: JSON. Not this module's job: what a text means.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from bm25v.api import Gallery
from bm25v.gallery.snapshot import Snapshot
from bm25v.server import problems
from bm25v.server.responses import FOLDERS, PREFIX, TERMS, describe_json, json_response
from bm25v.server.slots import Slots
from bm25v.vocabulary.phrases import fold

_MAX_FOLDERS = 1000


def suggestion_routes(gallery: Gallery, searching: Slots) -> APIRouter:
    """Return the routes that list folders and names."""
    router = APIRouter(
        prefix=PREFIX, tags=["suggestions"], responses=problems.describe(401, 403, 422, 503)
    )
    kept: dict[Any, dict[str, Any]] = {}  # of one version of the gallery

    @router.get("/folders", responses=describe_json(FOLDERS))
    async def list_folders() -> Response:
        """List the folders with images, each with the number of images in it and below it."""

        def find(snapshot: Snapshot) -> dict[str, Any]:
            if snapshot.version not in kept:
                paths = gallery.store.catalog.all_paths(snapshot.state.generation)
                kept.clear()
                kept[snapshot.version] = count_images(paths.values())
            return kept[snapshot.version]

        return await searching.run(lambda: json_response(gallery.store.read(find)))

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


def count_images(paths: Iterable[str]) -> dict[str, Any]:
    """Return the folder that holds all images, and the folders below it.

    >>> count_images(["/p/a/1.jpg", "/p/a/2.jpg", "/p/b/3.jpg", "memory"])
    {'root': '/p', 'folders': [{'path': '/p/a', 'pictures': 2}, {'path': '/p/b', 'pictures': 1}]}
    """
    own = Counter(os.path.dirname(path) for path in paths if os.path.isabs(path))
    if not own:
        return {"root": "", "folders": []}
    root = os.path.commonpath(own)
    counts: Counter[str] = Counter()
    for folder, n in own.items():
        for path in (folder, *map(str, PurePath(folder).parents)):
            if path == root:
                break
            counts[path] += n
    folders = [{"path": path, "pictures": counts[path]} for path in sorted(counts)[:_MAX_FOLDERS]]
    return {"root": root, "folders": folders}


def _list_names(gallery: Gallery) -> Iterator[str]:
    yield from gallery.word_names.values()
    concepts = gallery.vocabulary.concepts
    if concepts is not None:
        for concept in concepts.table.concepts:
            yield from concept.names
