"""`Client`: the gallery of a `bm25v serve` over HTTP, with methods of `Gallery`."""

import io
import ipaddress
import json
import logging
import os
import re
import sys
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import cache
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, get_args, get_origin
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

from bm25v.errors import (
    Bm25vError,
    GalleryLocked,
    ImageError,
    ImageNotFound,
    InvalidOption,
    InvalidQuery,
    MissingExtra,
    ServerError,
)
from bm25v.explain.words import WordInGallery, WordList, WordOrder, WordUse
from bm25v.files import read_limited
from bm25v.images import ImageInput, NamedImages, open_stream, read_input
from bm25v.schema import list_fields
from bm25v.search.query import (
    OPTIONS,
    Query,
    QueryImage,
    QueryOptions,
    ReadImage,
    StoredImage,
    as_query,
    format_values,
    list_paths,
)
from bm25v.search.regions import as_box
from bm25v.search.results import Match, Results
from bm25v.search.scoring import MODES
from bm25v.store.base import Failure, GalleryInfo, IndexReport
from bm25v.store.filters import PathInput, Period, Size
from bm25v.store.records import GalleryImage
from bm25v.vocabulary import Encoding

if TYPE_CHECKING:
    import httpx

MIN_TOKEN = 16  # characters

_PAGE = 1000  # images or words of one request
_AT_A_TIME = 4  # requests of `search_many`
_ERRORS: dict[str, type[Bm25vError]] = {  # by the kind of a problem
    "invalid-option": InvalidOption,
    "wrong-value": InvalidOption,
    "unknown-word": InvalidOption,
    "unknown-image": ImageNotFound,
    "image-not-found": ImageNotFound,
    "unreadable-image": ImageError,
    "gallery-locked": GalleryLocked,
}
_log = logging.getLogger(__name__)
_STORED = (Match, GalleryImage, StoredImage)  # images of the gallery: sent by id

Value = TypeVar("Value")
Files = list[tuple[str, tuple[str, bytes]]]  # images of a form


class Client:
    """A gallery on a server: searches, words, facts and, if it is writable, changes.

    Paths, bytes, open files, Pillow images and arrays are sent to the server. Hits, gallery images
    and `StoredImage` are images that the server has. Explanations are plain values, the region of a
    query is a box, and files on the server cannot be indexed.

    >>> client = Client("http://127.0.0.1:8025", token="...")
    >>> client
    <Client http://127.0.0.1:8025>
    """

    def __init__(self, url: str, *, token: str | None = None, timeout: float = 60.0) -> None:
        try:
            import httpx
        except ImportError as error:
            raise MissingExtra("bm25v.Client", "serve") from error
        try:
            address = urlsplit(url)
            host = address.hostname or ""
        except ValueError:
            address, host = urlsplit(""), ""
        if address.scheme not in ("http", "https") or not host:
            raise InvalidOption(
                f"{url!r} is not an address: give one such as http://127.0.0.1:8025"
            )
        self._url = url.rstrip("/")
        self._http = httpx.Client(
            base_url=f"{self._url}/v1/",
            headers={} if token is None else {"Authorization": f"Bearer {token}"},
            timeout=timeout,
            follow_redirects=False,  # another server must not get the token
            trust_env=not _is_loopback(host),  # nor a proxy what stays on this machine
        )

    def __repr__(self) -> str:
        return f"<Client {self._url}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; the client cannot be used afterwards."""
        self._http.close()

    def __len__(self) -> int:
        return self.info().n_images

    def __contains__(self, image: PathInput) -> bool:
        try:
            self._get(f"images/{to_id(image)}")
        except ImageNotFound:
            return False
        return True

    def __iter__(self) -> Iterator[GalleryImage]:
        return self.images()

    @property
    def url(self) -> str:
        """The address of the server."""
        return self._url

    def search(
        self,
        query: Query | QueryImage | Iterable[QueryImage] | None = None,
        **options: Unpack[QueryOptions],
    ) -> Results:
        """Return the images most similar to an image, or to several; `Query` has all options.

        Of the query and of each hit, at most 256 words are listed.
        """
        answer = self._post_query("search", as_query(query, options))
        mode, factor = answer["mode"], answer["sparse_factor"]
        if factor is None:
            factor = 1.0 if MODES[mode].by_words_alone else 0.0
        hits = [{**hit, "mode": mode, "sparse_factor": factor} for hit in answer["hits"]]
        return _make(Results, {**answer, "hits": hits})

    def search_many(
        self, queries: Iterable[Query | QueryImage], **options: Unpack[QueryOptions]
    ) -> list[Results]:
        """Search with many images or queries, a few at a time; each result is that of `search`."""
        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            checked = [q if isinstance(q, Query) else Query.of(q, **options) for q in queries]
            return list(pool.map(self.search, checked))

    def match(
        self,
        query: Query | QueryImage | Iterable[QueryImage] | None,
        path: PathInput,
        **options: Unpack[QueryOptions],
    ) -> Match:
        """Return how one image compares with a query."""
        return _make(Match, self.explain(query, path, **options))

    def explain(
        self,
        query: Query | QueryImage | Iterable[QueryImage] | None,
        hit: PathInput,
        **options: Unpack[QueryOptions],
    ) -> dict[str, Any]:
        """Return why an image matches a query, as plain values: those of `Explanation.to_dict`."""
        return self._post_query("explain", as_query(query, options), hit=to_id(hit))

    def images(
        self,
        *,
        folder: str | Iterable[str] | None = None,
        date: Period | None = None,
        min_size: Size | None = None,
        max_size: Size | None = None,
    ) -> Iterator[GalleryImage]:
        """Return the images with their dates and sizes; the filters are those of `Query`."""
        images = self._list(
            "images",
            folder=list_paths(folder),
            date=format_values("date", date),
            min_size=format_values("size", min_size),
            max_size=format_values("size", max_size),
        )
        return (_make(GalleryImage, image) for image in images)

    def thumbnail(self, image: PathInput, *, size: int = 256) -> bytes:
        """Return a small JPEG of an image; the longest side is 64, 128, 256, 512 or 1024."""
        return self._get(f"images/{to_id(image)}/thumbnail", size=size).content

    def file(self, image: PathInput) -> bytes:
        """Return the file of an image."""
        return self._get(f"images/{to_id(image)}/file").content

    def words(
        self, *, best: int = 3, sort: WordOrder = "word", offset: int = 0, limit: int | None = None
    ) -> WordList:
        """Return the words in use, or some of them, each with images where it is strongest."""
        words = self._list("words", offset, limit, best=best, sort=sort)
        return WordList(_make(WordInGallery, word) for word in words)

    def word(self, word: int) -> WordUse:
        """Return what is known about one word; of the images that have it, the first 1,000."""
        use = self._get(f"words/{word}", images=_PAGE).json()
        return _make(WordUse, {**use, "facts": use, "n": use["n_images"], "images": use["top"]})

    def info(self) -> GalleryInfo:
        """Return facts about the gallery."""
        return _make(GalleryInfo, self._get("stats").json())

    def add(self, images: NamedImages) -> IndexReport:
        """Add images with ids, or replace those that have these ids, if the server is writable."""
        report = IndexReport()
        for name, image in images.items() if isinstance(images, Mapping) else images:
            try:
                parts = {"image": ("image", _read(image))}
                answer = self._send("POST", "images", data={"id": name}, files=parts).json()
            except ImageError as error:
                report.failed.append(Failure(name, str(error)))
            else:
                report.added += answer["added"]
                report.updated += answer["updated"]
                report.unchanged += not (answer["added"] or answer["updated"])
        return report

    def remove(self, paths: PathInput | Iterable[PathInput]) -> int:
        """Remove images by path or id, if the server is writable; return how many there were."""
        n = 0
        for path in list_paths(paths):
            try:
                n += self._send("DELETE", f"images/{to_id(path)}").json()["removed"]
            except ImageNotFound:
                continue
        return n

    def name_words(self, names: Mapping[int, str | None]) -> None:
        """Name words, or clear their names with None, if the server is writable."""
        for word, name in names.items():
            self._send("PUT", f"words/{word}/name", json={"name": name})

    @property
    def image_names(self) -> dict[str, int]:
        """The names that people gave to images, each with how many images have it."""
        return {n["name"]: n["n_images"] for n in self._get("names").json()["names"]}

    def name_images(
        self, name: str, images: PathInput | Iterable[PathInput], *, add: bool = False
    ) -> int:
        """Give images a name, if the server is writable; return how many images have it then."""
        body = {"name": name, "ids": list(map(to_id, list_paths(images))), "add": add}
        answer: int = self._send("PUT", "names", json=body).json()["n_images"]
        return answer

    def _post_query(self, route: str, query: Query, **more: str) -> dict[str, Any]:
        body, files = _to_body(query)
        body |= {"words": 256, **more}
        content = {"data": {"query": json.dumps(body)}, "files": files} if files else {"json": body}
        answer: dict[str, Any] = self._send("POST", route, **content).json()
        return answer

    def _list(
        self, route: str, offset: int = 0, limit: int | None = None, **parameters: Any
    ) -> Iterator[dict[str, Any]]:
        """Yield what a route lists, page by page."""
        end = sys.maxsize if limit is None else offset + limit
        while offset < end:
            size = min(_PAGE, end - offset)
            page = self._get(route, offset=offset, limit=size, **parameters).json()
            yield from page[route]
            offset, end = offset + size, min(end, page["total"])

    def _get(self, route: str, **parameters: Any) -> "httpx.Response":
        return self._send("GET", route, params=parameters)

    def _send(self, method: str, route: str, **content: Any) -> "httpx.Response":
        import httpx

        try:
            response = self._http.request(method, route, **content)
        except httpx.HTTPError as error:
            raise ServerError(f"{self._url} does not answer ({error}): is it running?") from error
        if response.is_success:
            return response
        try:
            problem = response.json()
            kind, detail = str(problem["type"]).rpartition(":")[2], str(problem["detail"])
        except (ValueError, KeyError, TypeError):
            status = response.status_code
            raise ServerError(f"{self._url} answers {status}: is it a bm25v server?") from None
        if kind == "no-token":
            detail = "give the token of the server"
        if kind in _ERRORS:
            raise _ERRORS[kind](detail)
        raise ServerError(f"{self._url}: {detail}")


def read_token(path: Path) -> str:
    """Return the token in a file; raise `InvalidOption` for one that is too short or no text.

    The owner of the file is warned if it is open to others.
    """
    try:
        token = read_limited(path, 4096).decode("ascii").strip()
    except OSError as error:
        raise InvalidOption(f"--token-file {path}: {error.strerror}") from None
    except ValueError:
        raise InvalidOption(
            f"--token-file {path}: it must have one line of plain characters"
        ) from None
    if len(token) < MIN_TOKEN or not re.fullmatch(r"[!-~]+", token):
        raise InvalidOption(
            f"--token-file {path}: the token must have at least {MIN_TOKEN} characters and no "
            "spaces; `openssl rand -hex 32` makes one"
        )
    facts = path.stat()
    # Windows: no such permissions
    if os.name == "posix" and facts.st_uid == os.getuid() and facts.st_mode & 0o077:
        _log.warning("--token-file %s is open to other users: chmod 600 %s", path, path)
    return token


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def to_id(path: PathInput) -> str:
    """Return the id of an image in URLs and JSON.

    >>> to_id("/photos/cat.jpg")
    'L3Bob3Rvcy9jYXQuanBn'
    """
    return urlsafe_b64encode(os.fsencode(path)).rstrip(b"=").decode()


def _to_body(query: Query) -> tuple[dict[str, Any], Files]:
    """Return the JSON of a query, and the images that are sent with it."""
    if query.region is not None and as_box(query.region) is None:
        raise InvalidQuery(
            "a mask as region cannot be sent to a server: give a box (x, y, width, height)"
        )
    body: dict[str, Any] = {}
    files: Files = []
    for name, option in OPTIONS.items():
        value = getattr(query, name)
        match option.kind:
            case "image":
                part = "image" if name == "images" else name
                sent = [image for image in value if not isinstance(image, _STORED)]
                files += [(part, ("image", _read(image))) for image in sent]
                value = [to_id(image) for image in value if isinstance(image, _STORED)]
            case "hit":
                value = [to_id(path) for path in value]
            case "factor":
                value = {str(word): factor for word, factor in value.items()}
            case "date":
                value = next(iter(format_values("date", value)), None)
            case "box":
                value = as_box(value)
        if value is not None:
            body[name] = value
    return body, files


def _read(image: ReadImage | ImageInput) -> bytes:
    """Return the bytes of an image's file, or a PNG of its pixels."""
    if isinstance(image, Encoding):
        raise InvalidQuery("an encoding cannot be sent to a server: give the image itself")
    content = read_input(image)
    if isinstance(content, np.ndarray):
        file = io.BytesIO()
        Image.fromarray(content).save(file, "PNG")
        return file.getvalue()
    try:
        with open_stream(content) as stream:
            return stream.read()
    except ImageError as error:
        if isinstance(content, bytes):
            raise
        raise ImageError(f"{os.fspath(content)}: {error}") from error


def _make(kind: Callable[..., Value], facts: Mapping[str, Any]) -> Value:
    """Return a dataclass or named tuple with these of the facts that it has."""
    value: Value = _converter(kind)(facts)
    return value


@cache
def _converter(type_: Any) -> Callable[[Any], Any]:
    """Return a function that makes a value of a type of what JSON has in its stead."""
    arguments = get_args(type_)
    if get_origin(type_) in (tuple, Sequence):
        convert = _converter(arguments[0])
        return lambda values: tuple(map(convert, values))
    if get_origin(type_) is UnionType:  # with None
        convert = _converter(arguments[0])
        return lambda value: None if value is None else convert(value)
    if type_ is datetime:
        return datetime.fromisoformat
    types = list_fields(type_)
    if types:
        converters = {name: _converter(type_) for name, type_ in types.items()}
        return lambda facts: type_(**{name: converters[name](facts[name]) for name in converters})
    return lambda value: value
