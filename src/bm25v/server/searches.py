"""Searches, explanations and heat maps.

Most searches use what the gallery has stored, and may be done by another process. Large ones, and
what needs a model, have threads of their own, so that they do not delay the others.
"""

import io
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, Self

import numpy as np
from fastapi import APIRouter
from fastapi import Query as Parameter
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator
from starlette.responses import Response

from bm25v.backbones.text import has_text_tower
from bm25v.client import to_id
from bm25v.explain.groups import UNNAMED, to_shares
from bm25v.explain.heatmaps import combine_maps, make_mask
from bm25v.explain.sums import sum_up
from bm25v.gallery import Gallery
from bm25v.sae.model import Codes
from bm25v.search.encode import count_remaining
from bm25v.search.query import OPTIONS, Kind, Option, Query, QueryImage, StoredImage
from bm25v.search.scoring import Mode
from bm25v.server import problems
from bm25v.server.images import ImageId, Offset, find_image, find_images, read_file
from bm25v.server.problems import Problem
from bm25v.server.responses import (
    EXPLANATION,
    HEATMAP,
    HEATMAPS,
    PREFIX,
    REMAINING,
    RESULTS,
    SHOWN,
    json_response,
    write_json,
)
from bm25v.server.service import (
    ENCODING,
    MAX_IMAGES,
    Served,
    Service,
    Upload,
    describe_query,
    read_query,
)
from bm25v.server.workers import Slots
from bm25v.store.filters import is_pattern
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.bag import word_activations
from bm25v.vocabulary.names import check_word

_MAX_WORDS = 64  # of one heat map
_MAX_LISTED = 25_600  # words of all hits together: a response has 100 kB for each 1,000
_SMALL_K, _SMALL_OFFSET = 100, 1_000  # of a search that takes milliseconds
_N_WORDS = "List at most this many words of the query and of each hit; a hit has up to 256."

Hits = Annotated[int, Field(ge=1, le=OPTIONS["k"].most)]
ModeParameter = Annotated[Mode | None, Parameter(description=OPTIONS["mode"].description)]
WordsParameter = Annotated[int, Parameter(ge=0, le=256, description=_N_WORDS)]

_Ids = Annotated[list[ImageId], Field(max_length=MAX_IMAGES)]
_Name = Annotated[str, Field(max_length=200)]
_Number = Annotated[int, Field(ge=0, le=2**31)]
_Word = Annotated[int | _Name, Field(description="A number or name.", examples=[4711])]
_Pattern = Annotated[str, Field(max_length=4096)]
_Pixels = Annotated[int, Field(ge=1, le=1_000_000)]
_TYPES: dict[Kind, Any] = {
    "text": Annotated[str, Field(max_length=1000)],
    "date": Annotated[str, Field(max_length=100, examples=["2021..2023-06"])],
    "flag": bool,
    "mode": Mode,
    "count": int,
    "share": Annotated[float, Field(ge=0, le=1)],
    "size": _Pixels | tuple[_Pixels, _Pixels],
    "box": tuple[float, float, float, float],
    "word": Annotated[list[_Word], Field(max_length=256)],
    "factor": Annotated[dict[_Name, float], Field(max_length=256)],
    "folder": Annotated[list[_Pattern], Field(max_length=64)],
    "hit": _Ids,
    "image": _Ids,
}


def _describe_option(option: Option) -> Any:
    """Return the type of an option in JSON, and what is known about its value."""
    default, type_ = option.default, _TYPES[option.kind]
    if option.is_list:
        default = {} if option.kind == "factor" else []
    elif default is None:
        type_ = type_ | None
    limits: Any = {"ge": option.least, "le": option.most} if option.kind == "count" else {}
    return type_, Field(default, description=option.description or option.help, **limits)


_Options: Any = create_model(
    "_Options", **{name: _describe_option(option) for name, option in OPTIONS.items()}
)


class SearchBody(_Options):  # type: ignore[misc]  # it has the fields of `Query`
    """What to search for: the options of `bm25v.Query`, with images by their ids."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        json_schema_extra={
            "examples": [
                {"images": ["L3Bob3Rvcy9jYXQuanBn"], "k": 5},
                {"must": [4711], "boost": {"12": 2.0}, "folder": ["*.png"], "mode": "words"},
            ]
        },
    )

    words: int = Field(8, ge=0, le=256, description=_N_WORDS)

    @model_validator(mode="after")
    def check_size(self) -> Self:
        if self.k * self.words > _MAX_LISTED:
            raise ValueError(f"{self.k} hits with {self.words} words: ask for fewer hits or words")
        return self

    @property
    def is_large(self) -> bool:
        """Whether it may take much longer than others, which must not wait for it."""
        is_deep = self.k > _SMALL_K or self.offset > _SMALL_OFFSET or self.candidates is not None
        return is_deep or self.mode == "dense" or any(map(is_pattern, self.folder))

    @property
    def needs_pixels(self) -> bool:
        """Whether the stored words of its images are not enough."""
        return self.region is not None or self.query_words is not None


class RemainingBody(SearchBody):
    """A search, and a word that its hits may have to have."""

    word: _Word


class ExplainBody(SearchBody):
    """A search, and the image of the gallery whose match is to be explained."""

    hit: ImageId = Field(description="The image to explain.")


class HeatmapBody(BaseModel):
    """The words to be shown in an uploaded image."""

    model_config = ConfigDict(extra="forbid", strict=True)

    groups: list[Annotated[list[_Number], Field(min_length=1, max_length=_MAX_WORDS)]] = Field(
        max_length=128, description="Numbers of words; each group has one grid.", examples=[[[557]]]
    )


router = APIRouter(
    prefix=PREFIX,
    tags=["search"],
    responses=problems.RESPONSES,
)


@router.post("/search", response_model=RESULTS, openapi_extra=describe_query(SearchBody))
async def search(
    service: Served, upload: Annotated[Upload[SearchBody], read_query(SearchBody)]
) -> Response:
    """Search with images of the gallery, uploaded images, text or words.

    Send the query as JSON; or a form with the images as parts `image`, counter-examples as
    parts `negative`, and the JSON as the part `query`.
    """
    slots = _choose_slots(upload, service)
    if slots is service.searching and service.workers is not None:
        content = await service.workers.run(partial(_search, upload))
    else:
        content = await slots.run(lambda: _search(upload, service.gallery))
    return Response(content, media_type="application/json")


@router.post("/remaining", response_model=REMAINING, openapi_extra=describe_query(RemainingBody))
async def count_images(
    service: Served, upload: Annotated[Upload[RemainingBody], read_query(RemainingBody)]
) -> Response:
    """Count the images that remain if hits must have a word, or must not have it.

    The body is that of a search, and `word`; the other conditions of the search hold.
    """
    slots = _choose_slots(upload, service)
    return await slots.run(lambda: _count(upload, service.gallery))


@router.get("/images/{id}/similar", response_model=RESULTS)
async def find_similar(
    service: Served,
    id: ImageId,
    k: Hits = 10,
    offset: Offset = 0,
    mode: ModeParameter = None,
    words: WordsParameter = 8,
) -> Response:
    """Search with an image of the gallery."""
    body = {"images": [id], "k": k, "offset": offset, "mode": mode, "words": words}
    return await search(service, Upload(SearchBody.model_validate(body)))


@router.get("/images/{id}/shows", response_model=SHOWN)
async def describe_image(service: Served, id: ImageId) -> Response:
    """Say what an image shows: groups of its words, and where each is; named ones, if any is."""

    def work() -> Response:
        record = find_image(service.gallery, id)
        pixels = read_file(record)
        query = Query(images=(pixels,), include_query=True, mode="words")
        explanation = service.gallery.explain(query, record.path, image=pixels).fine
        groups = [group.to_dict() for group in explanation.groups if group.kind == "words"]
        named = [group for group in groups if not group["label"].startswith(UNNAMED)]
        keys = ("label", "share", "words", "in_hit")
        return json_response(
            {"groups": [{key: group[key] for key in keys} for group in named or groups]}
        )

    return await service.encoding.run(work)


@router.get("/explain", response_model=EXPLANATION)
async def explain_ids(
    service: Served,
    query: Annotated[list[ImageId], Parameter(min_length=1, max_length=MAX_IMAGES)],
    hit: ImageId,
    mode: ModeParameter = None,
    words: WordsParameter = 8,
) -> Response:
    """Say why an image of the gallery matches others: which words, and where they are."""
    body = {"images": query, "hit": hit, "mode": mode, "words": words}
    return await explain_query(service, Upload(ExplainBody.model_validate(body)))


@router.post("/explain", response_model=EXPLANATION, openapi_extra=describe_query(ExplainBody))
async def explain_query(
    service: Served, upload: Annotated[Upload[ExplainBody], read_query(ExplainBody)]
) -> Response:
    """Say why an image of the gallery is a hit of a search: a search body, and `hit`."""
    return await service.encoding.run(lambda: _explain(upload, service.gallery))


@router.get(
    "/heatmap",
    response_class=Response,
    responses={200: {"model": HEATMAP, "content": {"image/png": {}}}},
    dependencies=[ENCODING],
)
def show_word(
    service: Served,
    image: ImageId,
    word: Annotated[list[_Number], Parameter(min_length=1, max_length=_MAX_WORDS)],
    format: Literal["png", "json"] = "png",
) -> Response:
    """Show where a word is in an image, or several: a small PNG, opaque there, or JSON."""
    record, vocabulary = find_image(service.gallery, image), service.gallery.vocabulary
    _check_words(word, vocabulary)
    codes = service.codes.get(record.content, lambda: vocabulary.encode(read_file(record)).codes)
    grid = _sum_activations(codes, word, vocabulary)
    if format == "json":
        rows, columns = grid.shape
        facts = {"id": image, "words": word, "rows": rows, "columns": columns}
        return json_response({**facts, "grid": grid.tolist()})
    mask_hw = make_mask(grid)
    file = io.BytesIO()
    Image.fromarray(np.dstack([np.full_like(mask_hw, 255), mask_hw])).save(file, "PNG")
    return Response(file.getvalue(), media_type="image/png")


@router.post("/heatmap", response_model=HEATMAPS, openapi_extra=describe_query(HeatmapBody))
async def show_words(
    service: Served, upload: Annotated[Upload[HeatmapBody], read_query(HeatmapBody)]
) -> Response:
    """Say where words are in an uploaded image: a form with one part `image`."""
    if len(upload.images) != 1 or upload.negative:
        raise Problem(422, "wrong-value", "send a form with exactly one part image")

    def work() -> Response:
        groups, vocabulary = upload.body.groups, service.gallery.vocabulary
        for group in groups:
            _check_words(group, vocabulary)
        codes = vocabulary.encode(upload.images[0]).codes
        grids = [_sum_activations(codes, group, vocabulary).tolist() for group in groups]
        return json_response({"grids": grids})

    return await service.encoding.run(work)


def _check_words(words: Sequence[int], vocabulary: Vocabulary) -> None:
    for word in words:
        check_word(word, vocabulary.n_words)


def _sum_activations(
    codes: Codes, words: Sequence[int], vocabulary: Vocabulary
) -> NDArray[np.float32]:
    """Return how active words are together in each patch."""
    sum_p = np.sum([word_activations(codes, word) for word in words], axis=0)
    return np.asarray(sum_p, np.float32).reshape(vocabulary.backbone.grid)


def _choose_slots(upload: Upload[Any], service: Service) -> Slots:
    body = upload.body
    has_tower = body.text is not None and has_text_tower(service.gallery.store.meta.backbone)
    if upload.images or upload.negative or body.needs_pixels or has_tower:
        return service.encoding
    return service.listing if body.is_large else service.searching


def _search(upload: Upload[SearchBody], gallery: Gallery) -> bytes:
    """Return the results of a search as JSON; this may run in another process."""
    results = gallery.search(_make_query(upload, gallery))
    values, groups = results.to_dict(words=upload.body.words), results.group_words()
    values["groups"] = [group._asdict() for group in groups.query]
    for hit, facts, of_hit in zip(results, values["hits"], groups.hits, strict=True):
        facts |= {"id": to_id(hit.path), "n_words": len(hit.words)}
        facts["groups"] = [group._asdict() for group in of_hit]
    return write_json(values)


def _count(upload: Upload[RemainingBody], gallery: Gallery) -> Response:
    body, named = upload.body, gallery._named_vocabulary
    body.must = [body.word, *(word for word in body.must if word != body.word)]
    query = _make_query(upload, gallery)
    remaining = gallery.store.read(lambda view: count_remaining(query, view, named))
    return json_response(remaining._asdict())


def _explain(upload: Upload[ExplainBody], gallery: Gallery) -> Response:
    hit = find_image(gallery, upload.body.hit)
    query = _make_query(upload, gallery, with_pixels=True)
    try:
        image = read_file(hit)
    except Problem as problem:
        if problem.kind != "no-file":
            raise
        image = None  # which the explanation notes
    explanation = gallery.explain(query, hit.path, image=image).fine
    n_words = upload.body.words
    values = replace(explanation, parts=explanation.parts[:n_words]).to_dict()
    points = explanation.rounded_contributions()
    in_queries, in_hit = combine_maps(explanation)
    for word, value in zip(values["words"], points, strict=False):
        word["points"] = value
    return json_response(
        {
            "id": to_id(hit.path),
            **values,
            "visibility": explanation.visibility,
            "in_queries": list(map(to_shares, in_queries)),
            "in_hit": to_shares(in_hit),
            "missing": [word._asdict() for word in explanation.missing[:n_words]],
            "n_words": len(explanation.parts),
            "sum": [line._asdict() for line in sum_up(explanation.match)],
        }
    )


def _make_query(
    upload: Upload[Any],
    gallery: Gallery,
    *,
    with_pixels: bool = False,
) -> Query:
    """Return the query of a request; files are read only if the stored words are not enough.

    If `with_pixels`, images of the gallery also have the pixels that an explanation shows.
    """
    body = upload.body
    options: dict[str, Any] = {name: getattr(body, name) for name in OPTIONS}
    by_id = [name for name, option in OPTIONS.items() if option.kind in ("image", "hit")]
    records = find_images(gallery, [image_id for name in by_id for image_id in options[name]])

    def read(image_id: str) -> QueryImage:
        record = records[image_id]
        if body.needs_pixels:
            return read_file(record)
        return StoredImage(record.path, read_file(record) if with_pixels else None)

    for name in by_id:
        options[name] = [records[image_id].path for image_id in options[name]]
    options["images"] = [*upload.images, *map(read, body.images)]
    options["negative"] = [*upload.negative, *map(StoredImage, options["negative"])]
    return Query(**options)
