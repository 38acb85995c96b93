"""What kind of picture a file is, told by its first bytes, never by its name."""

import re

from bm25v.errors import ImageError

HEAD = 256  # bytes that tell

READABLE = ("JPEG", "PNG", "WebP", "GIF", "BMP", "TIFF", "AVIF", "HEIC", "JPEG 2000", "PNM")

_READABLE_STARTS = {
    "JPEG": rb"\xff\xd8\xff",
    "PNG": rb"\x89PNG\r\n\x1a\n",
    "WebP": rb"RIFF....WEBP",
    "GIF": rb"GIF8",
    "BMP": rb"BM....\0\0\0\0",
    "TIFF": rb"II[*+]\0|MM\0[*+]",
    "JPEG 2000": rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51",
    "PNM": rb"P[1-6]\s+(#|\d)",
}
_OTHER_STARTS = {
    "Photoshop": rb"8BPS",
    "JPEG XL": rb"\xff\x0a|\0\0\0\x0cJXL ",
    "PostScript": rb"%!PS-Adobe|\xc5\xd0\xd3\xc6",
    "GIMP": rb"gimp xcf",
    "PAM": rb"P7\s",
    "OLE (FlashPix, or an Office document)": rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
}
_BRANDS = {
    "AVIF": {b"avif", b"avis"},
    "HEIC": set(b"heic heix heim heis hevc hevx hevm hevs mif1 mif2 msf1".split()),
}


def kind(head: bytes) -> str:
    """Return which of the readable kinds a file is, or raise with a reason.

    >>> kind(b"GIF89a and so on")
    'GIF'
    """
    found = _match(head, _READABLE_STARTS) or _by_brand(head)
    if found is not None:
        return found
    other = _match(head, _OTHER_STARTS)
    if other is not None:
        raise ImageError(f"{other} files cannot be read: save it as PNG or JPEG")
    raise ImageError(f"not a picture of a known kind ({', '.join(READABLE)})")


def is_picture(head: bytes) -> bool:
    """Say whether a file is some kind of picture, readable or not.

    >>> is_picture(b"8BPS of Photoshop"), is_picture(b"Dear Sir or Madam")
    (True, False)
    """
    known = _match(head, _READABLE_STARTS) or _by_brand(head) or _match(head, _OTHER_STARTS)
    return known is not None


def _match(head: bytes, starts: dict[str, bytes]) -> str | None:
    found = (name for name, start in starts.items() if re.match(start, head, re.DOTALL))
    return next(found, None)


def _by_brand(head: bytes) -> str | None:
    if head[4:8] != b"ftyp":
        return None
    end = min(len(head), int.from_bytes(head[:4]))
    brands = {head[at : at + 4] for at in range(8, end, 4)}
    return next((name for name, wanted in _BRANDS.items() if brands & wanted), None)
