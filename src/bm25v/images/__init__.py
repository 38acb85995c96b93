"""Files or bytes become upright RGB arrays; folders become the picture files in them.

`files` opens, `kinds` tells formats apart, `decoding` reads one picture, `folders` walks, `reasons`
puts what went wrong into words, `silence` keeps the decoders' warnings away. Whatever is wrong with
a picture ends in one `ImageError` whose message is the reason. Not this room's job: what a model
wants.
"""

from bm25v.images.decoding import MAX_PIXELS, decode, resize, size, thumbnail
from bm25v.images.files import MAX_BYTES, Source, opened
from bm25v.images.folders import SUFFIXES, find
from bm25v.images.kinds import HEAD, kind

__all__ = [
    "HEAD",
    "MAX_BYTES",
    "MAX_PIXELS",
    "SUFFIXES",
    "Source",
    "decode",
    "find",
    "kind",
    "opened",
    "resize",
    "size",
    "thumbnail",
]
