"""Files and bytes become upright RGB arrays; folders become the image files in them."""

from bm25v.images.decode import (
    ImageInput,
    NamedImages,
    decode_image,
    decode_with_metadata,
    make_thumbnail,
    read_input,
    read_metadata,
    resize_image,
)
from bm25v.images.folders import find_images, matches_pattern
from bm25v.images.formats import HEAD_SIZE, SUFFIXES, detect_format
from bm25v.images.metadata import Metadata
from bm25v.images.streams import Source, open_stream

__all__ = [
    "HEAD_SIZE",
    "SUFFIXES",
    "ImageInput",
    "Metadata",
    "NamedImages",
    "Source",
    "decode_image",
    "decode_with_metadata",
    "detect_format",
    "find_images",
    "make_thumbnail",
    "matches_pattern",
    "open_stream",
    "read_input",
    "read_metadata",
    "resize_image",
]
