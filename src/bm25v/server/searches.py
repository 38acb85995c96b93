"""Searches and explanations.

In: a query with images by id or uploaded. Out: results, explanations and heat maps as JSON and
images. A search by ids uses what the gallery has stored, and may be done by another process
(`workers`). What needs a model has its own threads, so it does not delay such searches. Not this
module's job: anything about scores.
"""

import io
from collections import OrderedDict
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Depends
from fastapi import Query as Parameter
from numpy.typing import NDArray
from PIL import Image
from starlette.requests import Request
from starlette.responses import Response

from bm25v.display import format_json
from bm25v.explanations.explanation import Explanation
from bm25v.explanations.heatmaps import make_mask
from bm25v.explanations.sums import sum_up
from bm25v.gallery.records import ImageRecord
from bm25v.sae.model import Codes
from bm25v.search.query import Mode, Query, QueryImage, StoredImage
from bm25v.search.results import Results
from bm25v.searchable import Searchable
from bm25v.server import problems
from bm25v.server.bodies import (
    MAX_IMAGES,
    MODE,
    WORDS,
    ExplainBody,
    HeatmapBody,
    Hits,
    ImageId,
    Offset,
    SearchBody,
    Upload,
    describe_body,
    read_body,
)
from bm25v.server.images import ImageFiles, to_id
from bm25v.server.problems import Problem
from bm25v.server.responses import (
    EXPLANATION,
    HEATMAP,
    HEATMAPS,
    PREFIX,
    RESULTS,
    describe_json,
    json_response,
)
from bm25v.server.slots import Slots
from bm25v.server.workers import TaskSlots
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.bag import word_activations
from bm25v.vocabulary.names import check_word

_UNCHANGED = (  # options of a query that are those of the body
    *("text", "region", "must", "without", "boost", "query_words", "min_coverage", "folder"),
    *("date", "min_size", "max_size", "include_query", "k", "offset", "mode", "candidates"),
)
ModeParameter = Annotated[Mode | None, Parameter(description=MODE)]
WordsParameter = Annotated[int, Parameter(ge=0, le=256, description=WORDS)]

_KEPT_CODES = 256  # images whose codes are kept for other words


def search_routes(
    gallery: Searchable, files: ImageFiles, searching: TaskSlots, encoding: Slots
) -> APIRouter:
    """Return the routes that search and explain; what needs a model is done by `encoding`."""
    router = APIRouter(
        prefix=PREFIX,
        tags=["search"],
        responses=problems.describe(400, 401, 403, 404, 408, 413, 415, 422, 503),
    )

    async def read_search(request: Request) -> Upload[SearchBody]:
        return await read_body(request, SearchBody, encoding)

    async def read_explain(request: Request) -> Upload[ExplainBody]:
        return await read_body(request, ExplainBody, encoding)

    async def read_heatmap(request: Request) -> Upload[HeatmapBody]:
        return await read_body(request, HeatmapBody, encoding)

    kept_codes: OrderedDict[bytes, Codes] = OrderedDict()

    def find_codes(record: ImageRecord) -> Codes:
        """Encode an image once for all of its words that are asked for in a row."""
        codes = kept_codes.get(record.content)
        if codes is None:
            codes = gallery.vocabulary.encode(files.read(record)).codes
            kept_codes[record.content] = codes
            if len(kept_codes) > _KEPT_CODES:
                kept_codes.popitem(last=False)
        return codes

    @router.post(
        "/search", responses=describe_json(RESULTS), openapi_extra=describe_body(SearchBody)
    )
    async def search(upload: Annotated[Upload[SearchBody], Depends(read_search)]) -> Response:
        """Search with images of the gallery, uploaded images, text or words.

        Send the query as JSON; or a form with the images as parts `image`, counter-examples as
        parts `negative`, and the JSON as the part `query`.
        """

        if _needs_model(upload):
            content = await encoding.run(lambda: search_as_json(upload, gallery))
        else:
            content = await searching.run(partial(search_as_json, upload))
        return Response(content, media_type="application/json")

    @router.get("/images/{id}/similar", responses=describe_json(RESULTS))
    async def find_similar(
        id: ImageId,
        k: Hits = 10,
        offset: Offset = 0,
        mode: ModeParameter = None,
        words: WordsParameter = 8,
    ) -> Response:
        """Search with an image of the gallery."""
        body = {"images": [id], "k": k, "offset": offset, "mode": mode, "words": words}
        upload = Upload(SearchBody.model_validate(body))
        content = await searching.run(partial(search_as_json, upload))
        return Response(content, media_type="application/json")

    def explain(upload: Upload[ExplainBody]) -> Response:
        hit = files.find(upload.body.hit)
        query = make_query(upload, files, with_pixels=True)
        explanation = gallery.explain(query, hit.path, image=_read_or_none(files, hit))
        return json_response(explanation_to_dict(explanation, upload.body.words))

    @router.get("/explain", responses=describe_json(EXPLANATION))
    async def explain_ids(
        query: Annotated[list[ImageId], Parameter(min_length=1, max_length=MAX_IMAGES)],
        hit: ImageId,
        mode: ModeParameter = None,
        words: WordsParameter = 8,
    ) -> Response:
        """Say why an image of the gallery matches others: which words, and where they are."""
        body = {"images": query, "hit": hit, "mode": mode, "words": words}
        upload = Upload(ExplainBody.model_validate(body))
        return await encoding.run(lambda: explain(upload))

    @router.post(
        "/explain", responses=describe_json(EXPLANATION), openapi_extra=describe_body(ExplainBody)
    )
    async def explain_query(
        upload: Annotated[Upload[ExplainBody], Depends(read_explain)],
    ) -> Response:
        """Say why an image of the gallery is a hit of a search: a search body, and `hit`."""
        return await encoding.run(lambda: explain(upload))

    @router.get(
        "/heatmap",
        response_class=Response,
        responses={
            200: {"content": {"image/png": {}, "application/json": {"schema": HEATMAP}}},
        },
    )
    async def show_word(
        image: ImageId,
        word: Annotated[int, Parameter(ge=0, le=2**31)],
        format: Literal["png", "json"] = "png",
    ) -> Response:
        """Show where a word is in an image: a small PNG, opaque where it is, or JSON."""

        def work() -> Response:
            record, vocabulary = files.find(image), gallery.vocabulary
            check_word(word, vocabulary.n_words)
            grid = _to_grid(find_codes(record), word, vocabulary)
            if format == "png":
                return Response(_to_png(make_mask(grid)), media_type="image/png")
            rows, columns = grid.shape
            facts = {"id": image, "word": word, "rows": rows, "columns": columns}
            return json_response({**facts, "grid": grid.tolist()})

        return await encoding.run(work)

    @router.post(
        "/heatmap", responses=describe_json(HEATMAPS), openapi_extra=describe_body(HeatmapBody)
    )
    async def show_words(upload: Annotated[Upload[HeatmapBody], Depends(read_heatmap)]) -> Response:
        """Say where words are in an uploaded image: a form with one part `image`."""
        if len(upload.images) != 1 or upload.negative:
            raise Problem(422, "wrong-value", "send a form with exactly one part image")

        def work() -> Response:
            words, vocabulary = upload.body.words, gallery.vocabulary
            for word in words:
                check_word(word, vocabulary.n_words)
            codes = vocabulary.encode(upload.images[0]).codes
            grids = (_to_grid(codes, word, vocabulary).tolist() for word in words)
            found = [{"word": w, "grid": grid} for w, grid in zip(words, grids, strict=True)]
            return json_response({"words": found})

        return await encoding.run(work)

    return router


def search_as_json(upload: Upload[SearchBody], gallery: Searchable) -> str:
    """Search with the query of a request; return the results as JSON."""
    results = gallery.search(make_query(upload, ImageFiles(gallery)))
    return format_json(results_to_dict(results, upload.body.words), indent=None)


def make_query(upload: Upload[Any], files: ImageFiles, *, with_pixels: bool = False) -> Query:
    """Return the query of a request; files are read only if the stored words are not enough.

    If `with_pixels`, images of the gallery also have the pixels that an explanation shows.
    """
    body = upload.body

    def find(image_id: str) -> QueryImage:
        record = files.find(image_id)
        if _needs_pixels(body):
            return files.read(record)
        return StoredImage(record.path, files.read(record) if with_pixels else None)

    def find_path(image_id: str) -> str:
        return files.find(image_id).path

    options: dict[str, Any] = {name: getattr(body, name) for name in _UNCHANGED}
    return Query.of(
        [*upload.images, *map(find, body.images)],
        negative=[*upload.negative, *(StoredImage(find_path(i)) for i in body.negative)],
        like=list(map(find_path, body.like)),
        unlike=list(map(find_path, body.unlike)),
        **options,
    )


def results_to_dict(results: Results, n_words: int) -> dict[str, Any]:
    """Return results as plain values, with ids and at most `n_words` words of each hit."""
    values = results.to_dict(words=n_words)
    for hit, facts in zip(results, values["hits"], strict=True):
        facts |= {"id": to_id(hit.path), "n_words": len(hit.words)}
    return values


def explanation_to_dict(explanation: Explanation, n_words: int) -> dict[str, Any]:
    """Return an explanation as plain values, with an id and at most `n_words` words."""
    shown = replace(explanation, parts=explanation.parts[:n_words]).to_dict()
    missing = [word._asdict() for word in explanation.missing[:n_words]]
    n = len(explanation.parts)
    points = explanation.rounded_contributions()
    for word, value in zip(shown["words"], points, strict=False):
        word |= {"points": value, "example_ids": list(map(to_id, word["examples"]))}
    lines = [line._asdict() for line in sum_up(explanation.match)]
    ids = {"id": to_id(explanation.hit_path)}
    return {**ids, **shown, "missing": missing, "n_words": n, "sum": lines}


def _needs_pixels(body: SearchBody) -> bool:
    return body.region is not None or body.query_words is not None


def _needs_model(upload: Upload[SearchBody]) -> bool:
    has_images = bool(upload.images or upload.negative)
    return has_images or upload.body.text is not None or _needs_pixels(upload.body)


def _read_or_none(files: ImageFiles, record: Any) -> bytes | None:
    """Return the content of a hit's file; None if there is none, which the explanation notes."""
    try:
        return files.read(record)
    except Problem as problem:
        if problem.kind != "no-file":
            raise
        return None


def _to_grid(codes: Codes, word: int, vocabulary: Vocabulary) -> NDArray[np.float32]:
    return word_activations(codes, word).reshape(vocabulary.backbone.grid)


def _to_png(mask_hw: NDArray[np.uint8]) -> bytes:
    """Return a white image that is opaque where the mask is: a mask for a style sheet."""
    white_hw = np.full_like(mask_hw, 255)
    file = io.BytesIO()
    Image.fromarray(np.dstack([white_hw, mask_hw])).save(file, "PNG")
    return file.getvalue()
