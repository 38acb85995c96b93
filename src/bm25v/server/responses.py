"""JSON responses: how values are written, and their models, made from the library's own types.

Paths may hold bytes that are no text, which pydantic refuses. So routes write plain values, and
name the model that describes them.
"""

from collections.abc import Sequence
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import ConfigDict, Field, create_model
from pydantic_core import PydanticSerializationError, to_json
from starlette.responses import Response

from bm25v.display import format_json
from bm25v.duplicates import Duplicate, Similarity
from bm25v.explain.groups import Group
from bm25v.explain.maps import TermWord
from bm25v.explain.sums import SumLine
from bm25v.explain.words import FolderWithWord, ImageWithWord, SharedWord, WordInGallery
from bm25v.schema import list_fields
from bm25v.search.encode import Remaining
from bm25v.search.naming import Topic, WordGroup
from bm25v.search.rank import Ranking
from bm25v.search.results import (
    Hit,
    Match,
    QueryWord,
    Results,
    ScorePart,
    TextPart,
    WordContribution,
)
from bm25v.server.watch import WatchedFolder
from bm25v.store.base import GalleryInfo
from bm25v.store.local.trash import TrashedImage
from bm25v.store.records import GalleryImage

PREFIX = "/v1"  # of all routes but those about the server itself


def write_json(value: Any) -> bytes:
    """Return plain values as JSON; numbers that JSON does not have become null."""
    try:
        return to_json(value, inf_nan_mode="null")
    except PydanticSerializationError:  # a path that is not text
        return format_json(value, indent=None).encode()


def json_response(value: Any, status: int = 200) -> Response:
    return Response(write_json(value), status, media_type="application/json")


def _object(name: str, about: str | None = None, /, **types: Any) -> Any:
    """Return a model in which all fields are required, and no others are."""
    definitions: dict[str, Any] = {field: (type_, ...) for field, type_ in types.items()}
    config = ConfigDict(extra="forbid")
    return create_model(name, __config__=config, __doc__=about, **definitions)


def _extend(kind: type, name: str = "", /, *, without: Sequence[str] = (), **types: Any) -> Any:
    """Return a model with the fields of a dataclass or named tuple, and with more of them."""
    own = list_fields(kind)
    shown = {field: _to_json_type(own[field]) for field in own if field not in without}
    return _object(name or kind.__name__, kind.__doc__, **(shown | types))


def _to_json_type(type_: Any) -> Any:
    """Return what JSON has in place of a type: objects have models, sequences are lists."""
    if list_fields(type_):
        return _model(type_)
    arguments = tuple(map(_to_json_type, get_args(type_)))
    if get_origin(type_) in (list, tuple, Sequence):
        return _list(arguments[0])
    if get_origin(type_) in (Union, UnionType):
        return Union[arguments]  # noqa: UP007 - of types that are known only here
    return type_


@cache
def _model(kind: Any) -> Any:
    return _extend(kind)


def _list(type_: Any) -> Any:
    return list[type_]


def _say(type_: Any, description: str) -> Any:
    return Annotated[type_, Field(description=description)]


_ID = Annotated[str, Field(examples=["L3Bob3Rvcy9jYXQuanBn"], description="For other requests.")]
_GRID = list[list[float]]
_PAGE = {"total": _say(int, "How many there are on all pages."), "offset": int, "limit": int}

IMAGE = _extend(GalleryImage, id=_ID, date=str, taken=str | None)
IMAGE_FACTS = _extend(
    GalleryImage,
    "ImageFacts",
    id=_ID,
    date=str,
    taken=str | None,
    file=_say(
        Literal["current", "changed", "missing", "none"],
        "Whether it is as it was indexed; none: the image was added from memory.",
    ),
    remove_command=_say(str, "The command that removes the image from the gallery."),
)
MONTHS = _object(
    "Months",
    months=_list(_object("Month", month=Annotated[str, Field(examples=["2023-06"])], n_images=int)),
)
IMAGE_PAGE = _object("ImagePage", **_PAGE, images=_list(IMAGE))

_COPY = Field(alias="copy", description="Whether an image listed before it has the same content.")
DUPLICATE_PAGE = _object(
    "DuplicatePage",
    **_PAGE,
    n_left_out=_say(int, "Images whose files are missing or have changed: they are in no group."),
    groups=_list(
        _object(
            "DuplicateGroup",
            kind=_say(Literal["exact", "near"], "Whether all of them have the same content."),
            best=_say(_ID, "The id of the image to keep; it is the first."),
            images=_list(
                _extend(
                    Duplicate,
                    without=("similarity",),
                    id=_ID,
                    date=str,
                    is_copy=Annotated[bool, _COPY],
                    **list_fields(Similarity),
                )
            ),
        )
    ),
)

_N_WORDS = _say(int, "How many words the image shares with the query.")
_TEXT = {
    "text": _say(_list(_model(TextPart)), "What each word or phrase of a text adds to the score."),
    "rest": _say(float, "What all else in the query adds beside a text."),
}
_GROUPS = _say(_list(_model(WordGroup)), "The largest groups of words that count for hits.")
RESULTS = _extend(
    Results,
    hits=_list(
        _extend(
            Hit,
            without=("mode", "sparse_factor"),
            id=_ID,
            n_words=_N_WORDS,
            groups=_GROUPS,
            **_TEXT,
        )
    ),
    groups=_GROUPS,
    understood=_say(list[str], "Of a text: words and phrases, dates, names in paths."),
    not_understood=_say(list[str], "The other words of a text, which changed nothing."),
)
REMAINING = _model(Remaining)
EXPLANATION = _extend(
    Match,
    "Explanation",
    id=_ID,
    n_words=_N_WORDS,
    title=_say(str, "How good the match is and which rank it has."),
    sentence=_say(str, "Why it matches, for people."),
    groups=_say(
        _list(
            _extend(
                Group,
                "ExplainedGroup",
                percent=_say(str, "Its share, for people."),
                in_queries=_list(_GRID | None),
                in_hit=_say(_GRID | None, "Where it is, as shares of the peak."),
            )
        ),
        "The score by what people would call its parts; the values sum to it.",
    ),
    in_queries=_say(
        _list(_GRID | None), "Where all of them are together, in each image of the query."
    ),
    in_hit=_say(_GRID | None, "Where all of them are together, in the hit."),
    visibility=_say(float, "How much a match is to be highlighted: 1 for a strong one."),
    ranking=_model(Ranking) | None,
    about_rank=_say(str, "Why it has this rank, for people."),
    **_TEXT,
    parts=_say(_list(_model(ScorePart)), "What the score is the sum of."),
    terms=_list(
        _extend(
            TextPart,
            "ExplainedTerm",
            in_hit=_say(
                _GRID | None,
                "What each patch adds, beside what the mean of all patches does; null if unknown.",
            ),
            words=_say(_list(_model(TermWord)), "Visual words that carry it, at most 5."),
        )
    ),
    words=_list(
        _extend(
            WordContribution,
            "ExplainedWord",
            in_query=_GRID | None,
            in_hit=_GRID | None,
            points=_say(float, "The contribution, rounded so that all add up to `sparse`."),
        )
    ),
    missing=_say(_list(_model(QueryWord)), "Words of the query that the image does not have."),
    notes=list[str],
    sum=_say(_list(_model(SumLine)), "How the score adds up, for people; the last is the score."),
)
TOPICS = _object("Topics", topics=_list(_extend(Topic, id=_ID)))
SHOWN = _object(
    "ShownGroups",
    groups=_list(
        _object(
            "ShownGroup",
            label=str,
            share=_say(float, "Of what the image's words add up to."),
            words=list[int],
            in_hit=_say(_GRID | None, "Where it is in the image."),
        )
    ),
)
HEATMAP = _object(
    "Heatmap",
    id=_ID,
    words=list[int],
    rows=int,
    columns=int,
    grid=_say(_GRID, "How active the words are in each patch, row by row."),
)
HEATMAPS = _object("Heatmaps", grids=_say(list[_GRID], "Of each group of words."))

_IMAGES = _list(_extend(ImageWithWord, id=_ID))
_N_IMAGES = _say(int, "How many images the gallery has.")
WORD_PAGE = _object(
    "WordPage", **_PAGE, n_images=_N_IMAGES, words=_list(_extend(WordInGallery, best=_IMAGES))
)
WORD = _extend(
    WordInGallery,
    "Word",
    best=_IMAGES,
    n_images=_N_IMAGES,
    top=_say(_IMAGES, "The images that have most of it."),
    companions=_list(_extend(SharedWord, name=str | None)),
    same_name=_say(
        _list(_object("WordOfName", word=int, name=str, df=int)),
        "Other words with its name, most images first.",
    ),
    before=_say(int | None, "The word before it, as `/words` lists them."),
    after=int | None,
    folders=_list(_model(FolderWithWord)),
    purity=float | None,
    name_command=_say(str, "The command that names the word."),
)
FOLDERS = _object(
    "Folders",
    root=_say(str, "The folder that holds all images that are files."),
    folders=_list(_object("Folder", path=str, n_images=_say(int, "In it and below it."))),
)
TERMS = _object("Terms", terms=list[str])
IMAGE_NAME = _object(
    "ImageName", name=str, n_images=_say(int, "How many images of the gallery have it.")
)
IMAGE_NAMES = _object("ImageNames", names=_list(IMAGE_NAME))

STATS = _extend(
    GalleryInfo,
    version=_say(str, "Of bm25v."),
    writable=_say(bool, "Whether requests may change the gallery."),
    watch=_list(
        _extend(
            WatchedFolder,
            without=("path", "due", "identity"),
            folder=str,
            last_scan=_say(str | None, "When the last scan ended."),
            unreadable=_say(int, "How many files cannot be read."),
        )
    ),
)
STATUS = _object("Status", status=str)
READY = _object("Ready", status=str, preparing=bool)
ADDED = _object(
    "Added",
    id=_ID,
    path=_say(str, "The id that it was added with."),
    added=_say(int, "1 if it is new."),
    updated=_say(int, "1 if it replaces another image with this id."),
)
REMOVED = _object("Removed", removed=int)
TRASHED = _object("Trashed", images=_list(_extend(TrashedImage, id=_ID)))
NAMED = _object("Named", word=int, name=str | None)
