import io
import os
import socket
import struct
import subprocess
import sys
import threading
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from bm25v import images
from bm25v.errors import ImageError, InvalidOption
from bm25v.extras import install_command
from bm25v.gallery import Gallery
from bm25v.images.metadata import parse_date
from tests.children import run_python
from tests.conftest import make_image

RED, GREEN, BLUE, YELLOW = (200, 30, 40), (20, 160, 60), (30, 60, 190), (230, 210, 40)

# How a file must store the upright pixels for its orientation tag to be true.
STORED = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def quarters(width: int = 96, height: int = 64) -> Image.Image:
    """Four differently coloured quarters: every turn and flip changes them."""
    pil_image = Image.new("RGB", (width, height), RED)
    pil_image.paste(GREEN, (width // 2, 0, width, height // 2))
    pil_image.paste(BLUE, (0, height // 2, width // 2, height))
    pil_image.paste(YELLOW, (width // 2, height // 2, width, height))
    return pil_image


def encode(pil_image: Image.Image, image_format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    pil_image.save(file, image_format, **options)
    return file.getvalue()


def noise(width: int, height: int) -> Image.Image:
    rng = np.random.default_rng(0)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))


def assert_close(image: NDArray[np.uint8], pil_image: Image.Image, tolerance: int = 12) -> None:
    expected = np.array(pil_image.convert("RGB"))
    assert image.shape == expected.shape
    assert image.dtype == np.uint8
    assert np.abs(image.astype(int) - expected).mean() < tolerance


def reason(source: images.Source) -> str:
    with pytest.raises(ImageError) as caught:
        images.decode_image(source)
    text = str(caught.value)
    assert text
    assert "\n" not in text
    return text


def chunk(name: bytes, data: bytes, *, damaged: bool = False) -> bytes:
    checksum = zlib.crc32(name + data) ^ damaged
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", checksum)


def png_with(extra: bytes) -> bytes:
    data = encode(quarters(), "PNG")
    return data[:33] + extra + data[33:]


# Formats and modes


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_every_format_is_decoded(image_format: str, tmp_path: Path) -> None:
    data = encode(quarters(), image_format)
    path = tmp_path / "name without suffix"
    path.write_bytes(data)
    assert_close(images.decode_image(data), quarters())
    assert_close(images.decode_image(path), quarters())
    assert_close(images.decode_image(str(path)), quarters())


def test_the_array_is_the_callers_own() -> None:
    image = images.decode_image(encode(quarters(), "PNG"))
    image[:] = 0
    assert image.max() == 0


@pytest.mark.parametrize(
    ("mode", "image_format", "colour", "expected"),
    [
        ("1", "PNG", 1, (255, 255, 255)),
        ("L", "PNG", 77, (77, 77, 77)),
        ("L", "JPEG", 77, (77, 77, 77)),
        ("LA", "PNG", (0, 51), (204, 204, 204)),
        ("RGBA", "PNG", (255, 0, 0, 51), (255, 204, 204)),
        ("RGBA", "WEBP", (255, 0, 0, 0), (255, 255, 255)),
        ("RGBA", "TIFF", (255, 0, 0, 51), (255, 204, 204)),
        ("CMYK", "JPEG", (0, 255, 255, 0), (255, 0, 0)),
        ("CMYK", "TIFF", (255, 0, 0, 0), (0, 255, 255)),
        pytest.param(
            *("YCbCr", "TIFF", (128, 128, 128), (128, 128, 128)),
            marks=pytest.mark.skipif(
                PIL.__version__ < "13", reason="Pillow reads no uncompressed YCbCr before 13"
            ),
        ),
        ("I;16", "PNG", 0xCCFF, (204, 204, 204)),
        ("I;16", "TIFF", 0xCC00, (204, 204, 204)),
        ("I", "TIFF", 51, (51, 51, 51)),
        ("I", "TIFF", 204 * 257, (204, 204, 204)),
        ("F", "TIFF", 0.2, (51, 51, 51)),
        ("F", "TIFF", 51.0, (51, 51, 51)),
    ],
)
def test_every_mode_becomes_rgb(
    mode: str, image_format: str, colour: Any, expected: tuple[int, int, int]
) -> None:
    image = images.decode_image(encode(Image.new(mode, (16, 8), colour), image_format))
    assert image.shape == (8, 16, 3)
    np.testing.assert_allclose(image.reshape(-1, 3), [expected] * 128, atol=2)


@pytest.mark.parametrize("mode", ["I", "F"])
def test_grey_values_outside_the_usual_ranges_are_stretched(mode: str) -> None:
    pil_image = Image.new(mode, (3, 1))
    for x, value in enumerate((-100_000, 0, 100_000)):
        pil_image.putpixel((x, 0), value)
    assert images.decode_image(encode(pil_image, "TIFF"))[0, :, 0].tolist() == [0, 128, 255]


def test_nan_and_infinity_become_black() -> None:
    pil_image = Image.new("F", (3, 1), 1.0)
    pil_image.putpixel((0, 0), float("nan"))
    pil_image.putpixel((1, 0), float("inf"))
    assert images.decode_image(encode(pil_image, "TIFF"))[0, :, 0].tolist() == [0, 0, 255]


def test_tiff_with_12_bits_per_sample() -> None:
    data = bytearray(encode(Image.new("I;16", (2, 1), 0xABCD), "TIFF"))
    bits = data.index(struct.pack("<HHI", 258, 3, 1))
    data[bits + 8] = 12
    pixels = data.index(b"\xcd\xab\xcd\xab")
    data[pixels : pixels + 3] = b"\xff\xf3\x33"  # 0xFFF, 0x333
    assert images.decode_image(bytes(data))[0, :, 0].tolist() == [255, 51]


@pytest.mark.parametrize("image_format", ["PNG", "TIFF"])
@pytest.mark.parametrize("bits", [8, 10, 12, 14, 16])
def test_16_bit_samples_are_scaled_by_the_depth_that_holds_them(
    bits: int, image_format: str
) -> None:
    brightest = 2**bits - 1
    pil_image = Image.fromarray(np.array([[0, brightest // 5, brightest]], np.uint16))
    image = images.decode_image(encode(pil_image, image_format))
    np.testing.assert_allclose(image[0, :, 0], [0, 51, 255], atol=1)


def test_a_dark_image_in_the_full_range_stays_dark() -> None:
    pil_image = Image.fromarray(np.array([[600] * 99 + [40_000]], np.uint16))
    assert images.decode_image(encode(pil_image, "PNG"))[0, :99].max() == 2


def test_a_portable_greymap_is_scaled_by_its_stated_maximum() -> None:
    data = b"P5 2 1 4095 " + (819).to_bytes(2) + (409).to_bytes(2)
    assert images.decode_image(data)[0, :, 0].tolist() == [51, 25]


def test_a_portable_floatmap_is_white_at_one() -> None:
    data = b"Pf\n3 1\n-1.0\n" + np.array([0.2, 1, 3], "<f4").tobytes()
    assert images.decode_image(data)[0, :, 0].tolist() == [51, 255, 255]


def test_qoi_is_decoded() -> None:
    data = b"qoif" + struct.pack(">IIBB", 3, 1, 3, 0) + b"\xfe\xc8\x1e\x28\xc1" + bytes(7) + b"\1"
    assert images.decode_image(data).tolist() == [[list(RED)] * 3]


def test_jpeg_2000_is_reduced_while_it_is_decoded() -> None:
    data = encode(quarters(800, 1200), "JPEG2000")
    image, metadata = images.decode_with_metadata(data, short_side=100)
    assert_close(image, quarters(100, 150))
    assert metadata[:2] == (800, 1200)
    assert_close(images.decode_image(data), quarters(800, 1200))


def test_palette_images_are_decoded() -> None:
    assert_close(images.decode_image(encode(quarters().quantize(4), "PNG")), quarters(), 2)


@pytest.mark.parametrize("transparency", [1, bytes([255, 0, 255])])
def test_transparent_palette_entry_becomes_white(transparency: int | bytes) -> None:
    pil_image = Image.new("P", (2, 1), 2)
    pil_image.putpalette([*RED, *GREEN, *BLUE])
    pil_image.putpixel((1, 0), 1)
    image = images.decode_image(encode(pil_image, "PNG", transparency=transparency))
    assert image[0].tolist() == [list(BLUE), [255, 255, 255]]


def test_transparent_colour_becomes_white() -> None:
    image = images.decode_image(encode(quarters(), "PNG", transparency=RED))
    assert image[0, 0].tolist() == [255, 255, 255]
    assert image[0, -1].tolist() == list(GREEN)


@pytest.mark.parametrize("image_format", ["GIF", "WEBP", "PNG", "TIFF"])
def test_animation_gives_its_first_frame(image_format: str) -> None:
    later = [Image.new("RGB", (96, 64), colour) for colour in (GREEN, BLUE)]
    data = encode(quarters(), image_format, save_all=True, append_images=later)
    assert Image.open(io.BytesIO(data)).n_frames == 3  # type: ignore[attr-defined]
    assert_close(images.decode_image(data), quarters())


# Orientation


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_the_array_is_upright_for_every_orientation(image_format: str, orientation: int) -> None:
    transposition = STORED[orientation]
    stored = quarters() if transposition is None else quarters().transpose(transposition)
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(stored, image_format, exif=exif)
    assert images.read_metadata(data)[:2] == quarters().size
    assert_close(images.decode_image(data), quarters())
    if image_format == "JPEG":
        assert_close(images.decode_image(data, short_side=16), quarters(24, 16))


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_the_date_is_read_from_every_format_that_has_one(image_format: str) -> None:
    tags: dict[int, Any] = {0x010F: "camera", 0x0112: 6}
    dates = {0x9003: "2023:06:01 14:30:05"}
    exif, directory = Image.Exif(), ImageFileDirectory_v2()
    for tag, value in tags.items():
        exif[tag] = directory[tag] = value
    exif.get_ifd(0x8769).update(dates)
    directory[0x8769] = dates
    metadata = {"tiffinfo": directory} if image_format == "TIFF" else {"exif": exif}
    data = encode(quarters(80, 60), image_format, **metadata)
    expected = images.Metadata(60, 80, datetime(2023, 6, 1, 14, 30, 5))
    assert images.read_metadata(data) == expected
    for short_side in (None, 8):
        pixels, read = images.decode_with_metadata(data, short_side=short_side)
        assert read == expected, "the size is that of the file, not of the reduced image"
        assert pixels.shape[0] > pixels.shape[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2023:06:01 14:30:05", datetime(2023, 6, 1, 14, 30, 5)),
        ("2023-06-01T14:30:05.123+02:00", datetime(2023, 6, 1, 14, 30, 5)),
        ("2023:06:01 14:30", datetime(2023, 6, 1, 14, 30)),
        ("0000:00:00 00:00:00", None),
        ("    :  :     :  :  ", None),
        ("2023:02:30 10:00:00", None),
        ("٢٠٢٣:06:01 14:30:05", None),
        ("", None),
        (b"2023:06:01 14:30:05", None),
        (None, None),
    ],
)
def test_an_impossible_date_counts_as_missing(text: object, expected: datetime | None) -> None:
    assert parse_date(text) == expected


def test_read_metadata_refuses_what_is_not_an_image(tmp_path: Path) -> None:
    for data in (b"Dear Sir or Madam" * 9, b"\x89PNG\r\n\x1a\n and no more", b""):
        with pytest.raises(ImageError):
            images.read_metadata(data)
    with pytest.raises(ImageError, match="does not exist"):
        images.read_metadata(tmp_path / "gone.png")
    photo = encode(quarters(800, 600), "JPEG")
    assert images.read_metadata(photo[:2000])[:2] == (800, 600), "the first bytes are enough"


# Scale


@pytest.mark.parametrize(
    ("short_side", "shape"),
    [
        (100, (150, 100)),
        (101, (300, 200)),
        (200, (300, 200)),
        (800, (1200, 800)),
        (9999, (1200, 800)),
    ],
)
def test_short_side_is_never_undercut(short_side: int, shape: tuple[int, int]) -> None:
    data = encode(quarters(800, 1200), "JPEG")
    image = images.decode_image(data, short_side=short_side)
    assert image.shape[:2] == shape
    assert_close(image, quarters(*reversed(shape)))


def test_a_large_jpeg_is_decoded_at_reduced_size(monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import JpegImagePlugin

    load, decoded_sizes = JpegImagePlugin.JpegImageFile.load, set()

    def recording_load(self: JpegImagePlugin.JpegImageFile) -> Any:
        decoded_sizes.add(self.size)
        return load(self)

    monkeypatch.setattr(JpegImagePlugin.JpegImageFile, "load", recording_load)
    data = encode(quarters(1600, 1200), "JPEG")
    images.decode_image(data, short_side=256)
    assert decoded_sizes == {(400, 300)}


@pytest.mark.parametrize("side", [0, -1])
def test_impossible_sides_are_refused(side: int) -> None:
    data = encode(quarters(), "JPEG")
    with pytest.raises(InvalidOption, match=str(side)):
        images.decode_image(data, short_side=side)
    with pytest.raises(InvalidOption, match=str(side)):
        images.make_thumbnail(data, side=side)


@pytest.mark.parametrize("size", [(300, 200), (200, 300), (2000, 1), (30, 20)])
def test_thumbnails_are_small_upright_jpegs(size: tuple[int, int]) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = images.make_thumbnail(encode(quarters(*size), "PNG", exif=exif), side=90)
    scale = min(1, 90 / max(size))
    upright = quarters(*size).transpose(Image.Transpose.ROTATE_270)
    expected = upright.resize([max(1, round(side * scale)) for side in upright.size])
    assert data.startswith(b"\xff\xd8\xff")
    assert_close(images.decode_image(data), expected)
    assert not Image.open(io.BytesIO(data)).getexif()


def test_resize_is_antialiased() -> None:
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    small = images.resize_image(stripes, width=8, height=4)
    assert small.shape == (4, 8, 3)
    assert small.dtype == np.uint8
    assert np.abs(small.astype(int) - 128).max() < 12


# Files that cannot be read


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    assert reason(tmp_path / "gone.jpg") == "does not exist"


def test_a_folder_is_not_an_image(tmp_path: Path) -> None:
    assert "is a folder" in reason(tmp_path)


def test_impossible_paths_are_reported() -> None:
    assert "null" in reason("a\0b.jpg")
    assert "too long" in reason("a" * 5000).lower()


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root and Windows ignore permissions"
)
def test_permission_denied_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "secret.png"
    path.write_bytes(encode(quarters(), "PNG"))
    path.chmod(0)
    assert reason(path) == "permission denied"


def test_permission_denied_is_reported_to_root_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(*args: object) -> int:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr(os, "open", deny)
    assert reason(tmp_path / "secret.png") == "permission denied"


@pytest.mark.timeout(20)
def test_a_fifo_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    assert reason(tmp_path / "pipe.jpg") == "is not a regular file"
    assert list(images.find_images(tmp_path)) == []


def test_sockets_and_devices_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.jpg")
        assert reason("socket.jpg") == "is not a regular file"
    assert reason("/dev/zero") == "is not a regular file"


def test_empty_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    assert "0 bytes" in reason(tmp_path / "empty.jpg")
    assert "0 bytes" in reason(b"")


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse.webp"
    path.write_bytes(b"RIFF\xff\xff\xff\xffWEBPVP8 ")
    os.truncate(path, images.streams.MAX_BYTES + 1)
    assert "too large" in reason(path)


@pytest.mark.parametrize(
    "data",
    [
        b"<!DOCTYPE html><html><body>404 Not Found</body></html>",
        b"BM is not always a bitmap",
        b"P5 is not always an image",
        b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom" + b"\0" * 40,
        b"\xff",
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 40,  # an old Office document
    ],
)
def test_files_that_are_not_images_are_refused(data: bytes) -> None:
    assert "is not an image in a supported format" in reason(data)
    assert not images.formats.is_image(data)


@pytest.mark.parametrize(
    ("data", "image_format"),
    [
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "PostScript"),
        (b"8BPS\0\1" + b"\0" * 40, "Photoshop"),
        (b"\xff\x0a" + b"\0" * 40, "JPEG XL"),
    ],
)
def test_unsupported_formats_are_named(data: bytes, image_format: str) -> None:
    assert reason(data).startswith(image_format)
    assert reason(data).endswith("convert it to PNG or JPEG")
    assert images.formats.is_image(data)


def test_portable_pixmaps_are_decoded() -> None:
    assert images.decode_image(b"P6 2 1 255 " + bytes([255, 0, 0, 0, 0, 255])).tolist() == [
        [[255, 0, 0], [0, 0, 255]]
    ]


def test_find_recognises_images_by_content(tmp_path: Path) -> None:
    (tmp_path / "scan").write_bytes(encode(quarters(), "PNG"))
    (tmp_path / "photo.backup").write_bytes(encode(quarters(), "JPEG"))
    (tmp_path / "drawing.psd").write_bytes(b"8BPS\0\1" + b"\0" * 40)
    (tmp_path / "notes.txt").write_text("BM and P5 are how some images begin")
    (tmp_path / "film.mp4").write_bytes(b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom")
    os.mkfifo(tmp_path / "pipe")
    paths = names(tmp_path, list(images.find_images(tmp_path)))
    assert paths == ["drawing.psd", "photo.backup", "scan"]


@pytest.mark.timeout(20)
def test_an_absurd_box_size_takes_no_time() -> None:
    assert "not an image" in reason(b"\xff\xff\xff\xffftypisom" + b"\0" * 300)


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_every_truncation_is_detected(image_format: str) -> None:
    data = encode(noise(40, 30), image_format)
    for length in range(12, len(data) - 16, max(1, len(data) // 40)):
        assert f"truncated {image_format}".lower() in reason(data[:length]).lower()


@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_may_lack_its_end_marker_but_not_its_pixels(progressive: bool) -> None:
    data = encode(noise(400, 300), "JPEG", progressive=progressive)
    whole = images.decode_image(data)
    for n_bytes in (1, 2):
        assert np.array_equal(images.decode_image(data[:-n_bytes]), whole)
    assert "truncated JPEG" in reason(data[: int(0.9 * len(data))])


def test_a_jpeg_that_lacks_a_few_rows_is_decoded() -> None:
    data = encode(noise(160, 1600), "JPEG")
    image = images.decode_image(data[: int(0.99 * len(data))])
    assert np.array_equal(image[:1550], images.decode_image(data)[:1550])


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "I;16", "I", "F"]
)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_tiles_make_the_same_image_as_a_whole(
    mode: str, orientation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = noise(157, 101)
    pil_image = shapes.convert("L").convert(mode) if mode in "I;16F" else shapes.convert(mode)
    whole = images.pixels.convert_to_array(pil_image, short_side=30, orientation=orientation)
    monkeypatch.setattr(images.pixels, "TILE_SIDE", 16)
    tiled = images.pixels.convert_to_array(pil_image, short_side=30, orientation=orientation)
    assert np.array_equal(tiled, whole)
    assert min(whole.shape[:2]) == 34
    expected = shapes.convert("RGB" if mode in ("RGB", "RGBA", "CMYK") else "L").reduce(3)
    if mode not in ("1", "P", "PA"):
        expected.getexif()[0x0112] = orientation
        assert_close(whole, ImageOps.exif_transpose(expected))


NOISY = png_with(chunk(b"acTL", struct.pack(">II", 0, 0)))  # "Invalid APNG"


@pytest.mark.parametrize("is_quiet", [True, False])
def test_decoders_write_nothing_to_the_stderr_of_the_command_line(is_quiet: bool) -> None:
    torn = bytearray(encode(noise(64, 64), "TIFF", compression="tiff_lzw"))
    torn[200:3000] = bytes(2800)
    deep = bytearray(encode(quarters(), "TIFF"))
    at = deep.index(struct.pack("<HHI", 277, 3, 1))  # samples per pixel: Pillow logs an error
    deep[at + 8 : at + 10] = b"\xff\x7f"
    code = (
        "import bm25v; from bm25v import images, privacy\n"
        f"if {is_quiet}: privacy.own_process()\n"
        f"images.decode_image({NOISY!r})\n"
        f"for data in ({bytes(torn)!r}, {bytes(deep)!r}):\n"
        "    try: images.decode_image(data)\n"
        "    except bm25v.ImageError: pass\n"
        "    else: raise SystemExit('decoded')\n"
    )
    run = subprocess.run([sys.executable, "-"], input=code, capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "")
    assert (run.stderr == "") == is_quiet, "a program that uses the library decides itself"


@pytest.mark.parametrize(
    "image_format", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "HEIF"]
)
def test_damaged_data_gives_an_image_or_an_image_error(image_format: str) -> None:
    data = heic() if image_format == "HEIF" else encode(noise(40, 30), image_format)
    rng = np.random.default_rng(0)
    failures = 0
    for _ in range(150):
        damaged = np.frombuffer(data, np.uint8).copy()
        damaged[rng.integers(4, min(400, len(data)), 6)] = rng.integers(0, 256, 6)
        try:
            assert images.decode_image(damaged.tobytes()).shape[2] == 3
        except ImageError:
            failures += 1
    assert failures


@pytest.mark.parametrize("error", [struct.error, OverflowError, EOFError, KeyError, SyntaxError])
def test_every_error_of_pillow_becomes_an_image_error(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: object) -> None:
        raise error("two\nlines")

    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", fail)
    assert "damaged or truncated PNG" in reason(encode(quarters(), "PNG"))


def test_a_memory_error_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object) -> None:
        raise MemoryError

    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", fail)
    assert "not enough memory" in reason(encode(quarters(), "PNG"))


# Decompression bombs


def bomb_png(width: int, height: int, bits: int = 8, colours: int = 2) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, bits, colours, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0"))


def bomb_gif(width: int, height: int) -> bytes:
    """A small canvas with a large frame."""
    frame = b",\0\0\0\0" + struct.pack("<HH", width, height) + b"\0\2\2L\1\0;"
    return b"GIF89a\1\0\1\0\x80\0\0\0\0\0\xff\xff\xff" + frame


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "data", [bomb_png(20_000, 10_001), bomb_png(2**31 - 1, 2**31 - 1), bomb_gif(65535, 65535)]
)
def test_decompression_bombs_are_refused_by_their_header(data: bytes) -> None:
    assert "too large" in reason(data)


@pytest.mark.parametrize(
    ("bits", "colours", "mode"), [(8, 6, "RGBA"), (8, 4, "LA"), (8, 2, "RGB"), (16, 6, "RGBA")]
)
def test_the_reason_names_the_memory_and_its_limit(bits: int, colours: int, mode: str) -> None:
    with pytest.raises(ImageError) as caught:
        images.decode_image(bomb_png(14_000, 14_000, bits, colours), short_side=448)
    assert str(caught.value) == (
        f"too large: 14000 × 14000 pixels of PNG in {mode} take 825 MB to decode; "
        "the limit is 650 MB"
    )


def test_large_images_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import PngImagePlugin

    budget = images.limits.Budget(100_000_000)
    monkeypatch.setattr(images.decode, "memory", budget)
    monkeypatch.setattr(images.decode, "estimate_memory", lambda *args: 60_000_000)
    lock, decoding, most = threading.Lock(), [0], [0]
    load = PngImagePlugin.PngImageFile.load

    def count_load(self: PngImagePlugin.PngImageFile) -> Any:
        with lock:
            decoding[0] += 1
            most[0] = max(most[0], decoding[0])
        try:
            return load(self)
        finally:
            with lock:
                decoding[0] -= 1

    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", count_load)
    data = encode(noise(300, 200), "PNG")
    with ThreadPoolExecutor(4) as pool:
        shapes = list(pool.map(lambda data: images.decode_image(data).shape, [data] * 40))
    assert shapes == [(200, 300, 3)] * 40
    assert most == [1]
    with budget.reserve(100_000_000):  # all of it is free again
        pass


def test_slow_images_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(0, 1000, 2))
    monkeypatch.setattr("time.thread_time", lambda: float(next(times)))
    assert "takes too long" in reason(encode(noise(900, 900), "PNG"))


def test_an_image_without_pixels_is_refused() -> None:
    assert "damaged or truncated PNG" in reason(bomb_png(0, 5))


def test_the_size_is_checked_again_after_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    def grow(self: Any) -> None:
        self._size = (20_000, 20_000)

    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", grow)
    assert "20000 × 20000" in reason(encode(quarters(), "PNG"))


def test_our_pixel_limit_applies_not_pillows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert_close(images.decode_image(encode(quarters(), "JPEG")), quarters())
    monkeypatch.setattr(images.limits, "MAX_PIXELS", 96 * 64 - 1)
    assert "96 × 64" in reason(encode(quarters(), "JPEG"))


# Metadata, warnings, threads


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize(
    "exif", [b"garbage", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0" + b"\xff" * 9]
)
@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP"])
def test_damaged_exif_is_ignored(image_format: str, exif: bytes) -> None:
    assert_close(images.decode_image(encode(quarters(), image_format, exif=exif)), quarters())


def test_damaged_exif_in_avif_is_ignored() -> None:
    exif = Image.Exif()
    exif[0x010F] = "maker"
    data = encode(quarters(), "AVIF", exif=exif)
    assert data.count(b"MM\0*") == 1
    assert_close(images.decode_image(data.replace(b"MM\0*", b"\xff\xff\xff\xff")), quarters())


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_damaged_exif_in_tiff_is_ignored() -> None:
    assert_close(
        images.decode_image(encode(quarters(), "TIFF", tiffinfo={0x8769: 2**31})), quarters()
    )


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_a_damaged_icc_profile_is_ignored(image_format: str) -> None:
    assert_close(
        images.decode_image(encode(quarters(), image_format, icc_profile=b"garbage")), quarters()
    )


@pytest.mark.parametrize(
    "extra",
    [
        chunk(b"tEXt", b"key\0value", damaged=True),
        chunk(b"zTXt", b"key\0\0" + zlib.compress(bytes(3_000_000))),
        chunk(b"iCCP", b"name\0\0" + zlib.compress(bytes(3_000_000))),
        chunk(b"eXIf", b"II*\0", damaged=True),
    ],
)
def test_a_damaged_png_chunk_is_ignored(extra: bytes) -> None:
    assert np.array_equal(images.decode_image(png_with(extra)), np.array(quarters()))


def test_a_damaged_png_chunk_leaves_orientation_and_transparency_intact() -> None:
    exif = Image.Exif()
    exif[0x0112] = 3
    data = encode(quarters(), "PNG", exif=exif, transparency=RED)
    data = data[:33] + chunk(b"tEXt", b"key\0value", damaged=True) + data[33:]
    image = images.decode_image(data)
    assert image[-1, -1].tolist() == [255, 255, 255]
    assert image[0, 0].tolist() == list(YELLOW)


def test_warnings_are_those_of_pillow_and_refuse_no_image() -> None:
    with pytest.warns(UserWarning, match="APNG"):
        assert_close(images.decode_image(NOISY), quarters())
    assert_close(images.decode_image(NOISY), quarters())  # where warnings are errors, as here


def test_many_threads_decode_at_once() -> None:
    good = [
        encode(quarters(), image_format)
        for image_format in ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "AVIF")
    ]
    bad = [data[: len(data) // 2] for data in good]

    def outcome(data: bytes) -> str:
        try:
            return str(images.decode_image(data).shape)
        except ImageError:
            return "error"

    sources = [*good, NOISY, *bad] * 20
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(outcome, sources))
    assert outcomes == (["(64, 96, 3)"] * 7 + ["error"] * 6) * 20


# HEIC


def heic() -> bytes:
    pillow_heif = pytest.importorskip("pillow_heif")
    file = io.BytesIO()
    pillow_heif.from_pillow(quarters()).save(file)
    return file.getvalue()


def test_heic_is_decoded() -> None:
    assert_close(images.decode_image(heic()), quarters())


def test_truncated_heic_is_reported() -> None:
    data = heic()
    for length in range(12, len(data) - 16, 25):
        assert "truncated HEIC" in reason(data[:length])


def test_heic_without_its_extra_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    head = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + b"\0" * 40
    assert reason(head) == f"reading HEIC needs an extra: {install_command('heic')}"


def test_import_is_light() -> None:
    code = (
        "import sys, bm25v; from bm25v import images\n"
        "assert 'PIL.JpegImagePlugin' not in sys.modules and 'pillow_heif' not in sys.modules\n"
    )
    done = run_python(code)
    assert (done.stdout, done.stderr) == ("", "")


# Arrays and tensors


RGBA = np.dstack([np.asarray(quarters()), np.full((64, 96), 255, np.uint8)])


@pytest.mark.parametrize(
    "array",
    [
        np.asarray(quarters()),
        np.asarray(quarters()) / 255,
        (np.asarray(quarters()) / 255).astype(np.float16),
        np.asarray(quarters()).transpose(2, 0, 1),
        (np.asarray(quarters()) / np.float32(255)).transpose(2, 0, 1),
        RGBA,
        RGBA.transpose(2, 0, 1) / 255,
    ],
)
def test_arrays_of_any_layout_are_images(array: NDArray[Any]) -> None:
    np.testing.assert_array_equal(images.read_input(array), np.asarray(quarters()))


def test_grey_and_transparent_arrays_become_rgb() -> None:
    grey = np.arange(24, dtype=np.uint8).reshape(4, 6)
    for array in (grey, grey[..., None], grey[None]):
        np.testing.assert_array_equal(images.read_input(array), np.dstack([grey] * 3))
    transparent = np.zeros((5, 7, 4), np.uint8)
    np.testing.assert_array_equal(images.read_input(transparent), np.full((5, 7, 3), 255))
    assert images.read_input(np.zeros((3, 8, 3), np.uint8)).shape == (3, 8, 3)  # type: ignore[union-attr]


def test_tensors_are_images() -> None:
    torch = pytest.importorskip("torch")
    pixels = np.asarray(quarters())
    tensor = torch.tensor(pixels.transpose(2, 0, 1) / 255, requires_grad=True)
    np.testing.assert_array_equal(images.read_input(tensor), pixels)
    np.testing.assert_array_equal(images.read_input(torch.tensor(pixels)), pixels)


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (np.zeros((8, 8, 2), np.uint8), r"shape \(8, 8, 2\)"),
        (np.zeros((1, 3, 8, 8), np.uint8), "shape"),
        (np.zeros((0, 8, 3), np.uint8), "shape"),
        (np.zeros((8, 8, 3), np.int64), "int64 is not an image: give uint8 or floats"),
        (np.full((8, 8, 3), 200.0), "values from 200 to 200"),
        (np.full((8, 8, 3), np.nan), "values from nan"),
        (np.full((8, 8), -0.5), "give floats from 0 to 1"),
    ],
)
def test_other_arrays_are_refused(array: NDArray[Any], problem: str) -> None:
    with pytest.raises(InvalidOption, match=problem):
        images.read_input(array)


def test_a_tensor_is_one_image_of_a_search(photos: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    gallery = Gallery.create(tmp_path / "g", vocabulary="toy")
    gallery.add(photos)
    path = sorted(photos.iterdir())[0]
    tensor = torch.tensor(np.asarray(Image.open(path).convert("RGB"))).permute(2, 0, 1)
    assert gallery.search(tensor)[0].path == str(path)


# Walking folders


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def names(folder: Path, paths: list[Path]) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in paths]


def test_find_images_lists_every_image_once_sorted(tmp_path: Path) -> None:
    for name in ("b.jpg", "a/z.PNG", "a/b/c.heic", "c.tiff", "c.txt", "d", "a.jpg", "e.jpg/f.gif"):
        touch(tmp_path / name)
    for hidden in (".git/b.jpg", "a/.c/d.jpg", "a/._z.PNG"):
        touch(tmp_path / hidden)
    paths = list(images.find_images(tmp_path))
    assert names(tmp_path, paths) == [
        "a.jpg",
        "b.jpg",
        "c.tiff",
        "a/z.PNG",
        "a/b/c.heic",
        "e.jpg/f.gif",
    ]
    assert list(images.find_images(str(tmp_path))) == paths


def test_find_enters_a_hidden_folder_given_by_name(tmp_path: Path) -> None:
    touch(tmp_path / ".hidden" / "a.jpg")
    assert names(tmp_path, list(images.find_images(tmp_path / ".hidden"))) == [".hidden/a.jpg"]


def test_find_recognises_every_suffix(tmp_path: Path) -> None:
    for suffix in images.SUFFIXES:
        touch(tmp_path / f"x{suffix}", tmp_path / f"y{suffix.upper()}", tmp_path / f"z{suffix}x")
    assert len(list(images.find_images(tmp_path))) == 2 * len(images.SUFFIXES)


def test_find_skips_galleries_and_thumbnails_of_the_system(tmp_path: Path) -> None:
    touch(tmp_path / "a.jpg", tmp_path / "g" / "thumbs" / "b.jpg", tmp_path / "Thumbs.db")
    touch(tmp_path / "g" / "catalog.sqlite")
    assert names(tmp_path, list(images.find_images(tmp_path))) == ["a.jpg"]
    assert list(images.find_images(tmp_path / "g")) == []


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (".trashed-1700000000-a.jpg", "trash"),
        (".Trash-1000/files/a.jpg", "trash"),
        (".Trashes/501/a.jpg", "trash"),
        (".bm25v-trash/a.jpg", "trash"),
        ("$RECYCLE.BIN/S-1-5-21/a.jpg", "trash"),
        ("#recycle/a.jpg", "trash"),
        ("@Recycle/a.jpg", "trash"),
        ("sub/@eaDir/a.jpg/SYNO_L.jpg", "derivatives"),
        ("Catalog Previews.lrdata/0/a.jpg", "derivatives"),
        ("My.photoslibrary/resources/derivatives/a.jpg", "derivatives"),
        ("My.photoslibrary/Thumbnails/a.jpg", "derivatives"),
        ("iPhoto Library/Data/2008/a.jpg", "derivatives"),
        ("iPhoto Library.photolibrary/Previews/a.jpg", "derivatives"),
        ("._a.jpg", "sidecars"),
        ("a.xmp", "sidecars"),
        ("A.AAE", "sidecars"),
        ("a.thm", "sidecars"),
        ("a.NEF", ".nef"),
        ("a.cr2", ".cr2"),
        ("a.dng", ".dng"),
        (".hidden.jpg", None),
        (".thumbnails/a.jpg", None),
    ],
)
def test_find_skips_trash_derivatives_sidecars_and_raw_files(
    tmp_path: Path, path: str, reason: str | None
) -> None:
    kept = {"kept/a.jpg"}
    for library in ("My.photoslibrary", "iPhoto Library", "iPhoto Library.photolibrary"):
        if path.startswith(library + "/"):
            kept.add(f"kept/{library}/Originals/b.jpg")
    touch(*(tmp_path / name for name in kept))
    skipped = tmp_path / "kept" / path
    skipped.parent.mkdir(parents=True, exist_ok=True)
    make_image(1).save(skipped, "JPEG")
    reasons: list[str] = []
    found = images.find_images(tmp_path, on_skip=lambda path, reason: reasons.append(reason))
    assert set(names(tmp_path, list(found))) == kept
    assert reasons == ([] if reason is None else [reason])
    if skipped.name == "a.jpg":
        assert list(images.find_images(skipped.parent)) == [skipped], "it is given by its path"


def test_find_takes_folders_that_are_only_called_like_what_is_skipped(tmp_path: Path) -> None:
    paths = ["2023.raw/a.jpg", "b.xmp/a.jpg", "iPhoto Library/2004/a.jpg", "previews/a.jpg"]
    touch(*(tmp_path / path for path in paths))
    assert sorted(names(tmp_path, list(images.find_images(tmp_path)))) == paths


def test_find_enters_the_originals_of_a_photos_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path / "My.photoslibrary" / "originals" / "0" / "a.jpg")
    touch(tmp_path / "Old.photoslibrary" / "Masters" / "2012" / "b.jpg")
    expected = ["My.photoslibrary/originals/0/a.jpg", "Old.photoslibrary/Masters/2012/b.jpg"]
    assert names(tmp_path, list(images.find_images(tmp_path))) == expected
    touch(tmp_path / "My.photoslibrary" / "resources" / "derivatives" / "a.jpg")
    assert len(list(images.find_images(tmp_path / "My.photoslibrary"))) == 1
    monkeypatch.chdir(tmp_path / "My.photoslibrary")
    assert list(images.find_images(".")) == [Path("originals/0/a.jpg")]


def test_patterns_of_strangers_take_no_memory_for_good() -> None:
    def match(first: int, last: int) -> int:
        tracemalloc.start()
        for number in range(first, last):
            assert images.matches_pattern(f"{number}.png", ("raw", f"{number}.*"))
        n_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return n_bytes

    match(0, 600)  # fills every cache
    assert match(600, 2600) < 2 * match(2600, 3200)


PATHS = ("cat.png", "raw/cat.png", "raw.png", "2023/cat.png", "2023/raw/a.jpg", "2023/a/b/cat.png")


@pytest.mark.parametrize(
    ("pattern", "left_out"),  # as git's check-ignore does
    [
        ("raw", ["2023/raw/a.jpg", "raw/cat.png"]),
        ("raw/", ["2023/raw/a.jpg", "raw/cat.png"]),
        ("/raw", ["raw/cat.png"]),
        ("./raw", ["raw/cat.png"]),
        ("raw/cat.png", ["raw/cat.png"]),
        ("2023/raw", ["2023/raw/a.jpg"]),
        ("2023", ["2023/a/b/cat.png", "2023/cat.png", "2023/raw/a.jpg"]),
        ("*.jpg", ["2023/raw/a.jpg"]),
        ("/*.png", ["cat.png", "raw.png"]),
        ("2023/*.png", ["2023/cat.png"]),
        ("2023/**/cat.png", ["2023/a/b/cat.png", "2023/cat.png"]),
        ("ra?.png", ["raw.png"]),
        ("raw*", ["2023/raw/a.jpg", "raw.png", "raw/cat.png"]),
        ("RAW", []),
        ("w", []),
        ("[r]aw", []),
    ],
)
def test_find_leaves_out_what_matches_a_pattern(
    tmp_path: Path, pattern: str, left_out: list[str]
) -> None:
    touch(*(tmp_path / path for path in PATHS))
    kept = names(tmp_path, list(images.find_images(tmp_path, exclude=[pattern])))
    assert sorted(set(PATHS) - set(kept)) == left_out


def test_find_does_not_enter_what_is_excluded(tmp_path: Path) -> None:
    touch(tmp_path / "a.jpg", tmp_path / "locked" / "b.jpg")
    (tmp_path / "broken.jpg").symlink_to(tmp_path / "missing")
    (tmp_path / "linked").symlink_to(tmp_path / "locked")
    errors: list[Path] = []
    paths = images.find_images(
        tmp_path,
        exclude=["l*ked", "broken.*"],
        on_error=lambda path, error: errors.append(path),
    )
    assert names(tmp_path, list(paths)) == ["a.jpg"]
    assert errors == []
    with pytest.raises(InvalidOption, match="'/' is an empty pattern"):
        list(images.find_images(tmp_path, exclude=["*.png", "/"]))


def test_find_skips_a_compacted_gallery(photos: Path) -> None:
    gallery = Gallery.create(photos / "gallery.bm25v", vocabulary="toy")
    gallery.add(photos)
    gallery.remove(photos / "0.png")
    gallery.compact()
    assert (gallery.path / "bags.1.rows").exists()
    assert not (gallery.path / "bags.rows").exists()
    touch(gallery.path / "thumbnails" / "a.jpg")
    expected = sorted(path for path in photos.iterdir() if path.suffix == ".png")
    assert list(images.find_images(photos)) == expected


def test_find_follows_links_and_breaks_loops(tmp_path: Path) -> None:
    touch(tmp_path / "a" / "one.jpg", tmp_path / "outside" / "two.jpg")
    (tmp_path / "a" / "loop").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "a" / "linked").symlink_to(tmp_path / "outside")
    (tmp_path / "a" / "file.jpg").symlink_to(tmp_path / "outside" / "two.jpg")
    errors: list[Path] = []
    paths = list(
        images.find_images(tmp_path / "a", on_error=lambda path, error: errors.append(path))
    )
    assert names(tmp_path / "a", paths) == ["file.jpg", "one.jpg", "linked/two.jpg"]
    assert errors == []


def test_a_folder_is_listed_under_its_own_name_before_links_to_it(tmp_path: Path) -> None:
    touch(tmp_path / "z" / "one.jpg")
    (tmp_path / "a").symlink_to(tmp_path / "z")
    assert names(tmp_path, list(images.find_images(tmp_path))) == ["z/one.jpg"]


def test_large_images_are_reduced_before_conversion() -> None:
    large = Image.fromarray(
        np.arange(4 * 900 * 1200, dtype=np.uint32).astype(np.uint8).reshape(900, 1200, 4)
    )
    data = encode(large, "PNG")
    assert images.decode_image(data).shape == (900, 1200, 3)
    assert images.decode_image(data, short_side=200).shape == (225, 300, 3)
    assert images.decode_image(data, short_side=500).shape == (900, 1200, 3)


def test_find_reports_what_it_cannot_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path / "a.jpg", tmp_path / "locked" / "b.jpg", tmp_path / "z.jpg")
    (tmp_path / "broken.jpg").symlink_to(tmp_path / "missing")
    (tmp_path / "circle.jpg").symlink_to(tmp_path / "circle.jpg")
    scandir = os.scandir

    def deny(path: Path) -> Any:  # root may read everything, so chmod proves nothing
        if path.name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", deny)
    errors: dict[str, str] = {}

    def collect(path: Path, error: ImageError) -> None:
        errors[path.name] = str(error)

    assert names(tmp_path, list(images.find_images(tmp_path, on_error=collect))) == [
        "a.jpg",
        "z.jpg",
    ]
    assert names(tmp_path, list(images.find_images(tmp_path))) == ["a.jpg", "z.jpg"]
    assert errors.keys() == {"locked", "broken.jpg", "circle.jpg"}
    assert errors["locked"] == "permission denied"
    assert errors["broken.jpg"] == "is a broken link: its target does not exist"
    with pytest.raises(ImageError, match="permission denied"):
        list(images.find_images(tmp_path / "locked"))


def test_find_needs_a_folder(tmp_path: Path) -> None:
    touch(tmp_path / "a.jpg")
    with pytest.raises(ImageError, match="does not exist"):
        list(images.find_images(tmp_path / "missing"))
    with pytest.raises(ImageError, match="is not a folder"):
        list(images.find_images(tmp_path / "a.jpg"))
