"""Images that are made to take memory or time end in pixels or in an `ImageError`, within limits.

Each image is decoded in a process of its own, which reports its peak of memory and its CPU time.
"""

import json
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.test_images import chunk, encode

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the child process is forked")

MAX_PEAK = 700_000_000
MAX_SECONDS = 15
SIDE = 14_000  # below the limit of pixels
SPARSE = 1_900_000_000  # such a file takes no space on disk

CHILD = """
import json, os, resource, sys
from bm25v import images, privacy
from bm25v.errors import ImageError

privacy.own_process()
resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))
for path in sys.stdin.read().splitlines():
    if child := os.fork():
        _, status, usage = os.wait4(child, 0)
        here = int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        print(json.dumps({
            "name": os.path.basename(path), "status": status,
            "peak": usage.ru_maxrss * 1024 - here, "seconds": usage.ru_utime + usage.ru_stime,
        }), flush=True)
    else:
        try:
            images.decode_image(path, short_side=448)
            code = 10
        except ImageError:
            code = 20
        os._exit(code)
"""

Writer = Callable[[Path], object]


def solid(mode: str, side: int) -> Image.Image:
    return Image.new(mode, (side, side), 1)


SMALL = Image.fromarray(np.arange(64 * 48 * 3, dtype=np.uint16).astype(np.uint8).reshape(48, 64, 3))


def content(data: bytes) -> Writer:
    return lambda path: path.write_bytes(data)


def extended(data: bytes) -> Writer:
    """A file that goes on after its image."""

    def write(path: Path) -> None:
        path.write_bytes(data)
        os.truncate(path, SPARSE)

    return write


# PNG


def png(
    bits: int, colours: int, side: int, *, n_rows: int | None = None, extra: bytes = b""
) -> bytes:
    """A PNG of zeros; fewer rows than the header says make it a lie."""
    samples = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colours]
    row = bytes(1 + (side * samples * bits + 7) // 8)
    packer = zlib.compressobj(1)
    n_rows = side if n_rows is None else n_rows
    rows = b"".join(packer.compress(row) for _ in range(n_rows)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, bits, colours, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra
    return start + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


PALETTE = chunk(b"PLTE", bytes(range(30))) + chunk(b"tRNS", bytes([0, 128, 255]))


def png_cases() -> dict[str, Writer]:
    cases: dict[str, Writer] = {
        "grey16.png": content(png(16, 0, SIDE)),
        "one_bit.png": content(png(1, 0, SIDE)),
        "palette.png": content(png(8, 3, SIDE, extra=PALETTE)),
        "rgba.png": content(png(8, 6, 12_000)),
        "text_bomb.png": content(
            png(8, 2, 64, extra=chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(10**8))) * 9)
        ),
        "chunks.png": content(png(8, 2, 64, extra=chunk(b"prVt", b"") * 120_000)),
        "private.png": content(png(8, 2, 64, extra=chunk(b"prVt", bytes(10**6)) * 30)),
    }
    for bits, colours in ((8, 0), (16, 2), (8, 2), (8, 4), (16, 4), (8, 6), (16, 6), (4, 3)):
        extra = PALETTE if colours == 3 else b""
        data = png(bits, colours, SIDE, n_rows=1, extra=extra)
        cases[f"lie_{bits}_{colours}.png"] = content(data)
    for name in (b"prVt", b"iCCP", b"eXIf", b"PLTE", b"iTXt"):
        cases[f"sparse_{name.decode()}.png"] = sparse_png(name)
    return cases


def sparse_png(name: bytes) -> Writer:
    def write(path: Path) -> None:
        data = png(8, 2, 64)
        with path.open("wb") as file:
            file.write(data[:33] + struct.pack(">I", SPARSE) + name)
            file.seek(SPARSE + 4, os.SEEK_CUR)
            file.write(data[33:])

    return write


# JPEG


def jpeg(mode: str, side: int, *, progressive: bool) -> bytes:
    """A small JPEG whose header says that it is large."""
    data = encode(SMALL.convert(mode), "JPEG", progressive=progressive)
    at = data.index(b"\xff\xc2" if progressive else b"\xff\xc0") + 5
    return data[:at] + struct.pack(">HH", side, side) + data[at + 4 :]


def repeat_scan(data: bytes, times: int) -> bytes:
    start = data.rindex(b"\xff\xc4", 0, data.rindex(b"\xff\xda"))
    return data[:-2] + data[start:-2] * times + data[-2:]


def sparse_segments(path: Path) -> None:
    """A JPEG with 1.9 GB of colour profiles."""
    data = encode(SMALL, "JPEG")
    segment = b"\xff\xe2\xff\xffICC_PROFILE\0\1\1"
    with path.open("wb") as file:
        file.write(data[:2])
        for _ in range(SPARSE // 2**16):
            file.write(segment)
            file.seek(2**16 + 1 - len(segment), os.SEEK_CUR)
        file.write(data[2:])


def jpeg_cases() -> dict[str, Writer]:
    cases: dict[str, Writer] = {
        "scans.jpg": content(
            repeat_scan(encode(solid("L", 2000), "JPEG", progressive=True), 20_000)
        ),
        "few_scans.jpg": content(repeat_scan(jpeg("RGB", 8000, progressive=True), 80)),
        "segments.jpg": sparse_segments,
        "padding.jpg": content(b"\xff\xd8" + b"\xff" * 5_000_000 + encode(SMALL, "JPEG")[2:]),
    }
    for mode in ("L", "RGB", "CMYK"):
        for side in (8000, 9500, SIDE, 65_500):
            data = jpeg(mode, side, progressive=True)
            cases[f"progressive_{mode}_{side}.jpg"] = content(data)
        cases[f"baseline_{mode}.jpg"] = content(jpeg(mode, SIDE, progressive=False))
    return cases


# Other formats


def replace(data: bytes, old: bytes, new: bytes) -> bytes:
    assert old in data
    return data.replace(old, new)


def gif_cases() -> dict[str, Writer]:
    head = b"GIF89a\1\0\1\0\x80\0\0\0\0\0\xff\xff\xff"
    frame = b",\0\0\0\0" + struct.pack("<HH", SIDE, SIDE) + b"\0\2\2L\1\0;"
    comment = b"!\xfe" + (b"\xff" + b"c" * 255) * 20_000 + b"\0"
    return {
        "large.gif": content(encode(solid("P", SIDE), "GIF")),
        "frame.gif": content(head + frame),
        "comment.gif": content(head + comment + b",\0\0\0\0\1\0\1\0\0\2\2L\1\0;"),
        "disposed.gif": content(head + b"!\xf9\4\x09\0\0\0\0" + frame),
    }


def webp_and_avif_cases() -> dict[str, Writer]:
    webp = encode(SMALL.convert("RGBA"), "WEBP", exif=b"Exif\0\0II*\0")
    at = webp.index(b"VP8X") + 12
    avif = encode(solid("RGB", 7400), "AVIF", speed=10)
    return {
        "large.webp": content(encode(solid("RGBA", 5800), "WEBP", lossless=True, method=0)),
        "extended.webp": extended(encode(SMALL, "WEBP")),
        "extended.avif": extended(encode(SMALL, "AVIF")),
        "canvas.webp": content(webp[:at] + b"\xff\x3f\0\xff\x3f\0" + webp[at + 6 :]),
        "large_canvas.webp": content(webp[:at] + b"\xff\x2f\0\xff\x2f\0" + webp[at + 6 :]),
        "large.avif": content(avif),
        "lie.avif": content(
            replace(avif, struct.pack(">II", 7400, 7400), struct.pack(">II", 64, 64))
        ),
        "claim.avif": content(
            replace(avif, struct.pack(">II", 7400, 7400), struct.pack(">II", SIDE, SIDE))
        ),
    }


def tiff_tag(data: bytes, tag: int, value: int) -> bytes:
    """Change a tag that is one number."""
    for kind in (3, 4):
        at = data.find(struct.pack("<HHI", tag, kind, 1))
        if at >= 0:
            entry = struct.pack("<HHII", tag, 4, 1, value)
            return data[:at] + entry + data[at + 12 :]
    raise AssertionError(tag)


def sparse_tiff(path: Path) -> None:
    """A TIFF whose tag with layers of an editor takes 1.9 GB."""
    data = encode(SMALL, "TIFF", tiffinfo={37724: b"layers of an editor"})
    at = data.index(struct.pack("<HH", 37724, 7))
    with path.open("wb") as file:
        file.write(data[: at + 4] + struct.pack("<II", SPARSE, len(data)) + data[at + 12 :])
        file.truncate(len(data) + SPARSE)


def tiff_cases() -> dict[str, Writer]:
    packed = {"compression": "tiff_adobe_deflate"}
    small = encode(SMALL, "TIFF", **packed)
    wide = tiff_tag(tiff_tag(small, 256, SIDE), 257, SIDE)
    at = struct.unpack_from("<I", small, 4)[0]
    end = at + 2 + 12 * struct.unpack_from("<H", small, at)[0]
    cases: dict[str, Writer] = {
        "strip.tiff": content(tiff_tag(wide, 278, SIDE)),
        "loop.tiff": content(small[:end] + struct.pack("<I", at) + small[end + 4 :]),
        "values.tiff": content(
            replace(small, struct.pack("<HHI", 273, 4, 1), b"\x11\1\4\0\0\0\0\x70")
        ),
        "layers.tiff": sparse_tiff,
        "turned.tiff": content(encode(solid("L", 10_000), "TIFF", tiffinfo={274: 6}, **packed)),
    }
    for mode in ("1", "L", "RGB", "RGBA", "CMYK", "I;16", "F"):
        data = encode(Image.new(mode, (64, 48)), "TIFF")
        cases[f"lie_{mode.replace(';', '')}.tiff"] = content(
            tiff_tag(tiff_tag(data, 256, 13_000), 257, 13_000)
        )
    return cases


def other_cases() -> dict[str, Writer]:
    j2k = encode(SMALL, "JPEG2000", no_jp2=True)
    size = struct.pack(">II", 64, 48)
    bmp = encode(SMALL, "BMP")
    return {
        "claim.pgm": content(b"P5 14000 14000 4095 " + bytes(1000)),
        "plain.ppm": content(b"P3 9000 9000 255 " + b"1 " * 500_000),
        "claim.pfm": content(b"Pf 14000 14000 -1.0\n" + bytes(1000)),
        "runs.qoi": content(b"qoif" + struct.pack(">IIBB", 8000, 8000, 3, 0) + b"\xfd" * 1_100_000),
        "claim.bmp": content(
            replace(bmp, struct.pack("<ii", 64, 48), struct.pack("<ii", SIDE, SIDE))
        ),
        "large.j2k": content(encode(solid("RGB", 3000), "JPEG2000", no_jp2=True)),
        "claim.j2k": content(replace(j2k, size, struct.pack(">II", 60_000, 60_000))),
        "long.png": content(png(8, 2, 1)[:16] + struct.pack(">II", 150_000_000, 1) + bytes(99)),
    }


CASES = (png_cases, jpeg_cases, gif_cases, webp_and_avif_cases, tiff_cases, other_cases)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("make_cases", CASES, ids=lambda make_cases: make_cases.__name__)
def test_no_image_takes_more_than_its_share_of_memory_and_time(
    make_cases: Callable[[], dict[str, Writer]], tmp_path: Path
) -> None:
    paths = []
    for name, write in make_cases().items():
        paths.append(str(tmp_path / name))
        write(tmp_path / name)
    run = subprocess.run(
        [sys.executable, "-c", CHILD], input="\n".join(paths), capture_output=True, text=True
    )
    outcomes = [json.loads(line) for line in run.stdout.splitlines()]
    assert run.stderr == ""
    assert len(outcomes) == len(paths)
    for outcome in outcomes:
        print(outcome)
        assert os.waitstatus_to_exitcode(outcome["status"]) in (10, 20), outcome
        assert outcome["peak"] < MAX_PEAK, outcome
        assert outcome["seconds"] < MAX_SECONDS, outcome
