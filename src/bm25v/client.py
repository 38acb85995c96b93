"""`Client`: the methods of `Gallery`, for a gallery that `bm25v serve` serves elsewhere.

In: what the methods of `Gallery` take; images are read here and sent. Out: the same values, made
from JSON. It needs no extra. Not this module's job: the server.
"""

import io
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from PIL import Image

from bm25v.errors import Bm25vError, GalleryLocked, ImageError, ServerError, WrongUse
from bm25v.explanations.word_statistics import ImageWithWord, WordInGallery, WordList
from bm25v.files import read_limited
from bm25v.gallery.selection import GalleryImage, Period, Size
from bm25v.gallery.store import GalleryInfo
from bm25v.images import ImageInput, open_stream, read_input
from bm25v.search.query import QueryImage, QueryOptions, StoredImage, list_paths
from bm25v.search.results import ConceptPart, Hit, Match, QueryWord, Results, WordContribution
from bm25v.vocabulary import Encoding

MIN_TOKEN = 16  # characters

_MAX_TOKEN_BYTES = 4096
_PAGE = 1000  # images or words of one request
_ERRORS: dict[str, type[Bm25vError]] = {  # by the kind of a problem
    "wrong-use": WrongUse,
    "wrong-value": WrongUse,
    "unknown-image": WrongUse,
    "unknown-word": WrongUse,
    "unreadable-image": ImageError,
    "gallery-locked": GalleryLocked,
}
_STORED = (Match, GalleryImage, StoredImage)  # images of the gallery: sent by id

Part = tuple[str, str, bytes]  # of a form: its name, its type, its content


class Client:
    """A gallery on a server, with the methods of `Gallery`.

    Paths, bytes, open files, Pillow images and arrays are sent to the server. Hits, gallery images
    and `StoredImage` are images that the server has.

    >>> client = Client("http://127.0.0.1:8025", token="...")
    >>> client
    <Client http://127.0.0.1:8025>
    """

    def __init__(self, url: str, *, token: str | None = None, timeout: float = 60.0) -> None:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise WrongUse(f"{url!r} is not an address: give one such as http://127.0.0.1:8025")
        self._url = url.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._timeout = timeout

    def __repr__(self) -> str:
        return f"<Client {self._url}>"

    def __len__(self) -> int:
        return self.info().n_images

    @property
    def url(self) -> str:
        """The address of the server."""
        return self._url

    def search(
        self,
        query: QueryImage | Iterable[QueryImage] | None = None,
        **options: Unpack[QueryOptions],
    ) -> Results:
        """Return the images most similar to an image, or to several; `Query` has all options."""
        body, parts = _to_body(query, dict(options))
        answer = self._post("search", {**body, "words": 256}, parts)
        return _to_results(answer)

    def explain(
        self,
        query: QueryImage | Iterable[QueryImage] | None,
        hit: str | os.PathLike[str],
        **options: Unpack[QueryOptions],
    ) -> dict[str, Any]:
        """Return why an image of the gallery matches a query, as `Explanation.to_dict` does."""
        body, parts = _to_body(query, dict(options))
        body |= {"hit": _to_id(os.fspath(hit)), "words": 256}
        return dict(self._post("explain", body, parts))

    def images(
        self,
        *,
        folder: str | Iterable[str] | None = None,
        date: Period | None = None,
        min_size: Size | None = None,
        max_size: Size | None = None,
    ) -> Iterator[GalleryImage]:
        """Return the images with their dates and sizes; the filters are those of `Query`."""
        filters = {
            "folder": list_paths(folder),
            "date": None if date is None else _format_period(date),
            "min_size": _format_size(min_size),
            "max_size": _format_size(max_size),
        }
        for image in self._pages("images", **filters):
            taken = image["taken"] and datetime.fromisoformat(image["taken"])
            date_text = datetime.fromisoformat(image["date"])
            size = image["width"], image["height"], image["file_size"]
            yield GalleryImage(image["path"], date_text, *size, taken)

    def thumbnail(self, image: str | os.PathLike[str], *, size: int = 256) -> bytes:
        """Return a small JPEG of an image; the longest side is 64, 128, 256, 512 or 1024."""
        return self._get(f"images/{_to_id(os.fspath(image))}/thumbnail", size=size)

    def file(self, image: str | os.PathLike[str]) -> bytes:
        """Return the file of an image."""
        return self._get(f"images/{_to_id(os.fspath(image))}/file")

    def words(self, *, best: int = 3) -> WordList:
        """Return the words in use, by number, each with the images where it is strongest."""
        return WordList(
            WordInGallery(
                word["word"],
                word["name"],
                word["df"],
                word["idf"],
                tuple(ImageWithWord(image["path"], image["tf"]) for image in word["best"]),
            )
            for word in self._pages("words", best=best)
        )

    def info(self) -> GalleryInfo:
        """Return facts about the gallery."""
        facts = {
            key.replace("pictures", "n_images").replace("per_picture", "per_image"): value
            for key, value in json.loads(self._get("stats")).items()
        }
        return GalleryInfo(**{name: facts[name] for name in GalleryInfo.__annotations__})

    def add(self, images: Mapping[str, ImageInput]) -> int:
        """Add images with ids, if the server is writable; return how many are new or changed."""
        n = 0
        for name, image in images.items():
            parts = [("id", "", name.encode()), _to_part("image", image)]
            answer = self._post("images", None, parts)
            n += answer["added"] + answer["updated"]
        return n

    def remove(self, paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> int:
        """Remove images by path or id, if the server is writable; return how many there were."""
        urls = [f"images/{_to_id(path)}" for path in list_paths(paths)]
        return sum(json.loads(self._send("DELETE", url))["removed"] for url in urls)

    def name_words(self, names: Mapping[int, str | None]) -> None:
        """Name words, or clear their names with None, if the server is writable."""
        for word, name in names.items():
            body = json.dumps({"name": name}).encode()
            self._send("PUT", f"words/{word}/name", body, "application/json")

    def _pages(self, route: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        """Yield everything that a route lists, page by page."""
        offset, total = 0, 1
        while offset < total:
            page = json.loads(self._get(route, offset=offset, limit=_PAGE, **parameters))
            yield from page[route]
            offset, total = offset + _PAGE, page["total"]

    def _get(self, route: str, **parameters: Any) -> bytes:
        given = {name: value for name, value in parameters.items() if value is not None}
        query = urllib.parse.urlencode(given, doseq=True)
        return self._send("GET", f"{route}?{query}" if query else route)

    def _post(self, route: str, body: dict[str, Any] | None, parts: list[Part]) -> Any:
        if not parts:
            content, media_type = json.dumps(body).encode(), "application/json"
        else:
            query = [] if body is None else [("query", "", json.dumps(body).encode())]
            content, media_type = _to_form([*query, *parts])
        return json.loads(self._send("POST", route, content, media_type))

    def _send(
        self, method: str, route: str, content: bytes | None = None, media_type: str = ""
    ) -> bytes:
        headers = {**self._headers, **({"Content-Type": media_type} if media_type else {})}
        request = urllib.request.Request(
            f"{self._url}/v1/{route}", content, headers=headers, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as response:
                answer: bytes = response.read()
                return answer
        except urllib.error.HTTPError as error:
            with error:
                raise _to_error(self._url, error.code, error.read()) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise ServerError(f"{self._url} does not answer ({reason}): is it running?") from error


def read_token(path: Path) -> str:
    """Return the token in a file; raise `WrongUse` for one that is too short or no text."""
    try:
        token = read_limited(path, _MAX_TOKEN_BYTES).decode("ascii").strip()
    except OSError as error:
        raise WrongUse(f"--token-file {path}: {error.strerror}") from None
    except ValueError:
        raise WrongUse(f"--token-file {path}: it must have one line of plain characters") from None
    if len(token) < MIN_TOKEN or not re.fullmatch(r"[!-~]+", token):
        raise WrongUse(
            f"--token-file {path}: the token must have at least {MIN_TOKEN} characters and no "
            "spaces; `openssl rand -hex 32` makes one"
        )
    return token


def _to_id(path: str) -> str:
    """Return the id of an image, as `bm25v.server.images.to_id` does."""
    return urlsafe_b64encode(os.fsencode(path)).rstrip(b"=").decode()


def _to_body(images: Any, options: dict[str, Any]) -> tuple[dict[str, Any], list[Part]]:
    """Return the JSON of a query, and the images that are sent with it."""
    body: dict[str, Any] = {}
    parts: list[Part] = []
    for name, part, given in (
        ("images", "image", images),
        ("negative", "negative", options.pop("negative", None)),
    ):
        for image in _as_list(given):
            if isinstance(image, _STORED):
                body.setdefault(name, []).append(_to_id(image.path))
            else:
                parts.append(_to_part(part, image))
    for name in ("like", "unlike"):
        body[name] = [_to_id(path) for path in list_paths(options.pop(name, None))]
    for name in ("must", "without"):
        body[name] = _as_list(options.pop(name, None))
    body["folder"] = list(list_paths(options.pop("folder", None)))
    body["boost"] = {
        str(word): factor for word, factor in (options.pop("boost", None) or {}).items()
    }
    if options.get("date") is not None:
        options["date"] = _format_period(options["date"])
    if options.get("region") is not None:
        options["region"] = [float(value) for value in np.ravel(options["region"])]
    return {**body, **{name: value for name, value in options.items() if value is not None}}, parts


def _as_list(values: Any) -> list[Any]:
    if values is None:
        return []
    is_several = isinstance(values, list | tuple | set | frozenset)
    return list(values) if is_several else [values]


def _to_part(name: str, image: Any) -> Part:
    """Return an image as a part of a form: the bytes of its file, or a PNG of its pixels."""
    if isinstance(image, Encoding):
        raise WrongUse("an encoding cannot be sent: give the image itself")
    content = read_input(image)
    if isinstance(content, np.ndarray):
        file = io.BytesIO()
        Image.fromarray(content).save(file, "PNG")
        content = file.getvalue()
    try:
        with open_stream(content) as stream:
            return name, "image", stream.read()
    except ImageError as error:
        if isinstance(content, bytes):
            raise
        raise ImageError(f"{os.fspath(content)}: {error}") from error


def _to_form(parts: list[Part]) -> tuple[bytes, str]:
    """Return the parts of a form as a body, and its type."""
    boundary = uuid.uuid4().hex
    lines = []
    for name, file_name, content in parts:
        disposition = f'Content-Disposition: form-data; name="{name}"'
        disposition += f'; filename="{file_name}"' if file_name else ""
        lines += [f"--{boundary}\r\n{disposition}\r\n\r\n".encode(), content, b"\r\n"]
    lines.append(f"--{boundary}--\r\n".encode())
    return b"".join(lines), f"multipart/form-data; boundary={boundary}"


def _to_results(answer: dict[str, Any]) -> Results:
    hits = tuple(_to_hit(hit, answer) for hit in answer["hits"])
    query = tuple(QueryWord(**word) for word in answer["query"])
    others = {
        name: answer[name] for name in ("mode", "ms", "no_match", "sparse_factor", "candidates")
    }
    lists = {name: tuple(answer[name]) for name in ("notes", "understood", "not_understood")}
    return Results(**{"hits": hits, "query": query, **others, **lists})


def _to_hit(hit: dict[str, Any], answer: dict[str, Any]) -> Hit:
    facts = {**hit, "mode": answer["mode"], "n_images": hit["pictures"]}
    facts["concepts"] = tuple(ConceptPart(**part) for part in hit["concepts"])
    facts["words"] = tuple(WordContribution(**word) for word in hit["words"])
    factor = 1.0 if answer["mode"] in ("words", "sparse") else 0.0
    facts["sparse_factor"] = factor if answer["sparse_factor"] is None else answer["sparse_factor"]
    names = (*Match.__annotations__, "rank", "first_rank")
    return Hit(**{name: facts[name] for name in names})


def _format_period(period: Period) -> str:
    if isinstance(period, tuple):
        return "..".join("" if moment is None else str(moment) for moment in period)
    return str(period)


def _format_size(size: Size | None) -> str | None:
    if size is None:
        return None
    return str(size) if isinstance(size, int) else "x".join(map(str, size))


def _to_error(url: str, status: int, content: bytes) -> Bm25vError:
    """Return the error that a problem stands for."""
    try:
        problem = json.loads(content)
        kind, detail = str(problem["type"]).rpartition(":")[2], str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        return ServerError(f"{url} answers {status}: is it a bm25v server?")
    if kind == "no-token":
        detail = "give the token of the server"
    error = _ERRORS.get(kind)
    return ServerError(f"{url}: {detail}") if error is None else error(detail)
