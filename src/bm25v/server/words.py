"""Visual words of the gallery, and facts about it.

In: the number of a word. Out: JSON with the keys of `bm25v words` and `bm25v info`.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

import bm25v
from bm25v.explanations.word_statistics import ImageWithWord, WordInGallery, WordOrder
from bm25v.pages.commands import name_command
from bm25v.searchable import Searchable
from bm25v.server import problems
from bm25v.server.bodies import Offset
from bm25v.server.images import to_id
from bm25v.server.problems import Problem
from bm25v.server.responses import PREFIX, STATS, WORD, WORD_PAGE, describe_json, json_response
from bm25v.server.slots import Slots
from bm25v.server.watch import WatchedFolder

WordNumber = Annotated[int, Path(ge=0, le=2**31, description="The number of a word.")]


def word_routes(
    gallery: Searchable, searching: Slots, watched: Sequence[WatchedFolder], *, writable: bool
) -> APIRouter:
    """Return the routes below `/words`, and `/stats`."""
    router = APIRouter(
        prefix=PREFIX, tags=["words"], responses=problems.describe(401, 403, 404, 422, 503)
    )

    @router.get("/words", responses=describe_json(WORD_PAGE))
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
            counts = {"pictures": facts.n_images, "total": facts.words_in_use}
            return json_response({**counts, "offset": offset, "limit": limit, "words": page})

        return await searching.run(work)

    @router.get("/words/{number}", responses=describe_json(WORD))
    async def get_word(
        number: WordNumber, images: Annotated[int, Query(ge=0, le=1000)] = 24
    ) -> Response:
        """Say in which images a word is, and which other words are with it."""
        return await searching.run(lambda: json_response(_describe_word(gallery, number, images)))

    @router.get("/stats", responses=describe_json(STATS))
    def get_stats() -> Response:
        """Return facts about the gallery, and about the folders that are watched."""
        server = {"version": bm25v.__version__, "writable": writable}
        facts = {**gallery.info().to_dict(), **server}
        return json_response({**facts, "watch": [folder.to_dict() for folder in watched]})

    return router


def find_word(gallery: Searchable, number: int) -> None:
    """Raise a 404 `Problem` if the vocabulary has no such word."""
    n_words = gallery.engine.meta.n_words
    if number >= n_words:
        detail = f"no word {number}: this vocabulary has words 0 to {n_words - 1}"
        raise Problem(404, "unknown-word", detail)


def _describe_word(gallery: Searchable, number: int, n_images: int) -> dict[str, Any]:
    find_word(gallery, number)
    use, names = gallery.word(number), gallery.word_names
    facts = _word_to_dict(use.facts)
    del facts["best"]
    return {
        **facts,
        "pictures": use.n,
        "top": _images_to_dicts(use.images[:n_images]),
        "companions": [
            {**other._asdict(), "name": names.get(other.word)} for other in use.companions
        ],
        "folders": [
            {"name": f.name, "pictures": f.n_images, "has_word": f.has_word} for f in use.folders
        ],
        "purity": use.purity,
        "name_command": name_command(gallery.engine.location, number),
    }


def _word_to_dict(word: WordInGallery) -> dict[str, Any]:
    facts = {"word": word.word, "name": word.name, "df": word.df, "idf": word.idf}
    return {**facts, "best": _images_to_dicts(word.best)}


def _images_to_dicts(images: Iterable[ImageWithWord]) -> list[dict[str, Any]]:
    return [{"id": to_id(image.path), **image._asdict()} for image in images]
