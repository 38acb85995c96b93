"""Words of the gallery, how they look, facts about the gallery, and what a person can choose from.

How a word looks comes from the stored full bags, so no image is encoded.
"""

import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

import bm25v
from bm25v import images
from bm25v.client import to_id
from bm25v.explain.crops import crop_patch, encode_jpeg
from bm25v.explain.word_examples import PatchBox, find_examples, find_patch
from bm25v.explain.word_statistics import ImageWithWord, WordInGallery, WordOrder
from bm25v.render.commands import name_command
from bm25v.search.filters import RowFilter
from bm25v.searchable import Searchable
from bm25v.server import problems
from bm25v.server.bodies import ImageId, Offset
from bm25v.server.images import CACHE_CONTROL, ImageFiles
from bm25v.server.problems import Problem
from bm25v.server.responses import (
    FOLDERS,
    PREFIX,
    STATS,
    TERMS,
    WORD,
    WORD_PAGE,
    json_response,
)
from bm25v.server.watch import WatchedFolder
from bm25v.server.workers import Threads
from bm25v.store.local.records import ImageRecord
from bm25v.vocabulary.phrases import fold

_DECODED = 4  # times the side of a crop
_KEPT_BYTES = 50_000_000  # of crops
_MAX_FOLDERS = 1000

WordNumber = Annotated[int, Path(ge=0, le=2**31, description="The number of a word.")]
Side = Annotated[int, Query(ge=16, le=512, description="The side of the square, in pixels.")]


def word_routes(
    gallery: Searchable,
    searching: Threads,
    watched: Sequence[WatchedFolder] = (),
    *,
    writable: bool = False,
) -> APIRouter:
    router = APIRouter(
        prefix=PREFIX, tags=["words"], responses=problems.describe(401, 403, 404, 422, 503)
    )

    @router.get("/words", response_model=WORD_PAGE)
    async def list_words(
        sort: Annotated[WordOrder, Query(description="df: most images first.")] = "word",
        best: Annotated[int, Query(ge=1, le=10, description="Images of each word.")] = 3,
        offset: Offset = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    ) -> Response:
        """List the words in use, each with the images where it is strongest."""

        def work() -> Response:
            words = gallery.words(best=best, sort=sort, offset=offset, limit=limit)
            page, facts = list(map(_word_to_dict, words)), gallery.info()
            counts = {"n_images": facts.n_images, "total": facts.words_in_use}
            return json_response({**counts, "offset": offset, "limit": limit, "words": page})

        return await searching.run(work)

    @router.get("/words/{number}", response_model=WORD)
    async def get_word(
        number: WordNumber,
        images: Annotated[int, Query(ge=0, le=1000, description="Of the list `top`.")] = 24,
    ) -> Response:
        """Say in which images a word is, and which other words are with it."""

        def work() -> Response:
            find_word(gallery, number)
            use, names = gallery.word(number), gallery.word_names
            companions = [{**w._asdict(), "name": names.get(w.word)} for w in use.companions]
            return json_response(
                {
                    **_word_to_dict(use.facts),
                    "n_images": use.n,
                    "top": _images_to_dicts(use.images[:images]),
                    "companions": companions,
                    "folders": [folder._asdict() for folder in use.folders],
                    "purity": use.purity,
                    "name_command": name_command(gallery.engine.location, number),
                }
            )

        return await searching.run(work)

    @router.get("/stats", response_model=STATS)
    def get_stats() -> Response:
        """Return facts about the gallery, and about the folders that are watched."""
        server = {"version": bm25v.__version__, "writable": writable}
        watch = [folder.to_dict() for folder in watched]
        return json_response({**gallery.info().to_dict(), **server, "watch": watch})

    @router.get("/folders", response_model=FOLDERS)
    async def list_folders() -> Response:
        """List the folders with images, each with the number of images in it and below it."""

        def work() -> Response:
            counts = gallery.engine.read(lambda view: view.count_folders(RowFilter()))
            return json_response(describe_folders(counts))

        return await searching.run(work)

    @router.get("/terms", response_model=TERMS)
    async def list_terms(
        prefix: Annotated[str, Query(min_length=1, max_length=100)],
        limit: Annotated[int, Query(ge=1, le=100)] = 8,
    ) -> Response:
        """List names that a text may use and that start like this: concepts and named words."""

        def work() -> Response:
            names = {*gallery.word_names.values()}
            concepts = gallery.vocabulary.concepts
            if concepts is not None:
                names |= {name for concept in concepts.table.concepts for name in concept.names}
            start = fold(prefix)
            terms = [name for name in names if fold(name).startswith(start)]
            terms.sort(key=lambda name: (len(name), name))
            return json_response({"terms": terms[:limit]})

        return await searching.run(work)

    return router


def crop_routes(
    gallery: Searchable, files: ImageFiles, searching: Threads, thumbnailing: Threads
) -> APIRouter:
    """Return the routes that cut a word out of an image, where it is strongest, as a JPEG."""
    router = APIRouter(
        prefix=PREFIX,
        tags=["words"],
        default_response_class=Response,
        responses={
            200: {"content": {"image/jpeg": {}}},
            **problems.describe(401, 403, 404, 422, 503),
        },
    )
    engine = gallery.engine
    kept: OrderedDict[tuple[bytes, int, int], bytes] = OrderedDict()
    n_bytes = 0

    async def cut(record: ImageRecord, word: int, patch: PatchBox, side: int) -> Response:
        nonlocal n_bytes

        def work() -> bytes:
            image_hwc = images.decode_image(files.read(record), short_side=_DECODED * side)
            part = images.resize_image(crop_patch(image_hwc, patch), width=side, height=side)
            return encode_jpeg(part)

        key = (record.content, word, side)
        crop = kept.get(key)
        if crop is None:
            crop = await thumbnailing.run(work)
            n_bytes += len(crop) - len(kept.get(key, b""))
            kept[key] = crop
            while n_bytes > _KEPT_BYTES:
                n_bytes -= len(kept.popitem(last=False)[1])
        return Response(crop, headers={"Cache-Control": CACHE_CONTROL}, media_type="image/jpeg")

    @router.get("/images/{id}/crop")
    async def show_word_in_image(
        id: ImageId,
        word: Annotated[int, Query(ge=0, le=2**31, description="The number of a word.")],
        size: Side = 128,
    ) -> Response:
        """Cut out the part of an image where a word is strongest; all of it if that is unknown."""

        def find() -> tuple[ImageRecord, PatchBox]:
            record = files.find(id)
            find_word(gallery, word)
            return record, find_patch(engine, record.path, word)

        record, patch = await searching.run(find)
        return await cut(record, word, patch, size)

    @router.get("/words/{number}/crop")
    async def show_word(number: WordNumber, size: Side = 128) -> Response:
        """Cut out a word where an image of the gallery shows it best."""

        def find() -> tuple[ImageRecord, PatchBox]:
            find_word(gallery, number)
            for example in find_examples(engine, [number], n=1)[number]:
                record = engine.find_record(example.path)
                if record is not None:
                    return record, example.patch
            raise Problem(404, "no-example", f"no image that can be read shows word {number}")

        record, patch = await searching.run(find)
        return await cut(record, number, patch, size)

    return router


def find_word(gallery: Searchable, number: int) -> None:
    """Raise a 404 `Problem` if the vocabulary has no such word."""
    n_words = gallery.engine.meta.n_words
    if number >= n_words:
        detail = f"no word {number}: this vocabulary has words 0 to {n_words - 1}"
        raise Problem(404, "unknown-word", detail)


def describe_folders(counts: Mapping[str, int]) -> dict[str, Any]:
    """Return the folder that holds all images that are files, and the folders below it.

    >>> describe_folders({"": 3, "/p": 3, "/p/a": 2, "/p/b": 1, "shop": 1})
    {'root': '/p', 'folders': [{'path': '/p/a', 'n_images': 2}, {'path': '/p/b', 'n_images': 1}]}
    """
    files = {path or os.sep: n for path, n in counts.items() if os.path.isabs(path or os.sep)}
    n_files = max(files.values(), default=0)
    root = max((path for path in files if files[path] == n_files), key=len, default="")
    below = sorted(path for path in files if files[path] < n_files)[:_MAX_FOLDERS]
    return {"root": root, "folders": [{"path": path, "n_images": files[path]} for path in below]}


def _word_to_dict(word: WordInGallery) -> dict[str, Any]:
    return {**vars(word), "best": _images_to_dicts(word.best)}


def _images_to_dicts(images: Iterable[ImageWithWord]) -> list[dict[str, Any]]:
    return [{"id": to_id(image.path), **image._asdict()} for image in images]
