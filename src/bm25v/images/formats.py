"""Image formats, detected from the first bytes of a file and never from its name."""

import re

from bm25v.errors import ImageError

HEAD_SIZE = 256
"""How many bytes of a file `detect_format` and `is_image` need."""

PLUGINS = {
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
    "QOI": ("PIL.QoiImagePlugin", "QoiImageFile"),
}
"""The module and the class that decode each format."""

SUFFIXES: frozenset[str] = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp"}
    | {".tif", ".tiff", ".avif", ".avifs", ".heic", ".heif", ".hif", ".mpo"}
    | {".jp2", ".j2k", ".pbm", ".pgm", ".ppm", ".pnm", ".pfm", ".qoi"}
)
"""A file with one of these suffixes counts as an image without a look at its content."""

_STARTS = {
    "JPEG": rb"\xff\xd8\xff",
    "PNG": rb"\x89PNG\r\n\x1a\n",
    "WebP": rb"RIFF....WEBP",
    "GIF": rb"GIF8",
    "BMP": rb"BM....\0\0\0\0",
    "TIFF": rb"II[*+]\0|MM\0[*+]",
    "JPEG 2000": rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51",
    "PNM": rb"P[1-6f]\s+(#|\d)",
    "QOI": rb"qoif.{8}[\x03\x04][\x00\x01]",
    # ISO media files list their brands first; an AVIF may have those of HEIC too.
    "AVIF": rb"....ftyp(?:....)*?(?:avif|avis)",
    "HEIC": rb"....ftyp(?:....)*?(?:he[iv][cxms]|mif1|mif2|msf1)",
    # Formats that cannot be decoded.
    "Photoshop": rb"8BPS",
    "JPEG XL": rb"\xff\x0a|\0\0\0\x0cJXL ",
    "PostScript": rb"%!PS-Adobe|\xc5\xd0\xd3\xc6",
    "GIMP": rb"gimp xcf",
    "PAM": rb"P7\s",
}


def detect_format(head: bytes) -> str:
    """Return the format of a file that can be decoded, or raise with the reason.

    >>> detect_format(b"GIF89a, then the pixels")
    'GIF'
    """
    image_format = _match_start(head)
    if image_format is None:
        raise ImageError(f"is not an image in a supported format ({', '.join(PLUGINS)})")
    if image_format not in PLUGINS:
        raise ImageError(f"{image_format} files are not supported: convert it to PNG or JPEG")
    return image_format


def is_image(head: bytes) -> bool:
    """Return whether a file is an image, in a format that can be decoded or not.

    >>> is_image(b"8BPS of Photoshop"), is_image(b"Dear Sir or Madam")
    (True, False)
    """
    return _match_start(head) is not None


def _match_start(head: bytes) -> str | None:
    matches = (name for name, start in _STARTS.items() if re.match(start, head, re.DOTALL))
    return next(matches, None)
