"""Files without metadata: nothing personal stays, and the image is the same."""

import io
import struct
import time
import tracemalloc
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageCms, ImageOps, PngImagePlugin

from bm25v import Gallery, ImageError
from bm25v.client import to_id
from bm25v.images.streams import Piece
from bm25v.images.stripping import strip_metadata
from tests.children import run_python
from tests.conftest import make_image
from tests.http_server import serving
from tests.test_images import chunk
from tests.test_server import failed

pytestmark = pytest.mark.filterwarnings("ignore:Image appears to be a malformed MPO")

SECRET = b"a secret"
XMP = b"<x:xmpmeta xmlns:x='adobe:ns:meta/'>a secret</x:xmpmeta>"
FORMATS = ("JPEG", "progressive", "PNG", "WebP", "lossless", "animation")


def make_exif(orientation: int) -> Image.Exif:
    """Return EXIF with a position, names, dates and a preview."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    exif[0x010F] = "a secret camera"
    exif[0x9286] = "a secret comment"
    exif.get_ifd(0x8769)[0x9003] = "2023:06:01 14:30:05"
    exif.get_ifd(0x8825).update({1: "N", 2: (52.0, 31.0, 12.0), 29: "a secret date"})
    return exif


@cache  # a colour profile has the time of its creation
def make_file(kind: str, orientation: int = 6) -> bytes:
    """Return a file with metadata wherever its format has a place for it."""
    image, file = make_image(7, side=90).crop((0, 0, 90, 60)), io.BytesIO()
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    options: dict[str, Any] = {"exif": make_exif(orientation), "icc_profile": profile}
    if kind in ("JPEG", "progressive"):
        image.save(
            file, "JPEG", comment=SECRET, xmp=XMP, progressive=kind == "progressive", **options
        )
        return add_to_jpeg(file.getvalue())
    if kind == "PNG":
        text = PngImagePlugin.PngInfo()
        text.add_text("Author", SECRET.decode())
        text.add_text("zip", SECRET.decode() * 9, zip=True)
        text.add_itxt("XML:com.adobe.xmp", XMP.decode())
        image.save(file, "PNG", pnginfo=text, dpi=(300, 300), **options)
        content = file.getvalue()
        unknown = chunk(b"prVt", SECRET) + chunk(b"tIME", b"\x07\xe7\x06\x01\x0e\x1e\x05")
        return content[:33] + unknown + content[33:] + SECRET
    others = {"animation": [make_image(8, side=90).crop((0, 0, 90, 60))]}.get(kind, [])
    image.save(
        file,
        "WebP",
        lossless=kind == "lossless",
        xmp=XMP,
        save_all=bool(others),
        append_images=others,
        **options,
    )
    content = file.getvalue() + struct.pack("<4sI", b"priv", len(SECRET)) + SECRET
    return content[:4] + struct.pack("<I", len(content) - 8) + content[8:]


def add_to_jpeg(content: bytes) -> bytes:
    """Add what cameras write: IPTC, other images after the first one, and bytes after the end."""

    more = segment(0xED, b"Photoshop 3.0\0" + SECRET) + segment(0xE2, b"MPF\0" + SECRET)
    return content[:2] + more + content[2:-2] + segment(0xFE, SECRET) + b"\xff\xd9" + content


def strip(content: bytes, image_format: str) -> bytes:
    pieces = strip_metadata(io.BytesIO(content), image_format)
    return b"".join(read_piece(content, piece) for piece in pieces)


def read_piece(content: bytes, piece: Piece) -> bytes:
    assert 0 <= piece.start <= piece.end
    if piece.content is not None:
        return piece.content
    assert piece.end <= len(content)
    return content[piece.start : piece.end]


def format_of(kind: str) -> str:
    names = {"progressive": "JPEG", "lossless": "WebP", "animation": "WebP"}
    return names.get(kind, kind)


def pixels(content: bytes) -> list[np.ndarray[Any, Any]]:
    with Image.open(io.BytesIO(content)) as image:
        frames = []
        for number in range(getattr(image, "n_frames", 1)):
            image.seek(number)
            frames.append(np.asarray(ImageOps.exif_transpose(image)))
        return frames


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("orientation", [1, 6, 3])
def test_nothing_personal_stays_and_the_image_is_the_same(kind: str, orientation: int) -> None:
    content = make_file(kind, orientation)
    stripped = strip(content, format_of(kind))
    assert SECRET in content
    assert SECRET not in stripped
    for before, after in zip(pixels(content), pixels(stripped), strict=True):
        assert np.array_equal(before, after)
    with Image.open(io.BytesIO(content)) as old, Image.open(io.BytesIO(stripped)) as new:
        assert new.format == format_of(kind).upper()
        harmless = {"icc_profile", "dpi", "loop", "duration", "timestamp", "background", "exif"}
        harmless |= {"jfif", "jfif_version", "jfif_unit", "jfif_density"}
        assert set(new.info) <= harmless | {"progressive", "progression"}
        assert new.info["icc_profile"] == old.info["icc_profile"]
        assert dict(new.getexif()) == ({} if orientation == 1 else {0x0112: orientation})
    assert strip(stripped, format_of(kind)) == stripped


def test_the_compressed_pixels_stay_byte_for_byte() -> None:
    jpeg = make_file("progressive")
    first = jpeg.index(b"\xff\xdb")
    assert jpeg[first : jpeg.index(b"\xff\xfe", first)] in strip(jpeg, "JPEG")
    png = make_file("PNG")
    start = png.index(b"IDAT") - 4
    length = int.from_bytes(png[start : start + 4]) + 12
    assert png[start : start + length] in strip(png, "PNG")
    webp = make_file("lossless")
    start = webp.index(b"VP8L")
    length = int.from_bytes(webp[start + 4 : start + 8], "little") + 8
    assert webp[start : start + length] in strip(webp, "WebP")


def segment(marker: int, data: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(data) + 2) + data


def webp_chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack("<4sI", name, len(data)) + data


def hide_in_jpeg(hidden: bytes) -> bytes:
    content = make_file("JPEG", 1)
    end = content.index(segment(0xFE, SECRET) + b"\xff\xd9")
    return content[:end] + hidden + b"\xff\xd9"


def hide_in_png(hidden: bytes, *, end: bytes = b"") -> bytes:
    content = make_file("PNG", 1)
    start = content.index(b"IDAT") - 4
    return content[:start] + hidden + content[start : content.index(b"IEND") - 4] + end


def hide_in_frames(hidden: bytes) -> bytes:
    content, frames = make_file("animation", 1), b""
    at = 12
    while at < len(content):
        name, size = struct.unpack_from("<4sI", content, at)
        data = content[at + 8 : at + 8 + size]
        frames += webp_chunk(name, data + hidden * (name == b"ANMF")) + b"\0" * (size % 2)
        at += 8 + size + size % 2
    return b"RIFF" + struct.pack("<I", len(frames) + 4) + b"WEBP" + frames


@pytest.mark.parametrize(
    ("image_format", "content"),
    [
        ("JPEG", hide_in_jpeg(segment(0xDC, b"\0\x3c" + SECRET))),
        ("JPEG", hide_in_jpeg(segment(0xDB, b"\3" + SECRET.ljust(64)))),
        ("PNG", hide_in_png(b"", end=chunk(b"IEND", SECRET))),
        ("PNG", hide_in_png(chunk(b"sBIT", b"\x08\x08\x08" + SECRET), end=chunk(b"IEND", b""))),
        ("PNG", hide_in_png(chunk(b"gAMA", SECRET), end=chunk(b"IEND", b""))),
        ("PNG", hide_in_png(chunk(b"pHYs", SECRET + b"\1"), end=chunk(b"IEND", b""))),
        ("WebP", hide_in_frames(webp_chunk(b"EXIF", b"MM\0*\0\0\0\x08" + bytes(6) + SECRET))),
    ],
    ids=["DNL", "DQT", "IEND", "sBIT", "gAMA", "pHYs", "ANMF"],
)
def test_what_is_hidden_where_no_decoder_looks_is_left_out(
    image_format: str, content: bytes
) -> None:
    stripped = strip(content, image_format)
    assert SECRET in content
    assert SECRET not in stripped
    for before, after in zip(pixels(content), pixels(stripped), strict=True):
        assert np.array_equal(before, after)


def test_damaged_metadata_prints_nothing_in_a_process_of_bm25v() -> None:
    script = """
import io, warnings
from bm25v.images.stripping import strip_metadata
from bm25v.privacy import own_process

warnings.simplefilter("default")
own_process()
exif = b"Exif\\0\\0II*\\0\\x08\\0\\0\\0\\xff\\xff\\x12\\x01"
content = b"\\xff\\xd8\\xff\\xe1" + (len(exif) + 2).to_bytes(2) + exif
print(len(strip_metadata(io.BytesIO(content), "JPEG")))
"""
    result = run_python(script)
    assert (result.stdout, result.stderr) == ("2\n", "")


def test_a_preview_in_the_header_of_a_jpeg_is_left_out() -> None:
    content = make_file("JPEG", 1)
    at = content.index(b"JFIF\0")
    preview = b"\x02\x02" + b"abcdefghijkl"
    header = struct.pack(">H", 28) + content[at : at + 12] + preview
    changed = content[: at - 2] + header + content[at + 14 :]
    assert np.array_equal(pixels(changed)[0], pixels(content)[0])
    assert strip(changed, "JPEG") == strip(content, "JPEG")


def test_colours_of_jpegs_without_a_profile_stay_the_same() -> None:
    for mode in ("CMYK", "L", "RGB"):
        file = io.BytesIO()
        make_image(9).convert(mode).save(file, "JPEG", subsampling=0, comment=SECRET)
        assert np.array_equal(pixels(file.getvalue())[0], pixels(strip(file.getvalue(), "JPEG"))[0])


@given(data=st.data())
def test_damaged_files_end_in_pieces_of_the_file_or_an_error(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(FORMATS))
    content = bytearray(make_file(kind))
    for _ in range(data.draw(st.integers(0, 8))):
        content[data.draw(st.integers(8, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(8, len(content)))]
    try:
        stripped = strip(bytes(content), format_of(kind))
    except ImageError:
        return
    assert len(stripped) <= len(content) + 100


@pytest.mark.parametrize(
    ("image_format", "content"),
    [
        ("JPEG", b"\xff\xd8" + b"\xff\xfe\0\2" * 1_000_000),
        ("JPEG", b"\xff\xd8" + b"\xff\xda\0\2" * 1_000_000),
        ("JPEG", b"\xff\xd8" + b"\xff\xc4\0\2" * 1_000_000),
        ("JPEG", b"\xff\xd8\xff\xda\0\2" + b"\xff\0" * 8_000_000),
        ("JPEG", b"\xff\xd8" + bytes(4_000_000)),
        ("PNG", b"\x89PNG\r\n\x1a\n" + b"\0\0\0\0IDAT...." * 400_000),
        ("WebP", b"RIFF....WEBP" + b"VP8 \0\0\0\0" * 400_000),
        ("WebP", b"RIFF....WEBP" + (b"ANMF\x60\0\0\0" + bytes(96)) * 90_000),
    ],
)
def test_hostile_files_take_little_time_and_memory(image_format: str, content: bytes) -> None:
    stream = io.BytesIO(content)
    tracemalloc.start()
    start = time.process_time()
    try:
        strip_metadata(stream, image_format)
    except ImageError as error:
        assert str(error).startswith("too many")
    seconds = time.process_time() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds < 5
    assert peak < 60_000_000


def test_the_server_sends_files_as_they_are_or_without_metadata(
    gallery: Gallery, photos: Path, tmp_path: Path
) -> None:
    content = make_file("JPEG")
    (photos / "home.jpg").write_bytes(content)
    make_image(70).save(photos / "scan.tiff")
    gallery.add(photos)
    url = f"/v1/images/{to_id(str(photos / 'home.jpg'))}/file"
    with serving(gallery, tmp_path / "cache") as client:
        whole = client.get(url)
        assert whole.content == content, "by default the file is that of its owner"
    with serving(gallery, tmp_path / "cache", strip_metadata=True) as client:
        response = client.get(url)
        assert response.content == strip(content, "JPEG")
        assert response.headers["content-length"] == str(len(response.content))
        assert response.headers["content-type"] == "image/jpeg"
        tags = whole.headers["etag"], response.headers["etag"]
        assert tags[0] != tags[1]
        assert client.get(url, headers={"If-None-Match": tags[0]}).status_code == 200
        assert client.get(url, headers={"If-None-Match": tags[1]}).status_code == 304
        tiff = f"/v1/images/{to_id(str(photos / 'scan.tiff'))}"
        failed(client.get(f"{tiff}/file"), 403, "has-metadata", "TIFF", "use the thumbnail")
        assert client.get(f"{tiff}/thumbnail").status_code == 200
