"""Files or bytes become upright RGB arrays; folders become lists of picture files.

Whatever is wrong with a picture ends in one `ImageError` whose message is the reason.
"""

import errno
import io
import logging
import os
import stat
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bm25v.errors import ImageError, MissingExtra, WrongUse

Source = str | os.PathLike[str] | bytes
"""A picture: the path of a file, or the bytes of one."""

SUFFIXES: frozenset[str] = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp"}
    | {".tif", ".tiff", ".avif", ".heic", ".heif", ".hif"}
)
"""The file names that `find` takes for pictures; `decode` looks at the content instead."""

MAX_PIXELS = 200_000_000
"""Larger pictures are refused before they are decoded; the largest phone cameras stay below."""

MAX_BYTES = 2**31
"""Larger files are refused before they are read: some decoders read them whole."""

_PLUGINS = {
    "JPEG": ("PIL.JpegImagePlugin", "JpegImageFile"),
    "PNG": ("PIL.PngImagePlugin", "PngImageFile"),
    "WebP": ("PIL.WebPImagePlugin", "WebPImageFile"),
    "GIF": ("PIL.GifImagePlugin", "GifImageFile"),
    "BMP": ("PIL.BmpImagePlugin", "BmpImageFile"),
    "TIFF": ("PIL.TiffImagePlugin", "TiffImageFile"),
    "AVIF": ("PIL.AvifImagePlugin", "AvifImageFile"),
    "HEIC": ("pillow_heif", "HeifImageFile"),
}
_STARTS = {
    "JPEG": (b"\xff\xd8\xff",),
    "PNG": (b"\x89PNG\r\n\x1a\n",),
    "GIF": (b"GIF8",),
    "BMP": (b"BM",),
    "TIFF": (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
}
_AVIF_BRANDS = {b"avif", b"avis"}
_HEIC_BRANDS = set(b"heic heix heim heis hevc hevx hevm hevs mif1 mif2 msf1".split())

_BITS_PER_SAMPLE, _ORIENTATION = 0x0102, 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SYSTEM_REASONS = {
    errno.ENOENT: "does not exist",
    errno.EACCES: "permission denied",
    errno.EISDIR: "is a folder, not a file",
    errno.ENOTDIR: "is not a folder",
    errno.ENXIO: "is not a regular file",  # a socket
}
_TRUNCATED = ("truncated", "end of file", "eof")

_thread = threading.local()
_filter_lock = threading.Lock()
logging.getLogger("PIL").addHandler(logging.NullHandler())  # else its errors go to stderr


def decode(source: Source, *, short_side: int | None = None) -> NDArray[np.uint8]:
    """Return a picture, or the first frame of an animation, as an upright (H, W, 3) RGB array.

    With `short_side`, a large JPEG is decoded at 1/2, 1/4 or 1/8 of its size, which is much
    faster; its short side stays at least that long. Transparent parts become white.

    >>> import io
    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (800, 600)).save(file, "JPEG")
    >>> decode(file.getvalue()).shape
    (600, 800, 3)
    >>> decode(file.getvalue(), short_side=256).shape
    (300, 400, 3)
    """
    if short_side is not None and short_side < 1:
        raise WrongUse(f"the side of a picture must be at least 1 pixel, not {short_side}")
    return np.array(_load(source, short_side))


def thumbnail(source: Source, *, side: int) -> bytes:
    """Return a picture, upright, as JPEG bytes with no side longer than `side`."""
    picture = Image.fromarray(decode(source, short_side=side))
    picture.thumbnail((side, side), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=85)
    return file.getvalue()


def resize(image: NDArray[np.uint8], *, width: int, height: int) -> NDArray[np.uint8]:
    """Return an (H, W, 3) picture at another size: bicubic, antialiased.

    >>> import numpy as np
    >>> resize(np.zeros((30, 40, 3), np.uint8), width=8, height=6).shape
    (6, 8, 3)
    """
    return np.array(Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC))


def find(
    folder: str | os.PathLike[str],
    *,
    on_error: Callable[[Path, ImageError], None] | None = None,
) -> Iterator[Path]:
    """Give every picture file under a folder, sorted, without hidden files and galleries.

    Links are followed; each folder is visited once. What cannot be read below `folder` is passed
    to `on_error` and left out; `folder` itself must be readable.
    """
    report = on_error or (lambda path, error: None)
    root = Path(folder)
    visited: set[tuple[int, int]] = set()
    waiting = [(root, True)]
    while waiting:
        path, is_folder = waiting.pop()
        if not is_folder:
            yield path
            continue
        try:
            status = path.stat()
            if (status.st_dev, status.st_ino) not in visited:
                visited.add((status.st_dev, status.st_ino))
                waiting += reversed(_children(path, report))
        except (OSError, ValueError) as error:
            if path is root:
                raise ImageError(_system_reason(error)) from error
            report(path, ImageError(_system_reason(error)))


def _children(folder: Path, report: Callable[[Path, ImageError], None]) -> list[tuple[Path, bool]]:
    """Return the picture files (False) and folders (True) of a folder, sorted by name."""
    with os.scandir(folder) as entries:
        listing = sorted(entries, key=lambda entry: entry.name)
    if any(entry.name == "catalog.sqlite" for entry in listing):
        return []
    children = []
    for entry in listing:
        path = folder / entry.name
        try:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                children.append((path, True))
            elif path.suffix.lower() in SUFFIXES:
                if entry.is_file():
                    children.append((path, False))
                elif not path.exists():
                    report(path, ImageError("is a link that leads nowhere"))
        except OSError as error:
            report(path, ImageError(_system_reason(error)))
    return children


def _load(source: Source, short_side: int | None) -> Image.Image:
    with _stream(source) as stream, _no_warnings():
        kind = "picture"
        try:
            kind = _kind(stream.read(256))
            try:
                return _read(stream, kind, short_side)
            except (SyntaxError, ValueError):
                if kind not in _CLEANERS:
                    raise
                stream.seek(0)
                return _read(io.BytesIO(_CLEANERS[kind](stream.read())), kind, short_side)
        except ImageError:
            raise
        except Exception as error:  # there is hardly one that Pillow's plugins never raise
            raise ImageError(_reason(kind, error)) from error


@contextmanager
def _stream(source: Source) -> Iterator[BinaryIO]:
    if isinstance(source, bytes):
        if not source:
            raise ImageError("has no content: 0 bytes")
        yield io.BytesIO(source)
        return
    try:
        file = open(source, "rb", opener=_open_unblocked)  # noqa: SIM115
    except (OSError, ValueError) as error:
        raise ImageError(_system_reason(error)) from error
    with file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ImageError("is not a regular file")
        if status.st_size == 0:
            raise ImageError("has no content: 0 bytes")
        if status.st_size > MAX_BYTES:
            raise ImageError(f"too large: {status.st_size:,} bytes; the limit is {MAX_BYTES:,}")
        yield file


def _open_unblocked(path: str, flags: int) -> int:
    """Open like `os.open`, but do not wait for the other end of a FIFO."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _kind(head: bytes) -> str:
    for kind, starts in _STARTS.items():
        if head.startswith(starts):
            return kind
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    if head[4:8] == b"ftyp":
        end = min(len(head), int.from_bytes(head[:4]))
        brands = {head[at : at + 4] for at in range(8, end, 4)}
        if brands & _AVIF_BRANDS:
            return "AVIF"
        if brands & _HEIC_BRANDS:
            return "HEIC"
    raise ImageError(f"not a picture of a known kind ({', '.join(_PLUGINS)})")


def _read(stream: BinaryIO, kind: str, short_side: int | None) -> Image.Image:
    stream.seek(0)
    # Not Image.open: its pixel limit is global, and it hides why it failed.
    picture: Image.Image = _plugin(kind)(stream, "")
    _check_size(picture)
    if kind == "JPEG" and short_side is not None:
        picture.draft(None, (short_side, short_side))
    picture.load()
    _check_size(picture)  # HEIC may only tell its size now
    turn, rgb = _turn(picture), _rgb(picture)
    return rgb if turn is None else rgb.transpose(turn)


def _plugin(kind: str) -> Any:
    module, name = _PLUGINS[kind]
    try:
        return getattr(import_module(module), name)
    except ImportError as error:
        raise ImageError(str(MissingExtra(f"reading {kind}", "heic"))) from error


def _check_size(picture: Image.Image) -> None:
    width, height = picture.size
    if width * height > MAX_PIXELS:
        raise ImageError(f"too large: {width} × {height} pixels; the limit is {MAX_PIXELS:,}")


def _turn(picture: Image.Image) -> Image.Transpose | None:
    try:
        return _TURNS.get(picture.getexif().get(_ORIENTATION, 1))
    except Exception:  # broken metadata does not make the pixels worse
        return None


def _rgb(picture: Image.Image) -> Image.Image:
    if picture.mode in ("I", "F") or picture.mode.startswith("I;16"):
        return Image.fromarray(_eight_bit(picture)).convert("RGB")
    if not picture.has_transparency_data:
        return picture if picture.mode == "RGB" else picture.convert("RGB")
    picture = picture.convert("RGBA")
    white = Image.new("RGB", picture.size, "white")
    white.paste(picture, mask=picture.getchannel("A"))
    return white


def _eight_bit(picture: Image.Image) -> NDArray[np.uint8]:
    """Scale grey values of more than 8 bits by the smallest usual range that holds them."""
    values = np.nan_to_num(np.array(picture, np.float32), posinf=0, neginf=0)
    low, high = float(values.min()), float(values.max())
    if picture.mode.startswith("I;16"):
        bits = getattr(picture, "tag_v2", {}).get(_BITS_PER_SAMPLE, (16,))[0]
        low, high = 0, 2**bits - 1
    elif low >= 0 and high <= 65535:
        usual = (1, 255, 65535) if picture.mode == "F" else (255, 65535)
        low, high = 0, next(top for top in usual if high <= top)
    return ((values - low) * (255 / (high - low or 1))).round().clip(0, 255).astype(np.uint8)


def _png_without_metadata(data: bytes) -> bytes:
    """Keep the chunks that make the pixels, and the orientation if it is intact."""
    kept, at = [data[:8]], 8
    while at < len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4])
        name, checksum = data[at + 4 : at + 8], int.from_bytes(data[end - 4 : end])
        intact = zlib.crc32(data[at + 4 : end - 4]) == checksum
        if name[:1].isupper() or (name in (b"tRNS", b"eXIf") and intact):
            kept.append(data[at:end])
        at = end
    return b"".join(kept)


def _avif_without_metadata(data: bytes) -> bytes:
    """Rename the EXIF item, so that nobody reads it."""
    return data.replace(b"Exif", b"none")


_CLEANERS = {"PNG": _png_without_metadata, "AVIF": _avif_without_metadata}


def _reason(kind: str, error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError):
        return "too large: not enough memory to decode it"
    if isinstance(error, Image.DecompressionBombError):
        return "too large: far too many pixels"
    if isinstance(error, OSError) and error.errno:
        return _system_reason(error)
    if any(word in text.lower() for word in _TRUNCATED):
        return f"truncated {kind}: the end of the file is missing"
    return f"broken or truncated {kind}: {text or type(error).__name__}"


def _system_reason(error: OSError | ValueError) -> str:
    known = isinstance(error, OSError) and _SYSTEM_REASONS.get(error.errno or 0)
    return known or getattr(error, "strerror", None) or str(error)


class _WhileDecoding(type):
    def __subclasscheck__(cls, subclass: type) -> bool:
        return getattr(_thread, "decoding", False)


class _AnyWarning(Warning, metaclass=_WhileDecoding):
    """The parent of every warning, but only in a thread that is decoding."""


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Ignore warnings in this thread alone, which `warnings.catch_warnings` cannot."""
    with _filter_lock:
        if not warnings.filters or warnings.filters[0][2] is not _AnyWarning:
            warnings.simplefilter("ignore", _AnyWarning)
    _thread.decoding = True
    try:
        yield
    finally:
        _thread.decoding = False
