"""Searches, explanations and heat maps.

A search by ids uses what the gallery has stored, and may be done by another process. What needs a
model has its own threads, so it does not delay such searches.
"""

import io
from collections import OrderedDict
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Depends
from fastapi import Query as Parameter
from PIL import Image
from starlette.responses import Response

from bm25v.client import to_id
from bm25v.explain.explanation import Explanation
from bm25v.explain.heatmaps import make_mask
from bm25v.explain.sums import sum_up
from bm25v.sae.model import Codes
from bm25v.search.query import OPTIONS, Query, QueryImage, StoredImage
from bm25v.search.results import Results
from bm25v.search.scoring import Mode
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
    read_query,
)
from bm25v.server.images import ImageFiles
from bm25v.server.problems import Problem
from bm25v.server.responses import (
    EXPLANATION,
    HEATMAP,
    HEATMAPS,
    PREFIX,
    RESULTS,
    json_response,
    write_json,
)
from bm25v.server.workers import Threads, Workers
from bm25v.vocabulary.bag import word_activations
from bm25v.vocabulary.names import check_word

ModeParameter = Annotated[Mode | None, Parameter(description=MODE)]
WordsParameter = Annotated[int, Parameter(ge=0, le=256, description=WORDS)]

_KEPT_CODES = 256  # images whose codes are kept for other words


def search_routes(
    gallery: Searchable,
    files: ImageFiles,
    workers: Workers | None,
    searching: Threads,
    encoding: Threads,
) -> APIRouter:
    router = APIRouter(
        prefix=PREFIX,
        tags=["search"],
        responses=problems.describe(400, 401, 403, 404, 408, 413, 415, 422, 503),
    )

    async def run_search(upload: Upload[SearchBody]) -> Response:
        body = upload.body
        if upload.images or upload.negative or body.needs_pixels or body.text is not None:
            content = await encoding.run(lambda: search_as_json(upload, gallery))
        elif workers is None:
            content = await searching.run(lambda: search_as_json(upload, gallery))
        else:
            content = await workers.run(partial(search_as_json, upload))
        return Response(content, media_type="application/json")

    @router.post("/search", response_model=RESULTS, openapi_extra=describe_body(SearchBody))
    async def search(
        upload: Annotated[Upload[SearchBody], Depends(read_query(SearchBody, encoding))],
    ) -> Response:
        """Search with images of the gallery, uploaded images, text or words.

        Send the query as JSON; or a form with the images as parts `image`, counter-examples as
        parts `negative`, and the JSON as the part `query`.
        """
        return await run_search(upload)

    @router.get("/images/{id}/similar", response_model=RESULTS)
    async def find_similar(
        id: ImageId,
        k: Hits = 10,
        offset: Offset = 0,
        mode: ModeParameter = None,
        words: WordsParameter = 8,
    ) -> Response:
        """Search with an image of the gallery."""
        body = {"images": [id], "k": k, "offset": offset, "mode": mode, "words": words}
        return await run_search(Upload(SearchBody.model_validate(body)))

    async def run_explain(upload: Upload[ExplainBody]) -> Response:
        def work() -> Response:
            hit = files.find(upload.body.hit)
            query = _make_query(upload, files, with_pixels=True)
            try:
                image = files.read(hit)
            except Problem as problem:
                if problem.kind != "no-file":
                    raise
                image = None  # which the explanation notes
            explanation = gallery.explain(query, hit.path, image=image)
            return json_response(_explanation_to_dict(explanation, upload.body.words))

        return await encoding.run(work)

    @router.get("/explain", response_model=EXPLANATION)
    async def explain_ids(
        query: Annotated[list[ImageId], Parameter(min_length=1, max_length=MAX_IMAGES)],
        hit: ImageId,
        mode: ModeParameter = None,
        words: WordsParameter = 8,
    ) -> Response:
        """Say why an image of the gallery matches others: which words, and where they are."""
        body = {"images": query, "hit": hit, "mode": mode, "words": words}
        return await run_explain(Upload(ExplainBody.model_validate(body)))

    @router.post("/explain", response_model=EXPLANATION, openapi_extra=describe_body(ExplainBody))
    async def explain_query(
        upload: Annotated[Upload[ExplainBody], Depends(read_query(ExplainBody, encoding))],
    ) -> Response:
        """Say why an image of the gallery is a hit of a search: a search body, and `hit`."""
        return await run_explain(upload)

    kept_codes: OrderedDict[bytes, Codes] = OrderedDict()

    @router.get(
        "/heatmap",
        response_class=Response,
        responses={200: {"model": HEATMAP, "content": {"image/png": {}}}},
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
            codes = kept_codes.get(record.content)
            if codes is None:
                codes = vocabulary.encode(files.read(record)).codes
                kept_codes[record.content] = codes
                if len(kept_codes) > _KEPT_CODES:
                    kept_codes.popitem(last=False)
            rows, columns = vocabulary.backbone.grid
            grid = word_activations(codes, word).reshape(rows, columns)
            if format == "json":
                facts = {"id": image, "word": word, "rows": rows, "columns": columns}
                return json_response({**facts, "grid": grid.tolist()})
            mask_hw = make_mask(grid)
            file = io.BytesIO()
            Image.fromarray(np.dstack([np.full_like(mask_hw, 255), mask_hw])).save(file, "PNG")
            return Response(file.getvalue(), media_type="image/png")

        return await encoding.run(work)

    @router.post("/heatmap", response_model=HEATMAPS, openapi_extra=describe_body(HeatmapBody))
    async def show_words(
        upload: Annotated[Upload[HeatmapBody], Depends(read_query(HeatmapBody, encoding))],
    ) -> Response:
        """Say where words are in an uploaded image: a form with one part `image`."""
        if len(upload.images) != 1 or upload.negative:
            raise Problem(422, "wrong-value", "send a form with exactly one part image")

        def work() -> Response:
            words, vocabulary = upload.body.words, gallery.vocabulary
            for word in words:
                check_word(word, vocabulary.n_words)
            codes = vocabulary.encode(upload.images[0]).codes
            grid = vocabulary.backbone.grid
            grids = [word_activations(codes, word).reshape(grid).tolist() for word in words]
            pairs = zip(words, grids, strict=True)
            return json_response({"words": [{"word": word, "grid": grid} for word, grid in pairs]})

        return await encoding.run(work)

    return router


def search_as_json(upload: Upload[SearchBody], gallery: Searchable) -> bytes:
    """Search with the query of a request; return the results as JSON."""
    results: Results = gallery.search(_make_query(upload, ImageFiles(gallery)))
    values = results.to_dict(words=upload.body.words)
    for hit, facts in zip(results, values["hits"], strict=True):
        facts |= {"id": to_id(hit.path), "n_words": len(hit.words)}
    return write_json(values)


def _make_query(
    upload: Upload[SearchBody] | Upload[ExplainBody],
    files: ImageFiles,
    *,
    with_pixels: bool = False,
) -> Query:
    """Return the query of a request; files are read only if the stored words are not enough.

    If `with_pixels`, images of the gallery also have the pixels that an explanation shows.
    """
    body = upload.body

    def find(image_id: str) -> QueryImage:
        record = files.find(image_id)
        if body.needs_pixels:
            return files.read(record)
        return StoredImage(record.path, files.read(record) if with_pixels else None)

    def find_paths(image_ids: list[str]) -> list[str]:
        return [files.find(image_id).path for image_id in image_ids]

    options: dict[str, Any] = {name: getattr(body, name) for name in OPTIONS}
    options["images"] = [*upload.images, *map(find, body.images)]
    options["negative"] = [*upload.negative, *map(StoredImage, find_paths(body.negative))]
    for name, option in OPTIONS.items():
        if option.kind == "hit":
            options[name] = find_paths(options[name])
    return Query(**options)


def _explanation_to_dict(explanation: Explanation, n_words: int) -> dict[str, Any]:
    """Return an explanation as plain values, with ids and at most `n_words` words."""
    values = replace(explanation, parts=explanation.parts[:n_words]).to_dict()
    points = explanation.rounded_contributions()
    for word, value in zip(values["words"], points, strict=False):
        word |= {"points": value, "example_ids": list(map(to_id, word["examples"]))}
    return {
        "id": to_id(explanation.hit_path),
        **values,
        "missing": [word._asdict() for word in explanation.missing[:n_words]],
        "n_words": len(explanation.parts),
        "sum": [line._asdict() for line in sum_up(explanation.match)],
    }
