"""JSON responses: how values are written, and how OpenAPI describes them.

In: plain values with the keys of docs/reference/json.md. Out: responses; schemas that say which
keys there are. Not this module's job: the values.
"""

from typing import Any

from starlette.responses import Response

from bm25v.display import format_json

PREFIX = "/v1"  # of all routes but those about the server itself

Schema = dict[str, Any]


def json_response(value: Any, status: int = 200) -> Response:
    """Return plain values as a response; numbers that JSON does not have become null."""
    return Response(format_json(value, indent=None), status, media_type="application/json")


def describe_json(schema: Schema, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """Return what OpenAPI says about a response with this JSON."""
    return {status: {"content": {"application/json": {"schema": schema}}}}


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "required": list(properties), "properties": properties}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _say(schema: Schema, description: str) -> Schema:
    return {**schema, "description": description}


_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "number"}
_INTEGER: Schema = {"type": "integer"}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_NUMBER_OR_NULL: Schema = {"type": ["number", "null"]}
_INTEGER_OR_NULL: Schema = {"type": ["integer", "null"]}
_GRID = _list(_list(_NUMBER))

_ID = {"type": "string", "examples": ["L3Bob3Rvcy9jYXQuanBn"], "description": "For other requests."}
_PATH = _say(_TEXT, "The path, or the id of an image that was added from memory.")

IMAGE = _object(
    id=_ID,
    path=_PATH,
    date=_say(_TEXT, "When it was taken, by its metadata, else the time of its file."),
    width=_INTEGER_OR_NULL,
    height=_INTEGER_OR_NULL,
    file_size=_say(_INTEGER, "In bytes."),
    taken=_say(_TEXT_OR_NULL, "By its metadata; null if that does not say."),
)
IMAGE_PAGE = _object(
    total=_say(_INTEGER, "How many images the filters select."),
    offset=_INTEGER,
    limit=_INTEGER,
    images=_list(IMAGE),
)

_WORD = {"word": _say(_INTEGER, "The number of the word."), "name": _TEXT_OR_NULL}
_CONTRIBUTION = {
    **_WORD,
    "idf": _NUMBER,
    "tf": _NUMBER,
    "query_tf": _NUMBER,
    "saturation": _NUMBER,
    "contribution": _say(_NUMBER, "weight · idf · saturation"),
    "weight": _NUMBER,
    "df": _INTEGER,
}
_QUERY_WORD = _object(**_WORD, weight=_NUMBER, query_tf=_NUMBER, idf=_NUMBER, df=_INTEGER)
_MATCH = {
    "id": _ID,
    "path": _PATH,
    "score": _say(_NUMBER, "What orders the hits."),
    "strength": {"enum": ["strong", "fair", "weak", None]},
    "sparse": _say(_NUMBER, "The BM25 score: the sum of all contributions."),
    "dense": _say(_NUMBER_OR_NULL, "The cosine."),
    "coverage": _say(_NUMBER, "The share of the query that the image matches."),
    "length": _NUMBER,
    "average_length": _NUMBER,
    "pictures": _say(_INTEGER, "How many images the gallery has."),
    "concepts": _say(
        _list(_object(label=_TEXT, probability=_NUMBER, value=_NUMBER)),
        "What the terms of a text add to the score.",
    ),
    "n_words": _say(_INTEGER, "How many words the image shares with the query."),
}
RESULTS = _object(
    mode=_TEXT,
    query=_say(_list(_QUERY_WORD), "The words of the query, largest weight · IDF first."),
    hits=_list(
        _object(
            rank=_INTEGER,
            first_rank=_INTEGER_OR_NULL,
            **_MATCH,
            words=_say(_list(_object(**_CONTRIBUTION)), "Largest contribution first."),
        )
    ),
    no_match=_say(_TEXT_OR_NULL, "The reason, if there are no hits."),
    notes=_list(_TEXT),
    sparse_factor=_NUMBER_OR_NULL,
    candidates=_INTEGER_OR_NULL,
    understood=_say(_list(_TEXT), "The terms of a text that were understood."),
    not_understood=_list(_TEXT),
    ms={"type": "object", "description": "Milliseconds of each stage."},
)
EXPLANATION = _object(
    **_MATCH,
    mode=_TEXT,
    sparse_factor=_NUMBER,
    standing={"type": ["object", "null"], "description": "Its rank among all images."},
    parts=_say(
        _list(_object(word=_INTEGER_OR_NULL, label=_TEXT, value=_NUMBER)),
        "What the score is the sum of.",
    ),
    words=_list(
        _object(
            **_CONTRIBUTION,
            in_query={**_GRID, "type": ["array", "null"]},
            in_hit={**_GRID, "type": ["array", "null"]},
            examples=_say(_list(_TEXT), "Paths of other images that have the word."),
            example_ids=_list(_ID),
            points=_say(_NUMBER, "The contribution, rounded so that all add up to `sparse`."),
        )
    ),
    missing=_say(_list(_QUERY_WORD), "Words of the query that the image does not have."),
    notes=_list(_TEXT),
    sum=_say(
        _list(_object(label=_TEXT, value=_TEXT, about=_TEXT)),
        "How the score adds up, for people; the last one is the score.",
    ),
)
HEATMAP = _object(
    id=_ID,
    word=_INTEGER,
    rows=_INTEGER,
    columns=_INTEGER,
    grid=_say(_GRID, "How active the word is in each patch, row by row."),
)
HEATMAPS = _object(words=_list(_object(word=_INTEGER, grid=_GRID)))

_IMAGE_WITH_WORD = _object(id=_ID, path=_PATH, tf=_NUMBER)
_WORD_FACTS = {**_WORD, "df": _INTEGER, "idf": _NUMBER}
WORD_PAGE = _object(
    pictures=_INTEGER,
    total=_say(_INTEGER, "How many words are in use."),
    offset=_INTEGER,
    limit=_INTEGER,
    words=_list(_object(**_WORD_FACTS, best=_list(_IMAGE_WITH_WORD))),
)
WORD = _object(
    **_WORD_FACTS,
    pictures=_INTEGER,
    top=_say(_list(_IMAGE_WITH_WORD), "The images that have most of it."),
    companions=_say(
        _list(_object(**_WORD, together=_INTEGER, lift=_NUMBER)),
        "Words that are often in the same images.",
    ),
    folders=_list(_object(name=_TEXT, pictures=_INTEGER, has_word=_INTEGER)),
    purity=_NUMBER_OR_NULL,
    name_command=_say(_TEXT, "The command that names the word."),
)
FOLDERS = _object(
    root=_say(_TEXT, "The folder that holds all images that are files."),
    folders=_list(_object(path=_TEXT, pictures=_say(_INTEGER, "In it and below it."))),
)
TERMS = _object(terms=_list(_TEXT))
_WATCHED = _object(
    folder=_TEXT,
    scans=_say(_INTEGER, "How often all of it was looked at since the server was started."),
    last_scan=_say(_TEXT_OR_NULL, "When the last scan ended."),
    seconds=_say(_NUMBER, "How long it took."),
    pending=_say(_INTEGER, "Images that are still to be read, or read again."),
    unreadable=_say(_INTEGER, "Files that cannot be read."),
    error=_say(_TEXT_OR_NULL, "Why the folder could not be scanned."),
)
STATS: Schema = {
    "type": "object",
    "description": "The facts of `bm25v info --json`, the version of bm25v, watched folders.",
    "required": ["path", "pictures", "vocabulary", "words", "version", "writable", "watch"],
    "properties": {
        "writable": _say({"type": "boolean"}, "Whether requests may change the gallery."),
        "watch": _list(_WATCHED),
    },
}
STATUS = _object(status=_TEXT)
ADDED = _object(
    id=_ID,
    path=_say(_TEXT, "The id that it was added with."),
    added=_say(_INTEGER, "1 if it is new."),
    updated=_say(_INTEGER, "1 if it replaces another image with this id."),
)
REMOVED = _object(removed=_INTEGER)
NAMED = _object(**_WORD)
