"""A folder on disk that holds an indexed collection.

`catalog` names the pictures and is the commit, `rows` are the append-only files of bags and dense
vectors, `writer` brings both to disk in the right order, `compaction` gives back the space of
removed pictures, `reading` encodes files, `indexing` brings a gallery in line with folders,
`snapshot` is what a reader searches, `wishes` turns what people ask for into words, `searching`
finds and orders rows, `matching` says why, `naming` keeps what people call words, `usage` counts
words, `duplicates` finds pictures that are there twice (by `likeness`, `layout` and `stars`),
`gallery` is the class people use, `results` what it answers, `verify` checks it all, `failures`
says what disk errors mean. Not this room's job: scores, words, pixels.
"""

from bm25v.gallery.gallery import Gallery
from bm25v.gallery.results import (
    Failure,
    Hit,
    IndexReport,
    Info,
    Match,
    QueryWord,
    Results,
    Word,
)

__all__ = [
    "Failure",
    "Gallery",
    "Hit",
    "IndexReport",
    "Info",
    "Match",
    "QueryWord",
    "Results",
    "Word",
]
