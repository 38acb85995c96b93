"""Leaves metadata out of a file: position, names, dates, devices, comments, previews.

The compressed pixels and the colour profile stay byte for byte, and so does which side is up. Of
what a format may contain, only what is known to make the image is kept, and nothing after its end.
"""

import re
import struct
import zlib
from collections.abc import Iterator
from itertools import islice

from bm25v.errors import ImageError
from bm25v.images.metadata import read_orientation
from bm25v.images.streams import MAX_BYTES, Piece, Stream, stream_size
from bm25v.images.structure import MAX_METADATA, MAX_PARTS, MAX_SCANS, walk_chunks, walk_jpeg

_SCAN_MARKER, _END_MARKER = 0xDA, 0xD9
_IMAGE_MARKERS = frozenset([*range(0xC0, 0xD0), _SCAN_MARKER, 0xDB, 0xDD]) - {0xC8}
_NEXT_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")  # after a scan
_BLOCK = 2**20

_PNG_CHUNKS = {  # that are kept, and how many bytes they may have
    **{b"IHDR": 13, b"PLTE": 768, b"IDAT": MAX_BYTES, b"tRNS": 256},  # pixels
    **{b"cHRM": 32, b"gAMA": 4, b"iCCP": MAX_BYTES, b"sBIT": 4, b"sRGB": 1},  # colours
    **{b"cICP": 4, b"mDCV": 24, b"cLLI": 8},
    **{b"bKGD": 6, b"pHYs": 9},  # background, shape of pixels
    **{b"acTL": 8, b"fcTL": 26, b"fdAT": MAX_BYTES},  # animation
}
_PNG_REPEATED = frozenset([b"IDAT", b"fcTL", b"fdAT"])
_PNG_END = b"\0\0\0\0IEND\xae\x42\x60\x82"
_WEBP_PIXELS = frozenset([b"VP8 ", b"VP8L", b"ALPH"])
_WEBP_FRAME = 24  # bytes of a frame before the chunks in it
_WEBP_EXIF, _WEBP_XMP = 0x08, 0x04


def strip_metadata(stream: Stream, image_format: str) -> list[Piece]:
    """Return the pieces of a file that make the same image without its metadata.

    >>> import io
    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (8, 8)).save(file, "JPEG", comment=b"taken at home")
    >>> pieces = strip_metadata(file, "JPEG")
    >>> len(file.getvalue()) - sum(piece.end - piece.start for piece in pieces)
    17
    """
    stripper = _STRIPPERS.get(image_format)
    if stripper is None:
        raise ImageError(f"the metadata of a {image_format} file cannot be left out")
    first, *others = stripper(stream)
    joined = [first]
    for piece in others:  # a PNG can have thousands that follow each other
        last = joined[-1]
        if piece.content is None and last.content is None and piece.start == last.end:
            joined[-1] = Piece(last.start, piece.end)
        else:
            joined.append(piece)
    return joined


def _make_exif(orientation: int) -> bytes:
    """Return an EXIF block with nothing but the orientation."""
    return struct.pack(">2sHIHHHIHHI", b"MM", 42, 8, 1, 0x0112, 3, 1, orientation, 0, 0)


def _strip_jpeg(stream: Stream) -> list[Piece]:
    size = stream_size(stream)
    header: list[Piece] = []
    kept: list[Piece] = []
    orientation, n_kept = 1, 0  # nothing after the last scan
    for marker, start, end in _walk_whole_jpeg(stream):
        if marker in _IMAGE_MARKERS:
            kept.append(Piece(start, min(end, size)))
            n_kept = len(kept) if marker == _SCAN_MARKER else n_kept
        elif marker in (0xE0, 0xE1, 0xE2, 0xEE):
            stream.seek(start + 4)
            content = stream.read(end - start - 4)
            if marker == 0xE0 and content.startswith(b"JFIF\0") and len(content) >= 12:
                header = [_make_segment(marker, content[:12] + b"\0\0")]  # without a preview
            elif marker == 0xE1 and content.startswith(b"Exif\0\0") and orientation == 1:
                orientation = read_orientation(content)
            elif marker == 0xE2 and content.startswith(b"ICC_PROFILE\0"):
                kept.append(Piece(start, min(end, size)))
            elif marker == 0xEE and content.startswith(b"Adobe"):  # how colours are stored
                kept.append(_make_segment(marker, content[:12]))
        if len(kept) > MAX_PARTS:
            raise ImageError(f"too many segments for a JPEG: more than {MAX_PARTS:,}")
    if orientation != 1:
        header.append(_make_segment(0xE1, b"Exif\0\0" + _make_exif(orientation)))
    end_of_image = Piece.from_bytes(bytes([0xFF, _END_MARKER]))
    return [Piece(0, 2), *header, *kept[:n_kept], end_of_image]


def _make_segment(marker: int, content: bytes) -> Piece:
    return Piece.from_bytes(struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content)


def _walk_whole_jpeg(stream: Stream) -> Iterator[tuple[int, int, int]]:
    """Yield each marker with its segment; what follows the header of a scan belongs to it."""
    start = 2
    for _ in range(MAX_SCANS + 1):
        for marker, start_of_segment, end in walk_jpeg(stream, start):
            if marker == _END_MARKER:
                return
            if marker != _SCAN_MARKER:
                yield marker, start_of_segment, end
                continue
            start = _find_next_marker(stream, end)
            yield marker, start_of_segment, start
            break
        else:
            return
    raise ImageError(f"too many scans for a JPEG: the limit is {MAX_SCANS}")


def _find_next_marker(stream: Stream, start: int) -> int:
    """Return where the pixels of a scan end."""
    stream.seek(start)
    while block := stream.read(_BLOCK):
        if match := _NEXT_MARKER.search(block):
            return start + match.start()
        if len(block) < 2:
            break
        start += len(block) - 1  # a marker may be cut in two
        stream.seek(start)
    return stream_size(stream)


def _strip_png(stream: Stream) -> list[Piece]:
    kept = [Piece(0, 8)]
    seen: set[bytes] = set()
    for name, start, end in walk_chunks(stream, "PNG"):
        if name in seen:
            continue
        seen |= {name} - _PNG_REPEATED
        if name in _PNG_CHUNKS and end - start - 12 <= _PNG_CHUNKS[name]:
            kept.append(Piece(start, end))
        elif name == b"eXIf" and end - start <= MAX_METADATA:
            stream.seek(start + 8)
            orientation = read_orientation(stream.read(end - start - 12))
            if orientation != 1:
                content = b"eXIf" + _make_exif(orientation)
                length, checksum = len(content) - 4, zlib.crc32(content)
                kept.append(Piece.from_bytes(struct.pack(">I30sI", length, content, checksum)))
    return [*kept, Piece.from_bytes(_PNG_END)]


def _strip_webp(stream: Stream) -> list[Piece]:
    kept: list[Piece] = []
    seen: set[bytes] = set()
    flags, orientation = b"", 1
    for name, start, end in walk_chunks(stream, "WebP"):
        stream.seek(start + 8)
        if name == b"ANMF":
            kept += _strip_frame(stream, start, end)
            if len(kept) > MAX_PARTS:
                raise ImageError(f"too many parts for a WebP: more than {MAX_PARTS:,}")
            continue
        if name in seen:
            continue
        seen.add(name)
        if name in _WEBP_PIXELS or name == b"ICCP":
            kept.append(Piece(start, end))
        elif name == b"ANIM":
            kept.append(_make_chunk(name, stream.read(6)))
        elif name == b"VP8X":
            flags = stream.read(10)
        elif name == b"EXIF" and end - start <= MAX_METADATA:
            orientation = read_orientation(stream.read(end - start - 8))
    if len(flags) == 10:
        content = bytearray(flags)
        content[0] &= ~(_WEBP_EXIF | _WEBP_XMP)
        if orientation != 1:
            content[0] |= _WEBP_EXIF
            kept.append(_make_chunk(b"EXIF", _make_exif(orientation)))
        kept.insert(0, _make_chunk(b"VP8X", bytes(content)))
    n_bytes = 4 + sum(piece.end - piece.start for piece in kept)
    return [Piece.from_bytes(struct.pack("<4sI4s", b"RIFF", n_bytes, b"WEBP")), *kept]


def _strip_frame(stream: Stream, start: int, end: int) -> list[Piece]:
    """Return a frame of an animation with nothing but its pixels."""
    kept = [Piece(start + 8, min(start + _WEBP_FRAME, end))]
    chunks = walk_chunks(stream, "WebP", Piece(start + _WEBP_FRAME, end))
    for name, first, last in islice(chunks, 2):  # transparency and colours come first
        if name in _WEBP_PIXELS:
            kept.append(Piece(first, last))
    n_bytes = sum(piece.end - piece.start for piece in kept)
    return [Piece.from_bytes(struct.pack("<4sI", b"ANMF", n_bytes)), *kept]


def _make_chunk(name: bytes, content: bytes) -> Piece:
    return Piece.from_bytes(struct.pack("<4sI", name, len(content)) + content)


_STRIPPERS = {"JPEG": _strip_jpeg, "PNG": _strip_png, "WebP": _strip_webp}
