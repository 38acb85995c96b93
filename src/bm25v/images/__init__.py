"""Files and bytes become upright RGB arrays; folders become the image files in them.

`formats` detects formats, `decode` decodes one image, `folders` finds image files. Not this
package's job: what a model needs.
"""

from bm25v.images.decode import (
    MAX_BYTES,
    MAX_PIXELS,
    ImageInput,
    Source,
    decode_image,
    make_thumbnail,
    open_stream,
    read_input,
    read_size,
    resize_image,
)
from bm25v.images.folders import find_images, is_excluded
from bm25v.images.formats import HEAD_SIZE, SUFFIXES, detect_format

__all__ = [
    "HEAD_SIZE",
    "MAX_BYTES",
    "MAX_PIXELS",
    "SUFFIXES",
    "ImageInput",
    "Source",
    "decode_image",
    "detect_format",
    "find_images",
    "is_excluded",
    "make_thumbnail",
    "open_stream",
    "read_input",
    "read_size",
    "resize_image",
]
