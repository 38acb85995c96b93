"""Reads the structure of a file before it is decoded: what to leave out, and what decoding takes.

A decoder gets no huge metadata. What can repeat without end is refused here.
"""

import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from bm25v.errors import ImageError
from bm25v.images.streams import Piece, Stream, stream_size

MAX_SCANS = 100
"""Encoders write about ten scans of a progressive JPEG; each visits every pixel again."""

_MAX_SCAN_BYTES = 10_000_000_000  # coefficients that all scans visit together

MAX_METADATA = 2**22
"""Larger metadata is not read."""

MAX_PARTS = 100_000
"""Chunks of a PNG, segments of a JPEG."""

_MAX_TIFF_VALUES = 2_000_000  # two for each strip
# Width, height, rows of a strip, width and height of a tile, samples of a pixel, orientation.
_TIFF_DEFAULTS = {256: 0, 257: 0, 278: 2**32, 322: 0, 323: 0, 277: 1, 274: 1}
_CODEC_BOXES = {"AVIF": b"av1C", "HEIC": b"hvcC"}
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_METADATA_MARKERS = frozenset({0xFE, *range(0xE1, 0xEE)})
_SCAN_MARKER = 0xDA
_PROGRESSIVE_MARKERS = frozenset({0xC2, 0xC6, 0xCA, 0xCE})


class Structure(NamedTuple):
    """What is known of a file before it is decoded."""

    image_format: str
    pieces: list[Piece] | None = None  # None: the whole file
    n_bytes: int = 0  # what the decoder takes beside the pixels,
    bytes_per_pixel: float = 0  # and for each pixel
    n_halvings: int = 0  # how often the decoder can halve both sides

    def count_halvings(self, factor: int) -> int:
        """Return how often the decoder halves an image that is reduced by a factor."""
        return min(self.n_halvings, factor.bit_length() - 1)


def read_structure(stream: Stream, image_format: str) -> Structure:
    """Return the structure of a file; raise if it is made to take time or memory without end."""
    stream.seek(0)
    reader = _READERS.get(image_format)
    return Structure(image_format) if reader is None else reader(stream)


def remove_png_metadata(stream: Stream) -> list[Piece]:
    """Keep the chunks that make the pixels, and the orientation if it is intact."""
    kept = [Piece(0, 8)]
    for name, start, end in walk_chunks(stream, "PNG"):
        if name != b"IDAT" and end - start > MAX_METADATA:
            continue
        is_critical = name[:1].isupper()
        if is_critical or (name in (b"tRNS", b"eXIf") and _is_intact(stream, start, end)):
            kept.append(Piece(start, end))
    return kept


def _is_intact(stream: Stream, start: int, end: int) -> bool:
    stream.seek(start + 4)
    content = stream.read(end - start - 4)
    return zlib.crc32(content[:-4]) == int.from_bytes(content[-4:])


def _read_png(stream: Stream) -> Structure:
    chunks = walk_chunks(stream, "PNG")
    n_bytes = sum(end - start for name, start, end in chunks if name != b"IDAT")
    return Structure("PNG", remove_png_metadata(stream) if n_bytes > MAX_METADATA else None)


def walk_chunks(
    stream: Stream, image_format: str, within: Piece | None = None
) -> Iterator[tuple[bytes, int, int]]:
    """Yield the name, start and end of each chunk of a PNG, to its last one, or of a WebP.

    `within` is the part of the file that has them, by default all but the signature.
    """
    end, size, _ = within or Piece(8 if image_format == "PNG" else 12, stream_size(stream))
    for _ in range(MAX_PARTS):
        start = end
        stream.seek(start)
        head = stream.read(8)
        if len(head) < 8 or start + 8 > size:
            return
        if image_format == "PNG":
            name, length = head[4:], 12 + int.from_bytes(head[:4])
        else:
            name, n_bytes = head[:4], int.from_bytes(head[4:], "little")
            length = 8 + n_bytes + n_bytes % 2
        end = min(start + length, size)
        yield name, start, end
        if name == b"IEND":
            return
    raise ImageError(f"too many chunks for a {image_format}: more than {MAX_PARTS:,}")


def _read_jpeg(stream: Stream) -> Structure:
    """Leave out segments of metadata if they are huge; count scans if there are several."""
    segments = list(walk_jpeg(stream))
    n_metadata = sum(end - start for marker, start, end in segments if marker in _METADATA_MARKERS)
    pieces = _remove_jpeg_metadata(stream, segments) if n_metadata > MAX_METADATA else None
    frames = [segment for segment in segments if segment[0] in _FRAME_MARKERS]
    if not frames or segments[-1][0] != _SCAN_MARKER:
        return Structure("JPEG", pieces)
    marker, start, _ = frames[-1]
    stream.seek(start + 5)
    height, width, n_colours = struct.unpack(">HHB", stream.read(5).ljust(5, b"\0"))
    samplings = [(byte >> 4, byte & 15) for byte in stream.read(3 * n_colours)[1::3]]
    first_scan = segments[-1][1]
    stream.seek(first_scan + 4)
    has_one_scan = stream.read(1) == bytes([len(samplings)])
    if not samplings or (has_one_scan and marker not in _PROGRESSIVE_MARKERS):
        return Structure("JPEG", pieces)
    # With several scans, the decoder keeps all coefficients, of 2 bytes, until the last.
    across, down = (max(2**-8, *factors) for factors in zip(*samplings, strict=True))
    samples_per_pixel = sum(one * other for one, other in samplings) / (across * down)
    n_bytes = int(2 * samples_per_pixel * (width + 32) * (height + 32))
    n_scans = _count_scans(stream, first_scan)
    if n_scans > MAX_SCANS:
        raise ImageError(f"too many scans for a JPEG: the limit is {MAX_SCANS}")
    if n_scans * n_bytes > _MAX_SCAN_BYTES:
        raise ImageError(f"too large: {width} × {height} pixels in {n_scans} scans take too long")
    return Structure("JPEG", pieces, n_bytes)


def _remove_jpeg_metadata(stream: Stream, segments: list[tuple[int, int, int]]) -> list[Piece]:
    """Keep the first segments of metadata, where cameras write date and orientation."""
    kept, n_metadata = [Piece(0, 2)], 0
    for marker, start, end in segments:
        n_metadata += end - start if marker in _METADATA_MARKERS else 0
        if marker not in _METADATA_MARKERS or n_metadata <= MAX_METADATA:
            kept.append(Piece(start, end))
    return [*kept, Piece(segments[-1][2], stream_size(stream))]


def walk_jpeg(stream: Stream, start: int = 2) -> Iterator[tuple[int, int, int]]:
    """Yield each marker with the start and end of its segment, to the next scan."""
    window, window_start = b"", 0
    for _ in range(MAX_PARTS):
        if start + 4 > window_start + len(window):
            stream.seek(start)
            window, window_start = stream.read(4096), start
        head = window[start - window_start : start - window_start + 4]
        if len(head) < 4:
            return
        if head[0] != 0xFF or head[1] in (0x00, 0xFF):  # bytes between segments
            start += 1
            continue
        has_no_length = head[1] == 0x01 or 0xD0 <= head[1] <= 0xD8
        end = start + 2 if has_no_length else start + 2 + max(2, int.from_bytes(head[2:]))
        yield head[1], start, end
        if head[1] == _SCAN_MARKER:
            return
        start = end
    raise ImageError(f"too many segments for a JPEG: more than {MAX_PARTS:,}")


def _count_scans(stream: Stream, start: int) -> int:
    stream.seek(start)
    n_scans, last = 0, b""
    while block := stream.read(2**20):
        n_scans += (last + block).count(b"\xff\xda")
        last = block[-1:]
        if n_scans > MAX_SCANS:
            break
    return n_scans


def _read_webp(stream: Stream) -> Structure:
    # Two canvases of 4 bytes, and what is decoded.
    return Structure("WebP", n_bytes=2 * stream_size(stream), bytes_per_pixel=12)


def _read_iso_media(stream: Stream, image_format: str) -> Structure:
    """Without alpha, 8 bits and with quarter-size colours decoding takes half the memory."""
    head = stream.read(2**16)
    at = head.find(_CODEC_BOXES[image_format]) + 4
    box = head[at : at + 18].ljust(18, b"\0")
    if image_format == "AVIF":
        is_plain = box[2] & 0b0110_1100 == 0b0000_1100
    else:
        is_plain = box[16] & 3 == 1 and box[17] & 7 == 0
    is_plain = is_plain and at > 4 and b"alpha" not in head and b"auxid:1" not in head
    return Structure(
        image_format, n_bytes=2 * stream_size(stream), bytes_per_pixel=6 if is_plain else 12
    )


def _read_jpeg_2000(stream: Stream) -> Structure:
    """The decoder takes 4 bytes per sample of a tile, and more for each of its code blocks."""
    head = stream.read(2**20)
    start = head.find(b"\xff\x4f\xff\x51")
    sizes = head[start + 8 : start + 42]
    if start < 0 or len(sizes) < 34:
        return Structure("JPEG 2000", bytes_per_pixel=24)
    right, bottom, left, top, tile_width, tile_height = struct.unpack(">6I", sizes[:24])
    n_colours = int.from_bytes(sizes[32:34])
    n_pixels = min(right - left, tile_width) * min(bottom - top, tile_height)
    at, bytes_per_sample, n_halvings = start + 2, 8.0, 0
    while (marker := head[at : at + 2]) not in (b"", b"\xff\x90"):
        if marker == b"\xff\x52":
            style, n_halvings, across, down = head[at + 4], *head[at + 9 : at + 12]
            bytes_per_sample += 160 / 2 ** (across + down + 4)
            if style & 1:
                precincts = head[at + 14 : at + 15 + n_halvings]
                bytes_per_sample += sum(400 / 2 ** ((p & 15) + (p >> 4)) for p in precincts)
        at += 2 + max(2, int.from_bytes(head[at + 2 : at + 4]))
    n_bytes = int(max(0, n_pixels) * n_colours * bytes_per_sample)
    return Structure("JPEG 2000", n_bytes=n_bytes, n_halvings=n_halvings)


def _read_tiff(stream: Stream) -> Structure:
    """Leave out huge tags; a strip or tile is decompressed at once."""
    tags, omitted, n_values = {}, [], 0
    for tag, kind, count, value, count_at, count_size in _walk_tiff(stream):
        size = count * {1: 1, 2: 1, 6: 1, 7: 1, 3: 2, 8: 2, 4: 4, 9: 4, 11: 4}.get(kind, 8)
        n_values += count if kind not in (1, 2, 6, 7) else 0
        if size > MAX_METADATA and kind in (1, 2, 6, 7):
            omitted.append((count_at, count_size))
        tags[tag] = (count, value)
    if n_values > _MAX_TIFF_VALUES:
        raise ImageError(f"too many values in the tags of a TIFF: {n_values:,}")
    width, height, rows, tile_width, tile_height, samples, orientation = (
        tags.get(tag, (1, default))[1] for tag, default in _TIFF_DEFAULTS.items()
    )
    n_pixels = tile_width * tile_height or width * min(rows, height)
    is_packed = tags.get(259, (1, 1))[1] != 1
    n_depths, depth = tags.get(258, (1, 1))
    if n_depths > 2:  # the bits of several samples are elsewhere in the file
        stream.seek(depth)
        depth = min(max(stream.read(2), default=8), 64)
    n_bytes = n_pixels * samples * max(1, depth // 8) * is_packed
    bytes_per_pixel = 4 if orientation > 1 else 0
    if not omitted:
        return Structure("TIFF", None, n_bytes, bytes_per_pixel)
    pieces, start = [], 0
    for count_at, count_size in omitted:
        pieces += [Piece(start, count_at), Piece.from_bytes(bytes(count_size))]
        start = count_at + count_size
    pieces.append(Piece(start, stream_size(stream)))
    n_bytes += is_packed * stream_size(stream)  # libtiff gets the pieces at once
    return Structure("TIFF", pieces, n_bytes, bytes_per_pixel)


def _walk_tiff(stream: Stream) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Yield tag, type, count, value, and where the count is, of each tag of the first image."""
    head = stream.read(16).ljust(16, b"\0")
    order = "<" if head[:1] == b"I" else ">"
    is_big = 43 in head[2:4]
    number = struct.Struct(order + ("Q" if is_big else "H"))
    entry = struct.Struct(order + ("HHQ8s" if is_big else "HHI4s"))
    (start,) = struct.unpack_from(order + ("Q" if is_big else "I"), head, 8 if is_big else 4)
    stream.seek(start)
    (n_entries,) = number.unpack(stream.read(number.size).ljust(number.size, b"\0"))
    content = stream.read(entry.size * min(n_entries, 2**16))
    for at in range(0, len(content) - entry.size + 1, entry.size):
        tag, kind, count, field = entry.unpack_from(content, at)
        form = {1: "B", 3: "H", 4: "I", 16: "Q"}.get(kind, "I")
        (value,) = struct.unpack_from(order + form, field.ljust(8, b"\0"))
        yield tag, kind, count, value, start + number.size + at + 4, 8 if is_big else 4


_READERS: dict[str, Callable[[Stream], Structure]] = {
    "PNG": _read_png,
    "JPEG": _read_jpeg,
    "WebP": _read_webp,
    "AVIF": partial(_read_iso_media, image_format="AVIF"),
    "HEIC": partial(_read_iso_media, image_format="HEIC"),
    "JPEG 2000": _read_jpeg_2000,
    "TIFF": _read_tiff,
}
