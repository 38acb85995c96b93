"""Decodes one image, whatever its format, mode and orientation.

In: a path or the bytes of a file. Out: an upright RGB array, its metadata or a thumbnail. Whatever
is wrong with the file ends in one `ImageError`, whose message is the reason without the path. Not
this module's job: what a model needs.
"""

import errno
import io
import logging
import os
import stat
import threading
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from bm25v.display import printable
from bm25v.errors import ImageError, MissingExtra, WrongUse
from bm25v.images.formats import HEAD_SIZE, detect_format
from bm25v.images.metadata import Metadata, read_image_metadata, read_turn

Source = str | os.PathLike[str] | bytes
"""An image: the path of a file, or the bytes of one."""

ImageInput = Source | IO[bytes] | Image.Image | NDArray[np.uint8]
"""An image as people have it: also an open file, a Pillow image, a grey or an RGB array."""

Stream = io.BufferedReader | io.BytesIO

MAX_BYTES = 2**31
"""Larger files are refused before they are read: some decoders read the whole file."""

MAX_PIXELS = 200_000_000
"""Larger images are refused before they are decoded; the largest phone cameras stay below."""

_LARGE_PIXELS = 30_000_000
_large_image_lock = threading.Lock()  # else memory would grow with the number of threads
_REDUCIBLE_MODES = frozenset({"L", "LA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr"})

_PLUGINS = {
    "JPEG": ("PIL.JpegImagePlugin", "JpegImageFile"),
    "PNG": ("PIL.PngImagePlugin", "PngImageFile"),
    "WebP": ("PIL.WebPImagePlugin", "WebPImageFile"),
    "GIF": ("PIL.GifImagePlugin", "GifImageFile"),
    "BMP": ("PIL.BmpImagePlugin", "BmpImageFile"),
    "TIFF": ("PIL.TiffImagePlugin", "TiffImageFile"),
    "AVIF": ("PIL.AvifImagePlugin", "AvifImageFile"),
    "HEIC": ("pillow_heif", "HeifImageFile"),
    "JPEG 2000": ("PIL.Jpeg2KImagePlugin", "Jpeg2KImageFile"),
    "PNM": ("PIL.PpmImagePlugin", "PpmImageFile"),
}
_BITS_PER_SAMPLE = 0x0102  # a TIFF tag

_SYSTEM_REASONS = {
    errno.ENOENT: "does not exist",
    errno.EACCES: "permission denied",
    errno.EISDIR: "is a folder, not a file",
    errno.ENOTDIR: "is not a folder",
    errno.ENXIO: "is not a regular file",  # a socket
    errno.ELOOP: "is a link in a circle of links",
}
_SIGNS_OF_TRUNCATION = ("truncated", "end of file", "eof")

logging.getLogger("PIL").addHandler(logging.NullHandler())  # else its errors go to stderr


def decode_image(source: Source, *, short_side: int | None = None) -> NDArray[np.uint8]:
    """Return an image, or the first frame of an animation, as an upright (H, W, 3) RGB array.

    With `short_side`, a larger image is reduced to save time and memory; its short side stays at
    least that long. Transparent parts become white.

    >>> import io
    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (800, 600)).save(file, "JPEG")
    >>> decode_image(file.getvalue()).shape
    (600, 800, 3)
    >>> decode_image(file.getvalue(), short_side=256).shape
    (300, 400, 3)
    """
    return decode_with_metadata(source, short_side=short_side)[0]


def decode_with_metadata(
    source: Source, *, short_side: int | None = None
) -> tuple[NDArray[np.uint8], Metadata]:
    """Return what `decode_image` returns, and the metadata of the file, which is read once."""
    if short_side is not None and short_side < 1:
        raise WrongUse(f"the side of an image must be at least 1 pixel, not {short_side}")
    with _open_image(source) as (stream, image_format):
        try:
            rgb, metadata = _decode_rgb(stream, image_format, short_side)
        except (SyntaxError, ValueError):
            if image_format not in _METADATA_REMOVERS:
                raise
            stream.seek(0)
            content = _METADATA_REMOVERS[image_format](stream.read())
            rgb, metadata = _decode_rgb(io.BytesIO(content), image_format, short_side)
    return np.array(rgb), metadata


def read_input(image: ImageInput) -> Source | NDArray[np.uint8]:
    """Return an image as a path, bytes or an RGB array, whatever a person has given.

    >>> read_input(np.zeros((4, 6), np.uint8)).shape
    (4, 6, 3)
    >>> read_input(Image.new("LA", (6, 4))).shape
    (4, 6, 3)
    """
    if isinstance(image, str | os.PathLike | bytes):
        return image
    if isinstance(image, Image.Image):
        return np.asarray(_convert_to_rgb(ImageOps.exif_transpose(image)))
    if isinstance(image, np.ndarray):
        return _check_array(image)
    content = image.read() if hasattr(image, "read") else None
    if not isinstance(content, bytes):
        raise WrongUse(
            f"a {type(image).__name__} is not an image: give a path, bytes, a file opened with "
            '"rb", a Pillow image, or an array of uint8'
        )
    return content


def read_metadata(source: Source) -> Metadata:
    """Return the size of the upright image and its date; some formats are decoded for it.

    >>> import io
    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (800, 600)).save(file, "JPEG")
    >>> read_metadata(file.getvalue())
    Metadata(width=800, height=600, taken=None)
    """
    with _open_image(source) as (stream, image_format):
        stream.seek(0)
        image: Image.Image = _import_plugin(image_format)(stream, "")
        if image_format in ("HEIC", "TIFF"):  # size and orientation are final only after loading
            image.load()
        return read_image_metadata(image, image.size)


def make_thumbnail(source: Source, *, side: int) -> bytes:
    """Return the upright image as JPEG bytes, with no side longer than `side`."""
    image = Image.fromarray(decode_image(source, short_side=side))
    image.thumbnail((side, side), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=85)
    return file.getvalue()


def resize_image(image_hwc: NDArray[np.uint8], *, width: int, height: int) -> NDArray[np.uint8]:
    """Return an (H, W, 3) image at another size: bicubic, antialiased.

    >>> import numpy as np
    >>> resize_image(np.zeros((30, 40, 3), np.uint8), width=8, height=6).shape
    (6, 8, 3)
    """
    return np.array(Image.fromarray(image_hwc).resize((width, height), Image.Resampling.BICUBIC))


@contextmanager
def open_stream(source: Source) -> Iterator[Stream]:
    """Open a file or bytes for reading; refuse what is not a regular file, empty or too large."""
    if isinstance(source, bytes):
        if not source:
            raise ImageError("is empty (0 bytes)")
        yield io.BytesIO(source)
        return
    try:
        file = open(source, "rb", opener=open_nonblocking)  # noqa: SIM115
    except (OSError, ValueError) as error:
        raise ImageError(system_reason(error)) from error
    with file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ImageError("is not a regular file")
        if status.st_size == 0:
            raise ImageError("is empty (0 bytes)")
        if status.st_size > MAX_BYTES:
            raise ImageError(f"too large: {status.st_size:,} bytes; the limit is {MAX_BYTES:,}")
        yield file


def open_nonblocking(path: str, flags: int) -> int:
    """Open like `os.open`, but do not wait for the other end of a FIFO."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # Windows: no such flag, no FIFOs


def system_reason(error: OSError | ValueError) -> str:
    """Return why the system could not open or read a file."""
    known = isinstance(error, OSError) and _SYSTEM_REASONS.get(error.errno or 0)
    return known or getattr(error, "strerror", None) or str(error)


@contextmanager
def _open_image(source: Source) -> Iterator[tuple[Stream, str]]:
    """Yield a stream and its format; whatever a decoder raises in the block is an `ImageError`."""
    with open_stream(source) as stream, _ignore_warnings():
        image_format = "image"
        try:
            image_format = detect_format(stream.read(HEAD_SIZE))
            yield stream, image_format
        except ImageError:
            raise
        except Exception as error:  # Pillow's plugins raise nearly every type there is
            raise ImageError(_decoding_reason(image_format, error)) from error


def _decoding_reason(image_format: str, error: Exception) -> str:
    text = printable(" ".join(str(error).split()))
    if isinstance(error, MemoryError):
        return "too large: not enough memory to decode it"
    if isinstance(error, Image.DecompressionBombError):
        return "too large: far too many pixels"
    if isinstance(error, OSError) and error.errno:
        return system_reason(error)
    if any(sign in text.lower() for sign in _SIGNS_OF_TRUNCATION):
        return f"truncated {image_format}: the end of the file is missing"
    return f"damaged or truncated {image_format}: {text or type(error).__name__}"


def _decode_rgb(
    stream: Stream, image_format: str, short_side: int | None
) -> tuple[Image.Image, Metadata]:
    stream.seek(0)
    # Not Image.open: its pixel limit is global, and it hides why it failed.
    image: Image.Image = _import_plugin(image_format)(stream, "")
    _check_size(image)
    size = image.size
    if image_format == "JPEG" and short_side is not None:
        image.draft(None, (short_side, short_side))
    is_large = image.width * image.height > _LARGE_PIXELS
    with _large_image_lock if is_large else nullcontext():
        image.load()
        if image_format != "JPEG":  # a HEIC file may give its true size only now
            _check_size(image)
            size = image.size
        turn, metadata = read_turn(image), read_image_metadata(image, size)
        rgb = _convert_to_rgb(_reduce(image, short_side))
        return (rgb if turn is None else rgb.transpose(turn)), metadata


def _import_plugin(image_format: str) -> Any:
    module, name = _PLUGINS[image_format]
    try:
        return getattr(import_module(module), name)
    except ImportError as error:
        raise ImageError(str(MissingExtra(f"reading {image_format}", "heic"))) from error


def _check_size(image: Image.Image) -> None:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise ImageError(f"too large: {width} × {height} pixels; the limit is {MAX_PIXELS:,}")


def _reduce(image: Image.Image, short_side: int | None) -> Image.Image:
    """Average whole blocks of pixels if the image is at least twice as large as needed."""
    factor = min(image.size) // (short_side or min(image.size))
    return image.reduce(factor) if factor > 1 and image.mode in _REDUCIBLE_MODES else image


def _check_array(array: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if array.dtype == np.uint8 and array.size:
        if array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 1):
            return np.repeat(array.reshape(*array.shape[:2], 1), 3, axis=2)
        if array.ndim == 3 and array.shape[2] == 3:
            return array
    raise WrongUse(
        f"an array of {array.dtype} with shape {array.shape} is not an image: "
        "give uint8 with shape (height, width) or (height, width, 3)"
    )


def _convert_to_rgb(image: Image.Image) -> Image.Image:
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return Image.fromarray(_scale_to_8_bits(image)).convert("RGB")
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")
    image = image.convert("RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image.getchannel("A"))
    return white


def _scale_to_8_bits(image: Image.Image) -> NDArray[np.uint8]:
    """Scale grey values of more than 8 bits by the smallest usual range that holds them."""
    values = np.nan_to_num(np.array(image, np.float32), posinf=0, neginf=0)
    low, high = float(values.min()), float(values.max())
    if image.mode.startswith("I;16"):
        bits = getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, (16,))[0]
        low, high = 0, 2**bits - 1
    elif low >= 0 and high <= 65535:
        usual = (1, 255, 65535) if image.mode == "F" else (255, 65535)
        low, high = 0, next(top for top in usual if high <= top)
    return ((values - low) * (255 / (high - low or 1))).round().clip(0, 255).astype(np.uint8)


def _remove_png_metadata(content: bytes) -> bytes:
    """Keep the chunks that make the pixels, and the orientation if it is intact."""
    kept, start = [content[:8]], 8
    while start < len(content):
        end = start + 12 + int.from_bytes(content[start : start + 4])
        name, checksum = content[start + 4 : start + 8], int.from_bytes(content[end - 4 : end])
        is_intact = zlib.crc32(content[start + 4 : end - 4]) == checksum
        if name[:1].isupper() or (name in (b"tRNS", b"eXIf") and is_intact):
            kept.append(content[start:end])
        start = end
    return b"".join(kept)


def _remove_avif_metadata(content: bytes) -> bytes:
    """Rename the EXIF item, so that no decoder reads it."""
    return content.replace(b"Exif", b"none")


_METADATA_REMOVERS = {"PNG": _remove_png_metadata, "AVIF": _remove_avif_metadata}

_thread = threading.local()
_filter_lock = threading.Lock()


class _MatchesWhileDecoding(type):
    def __subclasscheck__(cls, subclass: type) -> bool:
        return getattr(_thread, "is_decoding", False)


class _AnyWarning(Warning, metaclass=_MatchesWhileDecoding):
    """The parent of every warning, but only in a thread that is decoding."""


@contextmanager
def _ignore_warnings() -> Iterator[None]:
    """Ignore warnings in this thread only, which `warnings.catch_warnings` cannot do."""
    with _filter_lock:
        if not warnings.filters or warnings.filters[0][2] is not _AnyWarning:
            warnings.simplefilter("ignore", _AnyWarning)
    _thread.is_decoding = True
    try:
        yield
    finally:
        _thread.is_decoding = False
