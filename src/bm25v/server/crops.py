"""What a word looks like: parts of images, cut out where the word is strongest.

In: a word, and an image or the gallery's best example of the word. Out: a square JPEG. The patch
comes from the stored full bag, so no image is encoded. Not this module's job: which images show a
word best (`explanations.word_examples`).
"""

from collections import OrderedDict
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from bm25v import images
from bm25v.explanations.crops import crop_patch, encode_jpeg
from bm25v.explanations.samples import PatchBox
from bm25v.explanations.word_examples import find_examples, find_patch
from bm25v.gallery.records import ImageRecord
from bm25v.searchable import Searchable
from bm25v.server import problems
from bm25v.server.bodies import ImageId
from bm25v.server.images import ImageFiles
from bm25v.server.problems import Problem
from bm25v.server.responses import PREFIX
from bm25v.server.slots import Slots
from bm25v.server.words import WordNumber, find_word

_CACHE = "private, max-age=300"
_DECODED = 4  # times the side of a crop
_KEPT = 4_000  # crops, of a few kB each

Side = Annotated[int, Query(ge=16, le=512, description="The side of the square, in pixels.")]


def crop_routes(
    gallery: Searchable, files: ImageFiles, searching: Slots, thumbnailing: Slots
) -> APIRouter:
    """Return the routes that cut out words."""
    router = APIRouter(
        prefix=PREFIX,
        tags=["words"],
        responses={
            200: {"content": {"image/jpeg": {}}},
            **problems.describe(401, 403, 404, 422, 503),
        },
    )
    engine = gallery.engine
    kept: OrderedDict[tuple[bytes, int, int], bytes] = OrderedDict()

    async def cut(record: ImageRecord, word: int, patch: PatchBox, side: int) -> Response:
        def work() -> bytes:
            image_hwc = images.decode_image(files.read(record), short_side=_DECODED * side)
            part = images.resize_image(crop_patch(image_hwc, patch), width=side, height=side)
            return encode_jpeg(part)

        key = (record.content, word, side)
        crop = kept.get(key)
        if crop is None:
            crop = kept[key] = await thumbnailing.run(work)
            if len(kept) > _KEPT:
                kept.popitem(last=False)
        return Response(crop, headers={"Cache-Control": _CACHE}, media_type="image/jpeg")

    @router.get("/images/{id}/crop", response_class=Response)
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

    @router.get("/words/{number}/crop", response_class=Response)
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
