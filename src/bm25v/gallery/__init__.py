"""A folder on disk that holds an indexed collection.

`catalog` names the pictures and is the commit, `rows` are the append-only files of bags and dense
vectors, `writer` brings both to disk in the right order, `compaction` gives back the space of
removed pictures, `reading` encodes files, `indexing` brings a gallery in line with folders,
`snapshot` is what a reader searches, `gallery` the class people use, `results` what it answers,
`verify` checks it all, `failures` says what disk errors mean. Not this room's job: scores, words,
pixels.
"""

from bm25v.gallery.gallery import Gallery
from bm25v.gallery.results import Failure, Hit, IndexReport, Info, Results, Word

__all__ = ["Failure", "Gallery", "Hit", "IndexReport", "Info", "Results", "Word"]
