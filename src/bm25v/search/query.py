"""`Query` carries every option of a search, checked."""

import numbers
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypedDict, Unpack, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bm25v.errors import InvalidQuery
from bm25v.images import ImageInput, Source, read_input
from bm25v.search.regions import Region
from bm25v.search.scoring import MODES, Mode
from bm25v.store.files import check_path
from bm25v.store.filters import ImageFilter, Period, Size
from bm25v.vocabulary import Encoding

Path = str | os.PathLike[str]


@dataclass(frozen=True)
class StoredImage:
    """An image of the gallery, by path or id, as a query: a search does not read its file.

    It uses the words and the dense vector that the gallery has stored, so it takes no forward pass.
    Stored term frequencies are rounded, so scores differ slightly from those of the file. An
    explanation has the scores of the search; it shows the file, or the `image` if one is given.
    """

    path: str
    image: ImageInput | None = field(default=None, repr=False, compare=False)

    def __fspath__(self) -> str:
        """Return the path or id."""
        return self.path


QueryImage = ImageInput | Encoding | StoredImage  # an image, encoded already or not
ReadImage = Source | NDArray[np.uint8] | Encoding  # what a query keeps of it
Word = int | str  # a word's number or name


class QueryOptions(TypedDict, total=False):
    """The options of a search as keyword arguments; `Query` describes each."""

    text: str | None
    folder: Path | Iterable[Path] | None
    date: Period | None
    must: Word | Iterable[Word]
    without: Word | Iterable[Word]
    region: Region | None
    boost: Mapping[Word, float] | None
    like: Path | Iterable[Path]
    unlike: Path | Iterable[Path]
    negative: QueryImage | Iterable[QueryImage] | None
    min_size: Size | None
    max_size: Size | None
    min_coverage: float
    include_query: bool
    merge_copies: bool
    mode: Mode | None
    candidates: int | None
    query_words: int | None
    k: int
    offset: int


_SingleKind = Literal["text", "date", "flag", "mode", "count", "share", "size", "box"]
_ListKind = Literal["word", "factor", "folder", "hit", "image"]
Kind = _SingleKind | _ListKind


@dataclass(frozen=True)
class Option:
    """What the command line and the HTTP API say about an option of a search, and its limits."""

    default: Any
    kind: Kind  # of its value, or of each in a list
    help: str
    description: str = ""  # in place of the help, for JSON
    flag: str = ""  # by default --name
    least: int = 1  # of a count
    most: int | None = None  # of a count, over HTTP

    @property
    def is_list(self) -> bool:
        return self.kind in get_args(_ListKind)


def _option(default: Any, kind: Kind, help: str, description: str = "", **more: Any) -> Any:
    option = Option(default, kind, help, description, **more)
    return field(default=default, metadata={"option": option})


@dataclass(frozen=True, kw_only=True, eq=False)
class Query:
    """Everything one can ask for in a search.

    images: one or several images; a word's weight is the share of them that have it.
    text: what to look for, in everyday words: "a dog on the beach without people". It also finds
        words that people named, dates ("june 2019"), and names of folders and files. Beside images,
        hits are like these and show what the text says. A text tower, if the backbone has one,
        reads the text as a whole.
    region: only this part of the image counts: a box (x, y, width, height), in pixels or, if no
        number is above 1, in fractions of the image; or a mask, an array over the image.
    must, without: words, by number or name, that hits must have or must not have, among all words
        of an image. A required word is added to the query. Of the words of one name, the three
        count that are strongest in the query, or all if it has none of them; any is enough.
    boost: factors for the weights of words, at most 1,000,000; 0 mutes a word, below 0 it counts
        against an image. A word that the image does not have is added to the query; so are the
        words of a name, if the image has none of them.
    negative: counter-examples. Their words count against an image, by half.
    like, unlike: images of the gallery, as feedback on hits. Words of the liked ones count for an
        image, by three quarters; words of the unliked ones count against it, by half. Liked
        images stay among the hits.
    query_words: search with this many words of each image, weighted by the square root of their
        strength; of an image that is stored, as many as are stored. By default, all words in modes
        "hybrid" and "words"; in the other modes those of the index, each with weight 1.
    min_coverage: the smallest coverage that a hit must have: the share of the query's IDF mass that
        it matches. A query may have more words than a stored image; its strongest ones count.
    folder: only images in this folder, or in one of several; or whose path matches a pattern:
        `*` stands for any characters of one name, `**` for any folders, `?` for one character. A
        pattern without a slash, such as "*.png", stands for names in any folder.
    date: only images that were taken then, by their EXIF date, else by the time of the file: a
        year, month, day or time ("2023", "2023-06", "2023-06-01T14:30", a `datetime.date`), or a
        range of two ("2021..2023-06", ("2023-06-01", None)), whose end is included.
    min_size, max_size: only images of at least, or at most, this width and height in pixels: a
        number for both, or (width, height).
    include_query: the images of the query, counter-examples and unliked images, and files with
        the same content, are left out of the hits unless this is true.
    merge_copies: images with the same content are one hit, which lists the paths of the others.
    k, offset: the number of hits, and how many better ones are skipped: the next page. Except in
        modes "sparse" and "dense", pages end with the candidates.
    mode: what orders the hits. "hybrid": cosine plus BM25 over all words of an image; "words": BM25
        over all words alone; "two-stage": cosine alone, as in the paper. These three order
        candidates, which BM25 over the few words of the index finds. "sparse": BM25 over the words
        of the index alone; "dense": the cosine of all images. By default hybrid; words if the query
        has no dense vector; dense for a text that a text tower reads.
    candidates: how many images the first stage passes to the second; at least k, so with fewer
        candidates a larger k may change the best hits too. By default, in modes "hybrid" and
        "words", 300 for the first 20 hits and 1,000 for more of them or for a text; in mode
        "two-stage" 200.

    >>> Query.of("cat.jpg", must=12, k=3).must
    (12,)
    """

    images: tuple[ReadImage, ...] = _option((), "image", "Images of the gallery to search with.")
    text: str | None = _option(
        None, "text", "What to search for, in words: 'a dog on the beach without people'."
    )
    folder: tuple[str, ...] | None = _option(
        None,
        "folder",
        "Only images in this folder, or with a path like '2023/**/*.jpg' or '*.png'.",
        "Only images in one of these folders, or of these patterns.",
    )
    date: Period | None = _option(
        None,
        "date",
        "Only images taken then: 2023, 2023-06, 2023-06-01 or a range such as 2021..2023-06. By "
        "the EXIF date, else by the time of the file.",
    )
    must: tuple[Word, ...] = _option((), "word", "Only images that have the word.")
    without: tuple[Word, ...] = _option((), "word", "Only images that do not have the word.")
    region: Region | None = _option(
        None,
        "box",
        "Use only this box of the image: in pixels, or in fractions if none is above 1.",
        "Only this box of the image counts: x, y, width, height, in pixels or, if no number is "
        "above 1, in fractions of the image.",
    )
    boost: Mapping[Word, float] = _option(
        None,
        "factor",
        "Multiply the word's weight; 0 mutes it, below 0 it counts against an image.",
        "Factors for the weights of words, by number or name.",
    )
    like: tuple[str, ...] = _option((), "hit", "More like this image of the gallery.")
    unlike: tuple[str, ...] = _option((), "hit", "Less like this image of the gallery.")
    negative: tuple[ReadImage, ...] = _option(
        (), "image", "A counter-example: its words count against an image.", flag="--not"
    )
    min_size: Size | None = _option(
        None,
        "size",
        "Only images of at least this size in pixels: 1000 (both sides) or 1920x1080.",
        "Only images of at least this size: pixels, or width and height.",
    )
    max_size: Size | None = _option(None, "size", "Only images of at most this size.")
    min_coverage: float = _option(
        0.0,
        "share",
        "Only images that match this share of the query, rare words counting more (0 to 1).",
    )
    include_query: bool = _option(
        False,
        "flag",
        "Also list the images of the query, and their copies, if the gallery has them.",
    )
    merge_copies: bool = _option(False, "flag", "List copies of a file as one hit.")
    mode: Mode | None = _option(
        None,
        "mode",
        "What orders the hits. hybrid: similarity of the whole images, plus words. words: all "
        "words of an image. two-stage: the best candidates by words, ordered by similarity, as in "
        "the paper. sparse: the words of the index alone. dense: similarity alone.  "
        "[default: hybrid]",
        "What orders the hits; by default hybrid, or what the query allows.",
    )
    candidates: int | None = _option(
        None,
        "count",
        "Images that the first stage passes to the second, at least k  [default: 300 for the first "
        "20 hits, else 1000; 200 in mode two-stage]",
        most=20_000,
    )
    query_words: int | None = _option(
        None,
        "count",
        "Search with the N strongest words of each image  [default: all words in the modes hybrid "
        "and words; those of the index, with equal weights, in the others]",
        "Search with this many words of each image.",
        most=100_000,
    )
    k: int = _option(10, "count", "Hits to show.", "The number of hits.", flag="-k", most=1000)
    offset: int = _option(
        0, "count", "Skip the best N hits, to show the next page.", least=0, most=1_000_000_000
    )
    _opened_from: tuple[str, ...] = field(init=False, repr=False)  # files of Pillow images

    @classmethod
    def of(
        cls,
        images: QueryImage | Iterable[QueryImage] | None = None,
        **options: Unpack[QueryOptions],
    ) -> "Query":
        """Return a query; typed for a single image, word or path in place of several."""
        values: dict[str, Any] = {"images": images, **options}
        return cls(**values)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_opened_from", _file_names(self.images))
        for name, option in OPTIONS.items():
            if option.kind in _NORMALISE:
                value = _NORMALISE[option.kind](getattr(self, name))
                object.__setattr__(self, name, value)
        make_filter(self)  # raises an error for wrong values
        if not (self.images or self.like or self.must or self.boost or self.text is not None):
            raise InvalidQuery("an empty query: give an image, a text, or words by must or boost")
        if self.text is not None and not isinstance(self.text, str):
            raise InvalidQuery(f"text = {self.text!r}: give a text")
        if self.text is not None and not self.text.strip():
            raise InvalidQuery("an empty text: write what to look for")
        if self.region is not None and len(self.images) != 1:
            raise InvalidQuery(f"a region with {len(self.images)} images: it needs exactly one")
        if self.mode is not None and self.mode not in MODES:
            raise InvalidQuery(f"mode {self.mode!r}: choose one of {', '.join(MODES)}")
        for name, option in OPTIONS.items():
            _check_number(name, option, getattr(self, name))


OPTIONS: Mapping[str, Option] = {
    f.name: replace(option, flag=option.flag or f"--{f.name.replace('_', '-')}")
    for f in fields(Query)
    if (option := f.metadata.get("option"))
}


def as_query(
    query: Query | QueryImage | Iterable[QueryImage] | None, options: QueryOptions
) -> Query:
    if not isinstance(query, Query):
        return Query.of(query, **options)
    if options:
        raise InvalidQuery(f"{', '.join(options)} beside a Query: set them in the Query")
    return query


def _check_number(name: str, option: Option, value: Any) -> None:
    if option.kind == "count" and value is not option.default:
        is_count = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not is_count or value < option.least:
            raise InvalidQuery(f"{name} = {value!r}: give a whole number, {option.least} or more")
    is_number = isinstance(value, numbers.Real)
    if option.kind == "share" and not (is_number and 0 <= value <= 1):
        raise InvalidQuery(f"{name} = {value!r}: give a share between 0 and 1")


def format_values(kind: Kind, value: Any) -> list[str]:
    """Return the value of an option as it is written on a command line, each part of a list.

    >>> format_values("size", (1920, 1080)), format_values("factor", {12: 2.0})
    (['1920x1080'], ['12=2'])
    """
    if value is None:
        return []
    match kind:
        case "factor":
            return [f"{word}={factor:.9g}" for word, factor in value.items()]
        case "word" | "folder" | "hit" | "image":
            return [str(part) for part in value]
        case "box":
            return [",".join(f"{number:.9g}" for number in value)]
        case "size" if not isinstance(value, int):
            return ["x".join(map(str, value))]
        case "date" if isinstance(value, tuple):
            return ["..".join("" if moment is None else str(moment) for moment in value)]
    return [str(value)]


def make_filter(query: Query) -> ImageFilter:
    sizes = {"min_size": query.min_size, "max_size": query.max_size}
    return ImageFilter.of(folder=query.folder, date=query.date, **sizes)


def list_images(query: Query) -> tuple[ReadImage, ...]:
    """Return all images that a query names, for or against, as pixels or paths."""
    return (*list_own_images(query), *query.like)


def list_own_images(query: Query) -> tuple[ReadImage, ...]:
    """Return the images that are no hits: all but the liked ones."""
    return (*query.images, *query.negative, *query._opened_from, *query.unlike)


def list_paths(paths: Path | Iterable[Path] | None) -> tuple[str, ...]:
    is_several = isinstance(paths, Iterable) and not isinstance(paths, str | bytes | os.PathLike)
    several: Any = paths if is_several else () if paths is None else (paths,)
    return tuple(check_path(path) for path in several)


def _file_names(images: Any) -> tuple[str, ...]:
    images = images if isinstance(images, list | tuple) else (images,)
    names = (getattr(image, "filename", "") for image in images if isinstance(image, Image.Image))
    return tuple(os.path.abspath(name) for name in names if name and isinstance(name, str))


def _as_images(images: Any) -> tuple[ReadImage, ...]:
    """Return one image, several or none as a tuple.

    >>> _as_images("a.jpg"), _as_images(["a.jpg", b"bytes"]), _as_images(None)
    (('a.jpg',), ('a.jpg', b'bytes'), ())
    """
    if images is None:
        return ()
    is_single = isinstance(images, str | os.PathLike | bytes | np.ndarray | Encoding | Image.Image)
    is_single = is_single or hasattr(images, "read") or hasattr(images, "cpu")
    if is_single or not isinstance(images, Iterable):
        return (_as_image(images),)
    return tuple(_as_image(image) for image in images)


def _as_image(image: Any) -> ReadImage:
    if isinstance(image, Encoding):
        return image
    return check_path(image) if isinstance(image, str) else read_input(image)


def _as_words(words: Any) -> tuple[Word, ...]:
    if words is None:
        return ()
    is_single = isinstance(words, str) or not isinstance(words, Iterable)
    return (words,) if is_single else tuple(words)


def _as_boosts(boost: Any) -> dict[Word, float]:
    if boost is not None and not isinstance(boost, Mapping):
        raise InvalidQuery(f"boost = {boost!r}: give words and factors, such as {{12: 2.0}}")
    return dict(boost or {})


_NORMALISE: dict[Kind, Callable[[Any], Any]] = {  # a single value stands for a list of one
    "image": _as_images,
    "word": _as_words,
    "factor": _as_boosts,
    "folder": lambda folder: None if folder is None else list_paths(folder),
    "hit": list_paths,
}
