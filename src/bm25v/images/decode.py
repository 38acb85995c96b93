"""Decodes one image, whatever its format, mode and orientation.

Whatever is wrong with a file ends in one `ImageError`; its message is the reason without the path.
"""

import ctypes
import io
import os
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, _imaging

from bm25v.deadline import check_deadline
from bm25v.display import printable
from bm25v.errors import ImageError, InvalidOption, MissingExtra
from bm25v.images.formats import HEAD_SIZE, PLUGINS, detect_format
from bm25v.images.limits import check_memory, check_pixels, estimate_memory, memory
from bm25v.images.metadata import Metadata, read_image_metadata, read_orientation
from bm25v.images.pixels import convert_array, convert_to_array, reduction_factor
from bm25v.images.streams import (
    Piece,
    Source,
    Stream,
    join_pieces,
    open_stream,
    stream_size,
    system_reason,
)
from bm25v.images.structure import Structure, read_structure, remove_png_metadata
from bm25v.privacy import is_own_process


class Tensor(Protocol):
    """What is known here of a tensor of torch, which is not imported."""

    def cpu(self) -> Any: ...


ImageInput = Source | IO[bytes] | Image.Image | NDArray[Any] | Tensor
"""An image as people have it: also an open file, a Pillow image, an array or a tensor.

Arrays and tensors are grey, RGB or RGBA, of uint8 or of floats from 0 to 1; the colours are the
last axis or the first.
"""
NamedImages = Mapping[str, ImageInput] | Iterable[tuple[str, ImageInput]]  # by their ids

_MAX_MISSING = 0.02  # the share of pixels that may be missing at the end of a JPEG
_END_OF_JPEG = b"\xff\xd9"


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
        raise InvalidOption(f"the side of an image must be at least 1 pixel, not {short_side}")
    check_deadline()
    with _open_image(source) as (stream, structure):
        try:
            return _decode(stream, structure, short_side)
        except (SyntaxError, ValueError, Warning):  # warnings, if they are errors in this program
            if structure.image_format == "PNG":
                stream = join_pieces(stream, remove_png_metadata(stream))
            elif structure.image_format == "AVIF":  # rename the item, so that nothing reads it
                stream.seek(0)
                stream = io.BytesIO(stream.read().replace(b"Exif", b"none"))
            else:
                raise
            return _decode(stream, structure, short_side)
        except OSError as error:
            if structure.image_format != "JPEG" or "truncated" not in str(error):
                raise
            decoded = _complete_jpeg(stream, structure, short_side)
            if decoded is None:
                raise
            return decoded


def read_input(image: ImageInput) -> Source | NDArray[np.uint8]:
    """Return an image as a path, bytes or an RGB array.

    >>> read_input(np.zeros((4, 6), np.uint8)).shape
    (4, 6, 3)
    >>> read_input(np.ones((4, 480, 640), np.float32)).shape
    (480, 640, 3)
    """
    if isinstance(image, str | os.PathLike | bytes):
        return image
    if isinstance(image, Image.Image):
        return convert_to_array(ImageOps.exif_transpose(image))
    if isinstance(image, np.ndarray):
        return convert_array(image)
    if hasattr(image, "cpu"):
        return convert_array(np.asarray(image.cpu().detach()))
    content = image.read() if hasattr(image, "read") else None
    if not isinstance(content, bytes):
        raise InvalidOption(
            f"a {type(image).__name__} is not an image: give a path, bytes, a file opened with "
            '"rb", a Pillow image, an array or a tensor'
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
    with _open_image(source) as (stream, structure):
        if structure.image_format in ("HEIC", "TIFF"):  # final only after loading
            return _decode(stream, structure, short_side=1)[1]
        image = _open_with_plugin(stream, structure)
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
def _open_image(source: Source) -> Iterator[tuple[Stream, Structure]]:
    """Yield what a decoder reads; whatever it raises in the block is an `ImageError`."""
    with open_stream(source) as file:
        image_format = "image"
        try:
            image_format = detect_format(file.read(HEAD_SIZE))
            structure = read_structure(file, image_format)
            yield join_pieces(file, structure.pieces), structure
        except ImageError:
            raise
        except Exception as error:  # Pillow's plugins raise nearly every type there is
            raise ImageError(_decoding_reason(image_format, error)) from error


def _decoding_reason(image_format: str, error: Exception) -> str:
    text = printable(" ".join(str(error).split()))
    if isinstance(error, MemoryError):
        return "too large: not enough memory to decode it"
    if isinstance(error, Image.DecompressionBombError):
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        return f"too large: the limit of Pillow for {image_format} is {limit:,} pixels"
    if isinstance(error, OSError) and error.errno:
        return system_reason(error)
    if any(sign in text.lower() for sign in ("truncated", "end of file", "eof")):
        return f"truncated {image_format}: the end of the file is missing"
    return f"damaged or truncated {image_format}: {text or type(error).__name__}"


def _decode(
    stream: Stream, structure: Structure, short_side: int | None
) -> tuple[NDArray[np.uint8], Metadata]:
    image = _open_with_plugin(stream, structure)
    image_format, size = structure.image_format, image.size
    check_pixels(size)
    if short_side is not None and image_format == "JPEG":
        image.draft(None, (short_side, short_side))
    if image_format == "JPEG 2000":
        n_halvings = structure.count_halvings(reduction_factor(size, short_side))
        image.reduce = n_halvings  # type: ignore[assignment,method-assign]
    n_bytes = estimate_memory(image, structure, short_side)
    check_memory(n_bytes, f"{size[0]} × {size[1]} pixels of {image_format} in {image.mode}")
    with memory.reserve(n_bytes):
        image.load()
        if image_format == "JPEG 2000":
            image.reduce = 0  # type: ignore[assignment,method-assign]  # a method again
        elif image_format != "JPEG":  # HEIC may give its true size only now
            check_pixels(image.size)
            size = image.size
        orientation = read_orientation(image)
        pixels = convert_to_array(image, short_side=short_side, orientation=orientation)
        return pixels, read_image_metadata(image, size)


def _open_with_plugin(stream: Stream, structure: Structure) -> Image.Image:
    """Open a file like `Image.open`, whose pixel limit is global, and which hides why it failed."""
    image_format = structure.image_format
    if image_format in ("WebP", "AVIF", "HEIC"):  # their plugins read the whole file
        check_memory(structure.n_bytes, f"{image_format} of this size")
    if image_format == "TIFF" and is_own_process():
        _silence_libtiff()
    module, name = PLUGINS[image_format]
    try:
        plugin = getattr(import_module(module), name)
    except ImportError as error:
        raise ImageError(str(MissingExtra(f"reading {image_format}", "heic"))) from error
    stream.seek(0)
    image: Image.Image = plugin(stream, "")
    return image


def _complete_jpeg(
    stream: Stream, structure: Structure, short_side: int | None
) -> tuple[NDArray[np.uint8], Metadata] | None:
    """Decode a JPEG that lacks its end; None if more than a small share of the pixels is missing.

    What follows the end of the file changes only pixels that are missing.
    """
    size = stream_size(stream)
    stream.seek(size - 1)
    if stream.read(1) == _END_OF_JPEG[:1]:
        size -= 1
    noise = random.Random(0).randbytes(2**16).replace(b"\xff", b"")
    one, other = (
        _decode(join_pieces(stream, [Piece(0, size), Piece.from_bytes(end)]), structure, short_side)
        for end in (_END_OF_JPEG, noise + _END_OF_JPEG)
    )
    missing = (one[0] != other[0]).any(axis=2).mean()
    return one if missing <= _MAX_MISSING else None


@cache
def _silence_libtiff() -> None:
    """Switch off the messages of libtiff on stderr, where Pillow's copy of it allows that."""
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(_imaging.__file__)  # its symbols include those of its libraries
        for name in ("TIFFSetErrorHandler", "TIFFSetWarningHandler"):
            getattr(library, name)(None)
