"""Reads one picture, whatever its format, mode and orientation."""

import io
import logging
import threading
import zlib
from contextlib import nullcontext
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bm25v.errors import ImageError, MissingExtra, WrongUse
from bm25v.images import kinds
from bm25v.images.files import Source, Stream, opened
from bm25v.images.reasons import decoding_reason
from bm25v.images.silence import no_warnings

MAX_PIXELS = 200_000_000
"""Larger pictures are refused before they are decoded; the largest phone cameras stay below."""

_LARGE_PIXELS = 30_000_000
_one_large_picture = threading.Lock()  # else memory would grow with the number of threads
_REDUCIBLE = frozenset({"L", "LA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr"})

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
_SIDEWAYS = {_TURNS[number] for number in (5, 6, 7, 8)}

logging.getLogger("PIL").addHandler(logging.NullHandler())  # else its errors go to stderr


def decode(source: Source, *, short_side: int | None = None) -> NDArray[np.uint8]:
    """Return a picture, or the first frame of an animation, as an upright (H, W, 3) RGB array.

    With `short_side`, a larger picture is shrunk to save time and memory; its short side stays at
    least that long. Transparent parts become white.

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


def size(source: Source) -> tuple[int, int]:
    """Return the width and height of a picture, upright; most kinds need not be decoded for it.

    >>> import io
    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (800, 600)).save(file, "JPEG")
    >>> size(file.getvalue())
    (800, 600)
    """
    with opened(source) as stream, no_warnings():
        kind = "picture"
        try:
            kind = kinds.kind(stream.read(kinds.HEAD))
            stream.seek(0)
            picture: Image.Image = _plugin(kind)(stream, "")
            if kind in ("HEIC", "TIFF"):  # their size, or which way up it is, is only sure then
                picture.load()
            width, height = picture.size
            is_turned = _turn(picture) in _SIDEWAYS
        except ImageError:
            raise
        except Exception as error:  # as in `_load`
            raise ImageError(decoding_reason(kind, error)) from error
    return (height, width) if is_turned else (width, height)


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


def _load(source: Source, short_side: int | None) -> Image.Image:
    with opened(source) as stream, no_warnings():
        kind = "picture"
        try:
            kind = kinds.kind(stream.read(kinds.HEAD))
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
            raise ImageError(decoding_reason(kind, error)) from error


def _read(stream: Stream, kind: str, short_side: int | None) -> Image.Image:
    stream.seek(0)
    # Not Image.open: its pixel limit is global, and it hides why it failed.
    picture: Image.Image = _plugin(kind)(stream, "")
    _check_size(picture)
    if kind == "JPEG" and short_side is not None:
        picture.draft(None, (short_side, short_side))
    is_large = picture.width * picture.height > _LARGE_PIXELS
    with _one_large_picture if is_large else nullcontext():
        picture.load()
        _check_size(picture)  # HEIC may only tell its size now
        turn, rgb = _turn(picture), _rgb(_shrunk(picture, short_side))
        return rgb if turn is None else rgb.transpose(turn)


def _shrunk(picture: Image.Image, short_side: int | None) -> Image.Image:
    """Average whole blocks of pixels where far more than are wanted came out of the decoder."""
    factor = min(picture.size) // (short_side or min(picture.size))
    return picture.reduce(factor) if factor > 1 and picture.mode in _REDUCIBLE else picture


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
