"""Words of the gallery, how they look, facts about the gallery, and what a person can choose from.

How a word looks comes from the stored full bags, so no image is encoded.
"""

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from typing import Annotated, Any, Self

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.responses import Response

import bm25v
from bm25v import images
from bm25v.client import to_id
from bm25v.errors import ImageError
from bm25v.explain.explanation import Pixels
from bm25v.explain.heatmaps import crop_patch, make_sheet
from bm25v.explain.words import (
    ImageWithWord,
    PatchBox,
    WordExample,
    WordInGallery,
    WordOrder,
    describe_words,
    find_parts,
    order_words,
)
from bm25v.gallery import Gallery
from bm25v.render.commands import name_command
from bm25v.search.naming import list_topics
from bm25v.server import problems
from bm25v.server.images import ImageId, Offset, find_images, read_file
from bm25v.server.problems import Problem
from bm25v.server.responses import (
    FOLDERS,
    IMAGE_NAMES,
    PREFIX,
    STATS,
    TERMS,
    TOPICS,
    WORD,
    WORD_PAGE,
    json_response,
)
from bm25v.server.service import (
    CUTTING,
    LISTING,
    OpenGallery,
    Served,
    Service,
    read_json,
    with_json,
)
from bm25v.store.base import Filter, View
from bm25v.store.records import ImageRecord
from bm25v.threads import available_cpus
from bm25v.vocabulary.phrases import fold

_DECODED = 4  # times the side of a crop
_MAX_PIXELS = 256 * 96**2  # of all crops
_MAX_FOLDERS = 1000
_MAX_NAMESAKES = 8

Sort = Annotated[
    WordOrder, Query(description="df: most images first. name: named words before others.")
]
NamePart = Annotated[str, Query(max_length=200, description="What the names contain.")]
WordNumber = Annotated[int, Path(ge=0, le=2**31, description="The number of a word.")]


def check_number(gallery: Gallery, number: int) -> None:
    """Raise a 404 `Problem` if the vocabulary has no such word."""
    n_words = gallery.store.meta.n_words
    if number >= n_words:
        detail = f"no word {number}: this vocabulary has words 0 to {n_words - 1}"
        raise Problem(404, "unknown-word", detail)


router = APIRouter(prefix=PREFIX, tags=["words"], responses=problems.RESPONSES)


@router.get("/words", response_model=WORD_PAGE, dependencies=[LISTING])
def list_words(
    gallery: OpenGallery,
    sort: Sort = "word",
    name: NamePart = "",
    best: Annotated[int, Query(ge=1, le=10, description="Images of each word.")] = 3,
    offset: Offset = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
) -> Response:
    """List the words in use, each with the images where it is strongest."""

    def read(view: View) -> dict[str, Any]:
        names = gallery.word_names
        words = order_words(view, names, sort, name)
        page = describe_words(view, names, words[offset : offset + limit], best)
        counts = {"n_images": view.statistics.n, "total": len(words)}
        return {**counts, "words": list(map(_word_to_dict, page))}

    return json_response({**gallery.store.read(read), "offset": offset, "limit": limit})


@router.get("/words/{number}", response_model=WORD, dependencies=[LISTING])
def get_word(
    gallery: OpenGallery,
    number: WordNumber,
    images: Annotated[int, Query(ge=0, le=1000, description="Of the list `top`.")] = 24,
    sort: Sort = "word",
    name: NamePart = "",
) -> Response:
    """Say in which images a word is, and which other words are with it.

    `sort` and `name` say in which list of words `before` and `after` are its neighbours.
    """
    check_number(gallery, number)
    use, names = gallery.word(number), gallery.word_names
    words = gallery.store.read(lambda view: order_words(view, names, sort, name))
    at = words.index(number) if number in words else None
    return json_response(
        {
            **_word_to_dict(use.facts),
            "n_images": use.n,
            "top": _images_to_dicts(use.images[:images]),
            "companions": [{**w._asdict(), "name": names.get(w.word)} for w in use.companions],
            "same_name": _list_namesakes(gallery, use.facts),
            "before": words[at - 1] if at else None,
            "after": None if at is None or at + 1 == len(words) else words[at + 1],
            "folders": [folder._asdict() for folder in use.folders],
            "purity": use.purity,
            "name_command": name_command(gallery.location, number),
        }
    )


def _list_namesakes(gallery: Gallery, word: WordInGallery) -> list[dict[str, Any]]:
    """Return the other words in use that have a word's name."""
    names = gallery.word_names

    def read(view: View) -> list[dict[str, Any]]:
        df_v = view.full_statistics.df_v
        words = order_words(view, names, "df") if word.name else []
        same = [w for w in words if names.get(w) == word.name]
        shown = [w for w in same if w != word.word][:_MAX_NAMESAKES]
        return [{"word": w, "name": word.name, "df": int(df_v[w])} for w in shown]

    return gallery.store.read(read)


@router.get("/stats", response_model=STATS)
def get_stats(service: Served) -> Response:
    """Return facts about the gallery, and about the folders that are watched."""
    server = {"version": bm25v.__version__, "writable": service.writable}
    watch = [folder.to_dict() for folder in service.watched]
    return json_response({**service.gallery.info().to_dict(), **server, "watch": watch})


@router.get("/folders", response_model=FOLDERS, dependencies=[LISTING])
def list_folders(gallery: OpenGallery) -> Response:
    """List the folders with images, each with the number of images in it and below it."""
    counts = gallery.store.read(lambda view: view.count_by("folder", Filter()))
    return json_response(describe_folders(counts))


@router.get("/topics", response_model=TOPICS, dependencies=[LISTING])
def show_topics(gallery: OpenGallery) -> Response:
    """List what many images show, each with about how many, and with one of them."""
    topics = gallery.store.read(lambda view: list_topics(gallery.vocabulary, view))
    return json_response({"topics": [{**t._asdict(), "id": to_id(t.path)} for t in topics]})


@router.get("/names", response_model=IMAGE_NAMES, dependencies=[LISTING])
def list_names(gallery: OpenGallery) -> Response:
    """List the names that people gave to images, each with how many images have it."""
    names = [{"name": name, "n_images": n} for name, n in gallery.image_names.items()]
    return json_response({"names": names})


@router.get("/terms", response_model=TERMS, dependencies=[LISTING])
def list_terms(
    gallery: OpenGallery,
    prefix: Annotated[str, Query(min_length=1, max_length=100)],
    limit: Annotated[int, Query(ge=1, le=100)] = 8,
) -> Response:
    """List names that a text may use and that start like this: those that people gave come first.

    Those that are most frequent in captions come first.
    """
    start, lexicon = fold(prefix), gallery.vocabulary.lexicon
    named_images = (called.name for called in gallery.store.image_names.values())
    own = sorted({*gallery.store.names.own.values(), *named_images})
    known = () if lexicon is None else (names[0] for names in lexicon.names)
    terms = dict.fromkeys(name for name in (*own, *known) if fold(name).startswith(start))
    return json_response({"terms": [*terms][:limit]})


class Crop(BaseModel):
    """A word, and the image to cut it out of; by default the one that shows it best."""

    model_config = ConfigDict(extra="forbid")

    word: int = Field(ge=0, le=2**31)
    image: ImageId | None = None


class CropsBody(BaseModel):
    """What to cut out, and the side of each square in pixels."""

    model_config = ConfigDict(extra="forbid")

    crops: list[Crop] = Field(min_length=1, max_length=256)
    size: int = Field(96, ge=16, le=256)

    @model_validator(mode="after")
    def check_size(self) -> Self:
        if len(self.crops) * self.size**2 > _MAX_PIXELS:
            raise ValueError(
                f"{len(self.crops)} crops of {self.size} pixels: fewer or smaller ones"
            )
        return self


@router.post(
    "/crops",
    response_class=Response,
    responses={200: {"content": {"image/webp": {}}}},
    **with_json(CropsBody, CUTTING),
)
def show_crops(service: Served, body: Annotated[CropsBody, read_json(CropsBody)]) -> Response:
    """Cut words out of images, where each is strongest, into one image.

    Its rows have eight squares, in the order of `crops`; the last row may have fewer. Squares of
    files that cannot be read are transparent.
    """
    gallery = service.gallery
    for crop in body.crops:
        check_number(gallery, crop.word)
    found = find_images(gallery, {crop.image for crop in body.crops if crop.image})
    pairs = [(crop.word, found[crop.image].path if crop.image else None) for crop in body.crops]
    parts = gallery.store.read(lambda view: find_parts(view, gallery.vocabulary, pairs))
    crops = _cut_parts(service, filter(None, parts), body.size)
    sheet = make_sheet([part and crops.get(part) for part in parts], body.size)
    return Response(sheet, media_type="image/webp")


def _cut_parts(
    service: Service, parts: Iterable[WordExample], side: int
) -> dict[WordExample, Pixels]:
    """Cut squares out of files; those that cannot be read are left out."""
    by_path: dict[str, set[WordExample]] = {}
    for part in parts:
        by_path.setdefault(part.path, set()).add(part)
    records = service.gallery.store.read(lambda view: view.find([*by_path]))

    def cut(path: str) -> dict[WordExample, Pixels]:
        return _cut(service, records[path], by_path[path], side)

    with ThreadPoolExecutor(available_cpus()) as pool:
        cuts = pool.map(cut, (path for path in by_path if path in records))
        return {part: crop for crops in cuts for part, crop in crops.items()}


def _cut(
    service: Service, record: ImageRecord, parts: Iterable[WordExample], side: int
) -> dict[WordExample, Pixels]:
    """Cut squares out of one file, which is decoded once; none if it cannot be read."""
    decode = cache(lambda: images.decode_image(read_file(record), short_side=_DECODED * side))

    def make(patch: PatchBox) -> Pixels:
        return images.resize_image(crop_patch(decode(), patch), width=side, height=side)

    with suppress(Problem, ImageError):
        return {
            part: service.crops.get((record.content, part.patch, side), partial(make, part.patch))
            for part in parts
        }
    return {}


def describe_folders(counts: Mapping[str, int]) -> dict[str, Any]:
    """Return the folder that holds all images that are files, and the folders below it.

    >>> describe_folders({"": 3, "/p": 3, "/p/a": 2, "/p/b": 1, "shop": 1})
    {'root': '/p', 'folders': [{'path': '/p/a', 'n_images': 2}, {'path': '/p/b', 'n_images': 1}]}
    """
    files = {path or os.sep: n for path, n in counts.items() if os.path.isabs(path or os.sep)}
    n_files = max(files.values(), default=0)
    root = max((path for path in files if files[path] == n_files), key=len, default="")
    below = sorted((path for path in files if files[path] < n_files), key=_split)[:_MAX_FOLDERS]
    return {"root": root, "folders": [{"path": path, "n_images": files[path]} for path in below]}


def _split(path: str) -> list[str]:
    return path.split(os.sep)


def _word_to_dict(word: WordInGallery) -> dict[str, Any]:
    return {**vars(word), "best": _images_to_dicts(word.best)}


def _images_to_dicts(images: Iterable[ImageWithWord]) -> list[dict[str, Any]]:
    return [{"id": to_id(image.path), **image._asdict()} for image in images]
