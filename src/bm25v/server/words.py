"""Words of the gallery, how they look, facts about the gallery, and what a person can choose from.

How a word looks comes from the stored full bags, so no image is encoded.
"""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

import bm25v
from bm25v import images
from bm25v.client import to_id
from bm25v.explain.crops import crop_patch, encode_jpeg
from bm25v.explain.words import (
    ImageWithWord,
    PatchBox,
    WordInGallery,
    WordOrder,
    find_examples,
    find_patch,
)
from bm25v.gallery import Gallery
from bm25v.render.commands import name_command
from bm25v.server import problems
from bm25v.server.images import CACHE_CONTROL, ImageId, Offset, find_image, read_file
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
from bm25v.server.service import DRAWING, SEARCHING, OpenGallery, Served, Service
from bm25v.store.base import Filter
from bm25v.store.records import ImageRecord
from bm25v.vocabulary.phrases import fold

_DECODED = 4  # times the side of a crop
_MAX_FOLDERS = 1000

WordNumber = Annotated[int, Path(ge=0, le=2**31, description="The number of a word.")]
Side = Annotated[int, Query(ge=16, le=512, description="The side of the square, in pixels.")]


def check_number(gallery: Gallery, number: int) -> None:
    """Raise a 404 `Problem` if the vocabulary has no such word."""
    n_words = gallery.store.meta.n_words
    if number >= n_words:
        detail = f"no word {number}: this vocabulary has words 0 to {n_words - 1}"
        raise Problem(404, "unknown-word", detail)


router = APIRouter(
    prefix=PREFIX, tags=["words"], responses=problems.describe(401, 403, 404, 422, 503)
)


@router.get("/words", response_model=WORD_PAGE, dependencies=[SEARCHING])
def list_words(
    gallery: OpenGallery,
    sort: Annotated[WordOrder, Query(description="df: most images first.")] = "word",
    best: Annotated[int, Query(ge=1, le=10, description="Images of each word.")] = 3,
    offset: Offset = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
) -> Response:
    """List the words in use, each with the images where it is strongest."""
    words = gallery.words(best=best, sort=sort, offset=offset, limit=limit)
    page, facts = list(map(_word_to_dict, words)), gallery.info()
    counts = {"n_images": facts.n_images, "total": facts.words_in_use}
    return json_response({**counts, "offset": offset, "limit": limit, "words": page})


@router.get("/words/{number}", response_model=WORD, dependencies=[SEARCHING])
def get_word(
    gallery: OpenGallery,
    number: WordNumber,
    images: Annotated[int, Query(ge=0, le=1000, description="Of the list `top`.")] = 24,
) -> Response:
    """Say in which images a word is, and which other words are with it."""
    check_number(gallery, number)
    use, names = gallery.word(number), gallery.word_names
    return json_response(
        {
            **_word_to_dict(use.facts),
            "n_images": use.n,
            "top": _images_to_dicts(use.images[:images]),
            "companions": [{**w._asdict(), "name": names.get(w.word)} for w in use.companions],
            "folders": [folder._asdict() for folder in use.folders],
            "purity": use.purity,
            "name_command": name_command(gallery.location, number),
        }
    )


@router.get("/stats", response_model=STATS)
def get_stats(service: Served) -> Response:
    """Return facts about the gallery, and about the folders that are watched."""
    server = {"version": bm25v.__version__, "writable": service.writable}
    watch = [folder.to_dict() for folder in service.watched]
    return json_response({**service.gallery.info().to_dict(), **server, "watch": watch})


@router.get("/folders", response_model=FOLDERS, dependencies=[SEARCHING])
def list_folders(gallery: OpenGallery) -> Response:
    """List the folders with images, each with the number of images in it and below it."""
    counts = gallery.store.read(lambda view: view.count_folders(Filter()))
    return json_response(describe_folders(counts))


@router.get("/terms", response_model=TERMS, dependencies=[SEARCHING])
def list_terms(
    gallery: OpenGallery,
    prefix: Annotated[str, Query(min_length=1, max_length=100)],
    limit: Annotated[int, Query(ge=1, le=100)] = 8,
) -> Response:
    """List names that a text may use and that start like this: named words, then the lexicon's.

    Those that are most frequent in captions come first.
    """
    start, lexicon = fold(prefix), gallery.vocabulary.lexicon
    own = sorted({*gallery.store.names.own.values()})
    known = () if lexicon is None else (names[0] for names in lexicon.names)
    terms = dict.fromkeys(name for name in (*own, *known) if fold(name).startswith(start))
    return json_response({"terms": [*terms][:limit]})


_CROP: dict[str, Any] = {
    "response_class": Response,
    "responses": {200: {"content": {"image/jpeg": {}}}},
    "dependencies": [DRAWING],
}


@router.get("/images/{id}/crop", **_CROP)
def show_word_in_image(
    service: Served,
    id: ImageId,
    word: Annotated[int, Query(ge=0, le=2**31, description="The number of a word.")],
    size: Side = 128,
) -> Response:
    """Cut out the part of an image where a word is strongest; all of it if that is unknown."""
    gallery = service.gallery
    record = find_image(gallery, id)
    check_number(gallery, word)
    patch = gallery.store.read(lambda view: find_patch(view, gallery.vocabulary, record.path, word))
    return _cut(service, record, word, patch, size)


@router.get("/words/{number}/crop", **_CROP)
def show_word(service: Served, number: WordNumber, size: Side = 128) -> Response:
    """Cut out a word where an image of the gallery shows it best."""
    gallery = service.gallery
    check_number(gallery, number)
    by_word = gallery.store.read(
        lambda view: find_examples(view, gallery.vocabulary, [number], n=1)
    )
    for example in by_word[number]:
        with suppress(Problem):  # it was removed meanwhile
            record = find_image(gallery, to_id(example.path))
            break
    else:
        raise Problem(404, "no-example", f"no image that can be read shows word {number}")
    return _cut(service, record, number, example.patch, size)


def _cut(service: Service, record: ImageRecord, word: int, patch: PatchBox, side: int) -> Response:
    def make() -> bytes:
        image_hwc = images.decode_image(read_file(record), short_side=_DECODED * side)
        part = images.resize_image(crop_patch(image_hwc, patch), width=side, height=side)
        return encode_jpeg(part)

    crop = service.crops.get((record.content, word, side), make)
    return Response(crop, headers={"Cache-Control": CACHE_CONTROL}, media_type="image/jpeg")


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
