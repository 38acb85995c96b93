"""The index as a file in the Common Index File Format, which Lucene, PISA and others read.

In: an open gallery. Out: a file of protocol-buffer messages, each after its length: a header, a
list of postings for each word, a record for each image (github.com/osirrc/ciff). A term is the
number of a word. Term frequencies and lengths are the stored ones, in hundredths, because the
format has whole numbers only; so k1 must be 100 times as large elsewhere. Not this module's job:
reading such files.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bm25v.display import printable
from bm25v.exchange.galleries import read_unchanged
from bm25v.files import make_folder, replacing_file
from bm25v.gallery.snapshot import Snapshot
from bm25v.gallery.store import GalleryStore
from bm25v.progress import Progress
from bm25v.protobuf import delimited, field
from bm25v.vocabulary.bag import SCALE

_VERSION = 1
_RECORDS_AT_ONCE = 16_384
_LARGEST_NUMBER = 5  # bytes of a document number
_LARGEST_TF = 3  # bytes of a stored term frequency


def export_ciff(store: GalleryStore, path: Path, progress: Progress) -> int:
    """Write the index of a gallery to a file; return how many images it has."""
    make_folder(path.parent)

    def export(snapshot: Snapshot) -> int:
        with read_unchanged(store, snapshot), replacing_file(path) as file:
            file.write(delimited(_make_header(store, snapshot)))
            for message in _make_postings(snapshot):
                file.write(delimited(message))
            for message in _make_records(store, snapshot, progress):
                file.write(delimited(message))
        return snapshot.searcher.statistics.n

    return store.read(export)


def _make_header(store: GalleryStore, snapshot: Snapshot) -> bytes:
    meta, statistics = store.catalog.meta, snapshot.searcher.statistics
    n_lists, n = int(np.count_nonzero(statistics.df_v)), statistics.n
    description = (
        f"bm25v: visual words of vocabulary {printable(meta.vocabulary)} "
        f"({meta.vocabulary_fingerprint}). tf and lengths are in hundredths: BM25 with "
        f"k1 = {SCALE * meta.k1:g} and b = {meta.b:g} orders images as bm25v does."
    )
    numbers = (_VERSION, n_lists, n, n_lists, n, statistics.total_length)
    return (
        b"".join(field(number, value) for number, value in enumerate(numbers, start=1))
        + field(7, SCALE * statistics.average_length)
        + field(8, description)
    )


def _make_postings(snapshot: Snapshot) -> Iterator[bytes]:
    """Yield a message for each word that occurs, in the order of its number as a text."""
    bags = snapshot.bags[snapshot.rows]
    words_nk, tf_nk = bags["words"], bags["tf"]
    documents, slots = np.nonzero(tf_nk)
    words, tf = words_nk[documents, slots], tf_nk[documents, slots]
    by_word = np.argsort(words, kind="stable")  # documents stay in order
    documents, tf = documents[by_word], tf[by_word]
    df_v = snapshot.searcher.statistics.df_v
    ends_v = np.cumsum(df_v)
    for word in sorted(np.flatnonzero(df_v).tolist(), key=str):
        end, df = int(ends_v[word]), int(df_v[word])
        part = slice(end - df, end)
        gaps = np.diff(documents[part], prepend=0)
        counts = field(2, df) + field(3, int(tf[part].sum(dtype=np.int64)))
        yield field(1, str(word)) + counts + format_postings(gaps, tf[part])


def format_postings(gaps: NDArray[np.integer], tf: NDArray[np.integer]) -> bytes:
    """Return postings as fields of a list: the distance from the document before, and the tf.

    >>> format_postings(np.array([300, 1]), np.array([7, 124])).hex(" ")
    '22 05 08 ac 02 10 07 22 04 08 01 10 7c'
    """
    gap_bytes, has_gap = _to_varints(gaps, _LARGEST_NUMBER)
    tf_bytes, has_tf = _to_varints(tf, _LARGEST_TF)
    n = len(gaps)
    lengths = 2 + has_gap.sum(axis=1) + has_tf.sum(axis=1)
    constant = np.ones((n, 1), dtype=np.uint8)
    kinds = {"posting": 4 << 3 | 2, "docid": 1 << 3, "tf": 2 << 3}
    columns = [kinds["posting"] * constant, lengths[:, None], kinds["docid"] * constant]
    columns += [gap_bytes, kinds["tf"] * constant, tf_bytes]
    always = constant.astype(bool)
    used = np.hstack([always, always, always, has_gap, always, has_tf])
    flat: NDArray[np.uint8] = np.hstack(columns).astype(np.uint8)[used]
    return flat.tobytes()


def _to_varints(
    values: NDArray[np.integer], n_bytes: int
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Return each value as bytes of seven bits, the lowest first, and which bytes it needs."""
    shifted = values.astype(np.int64)[:, None] >> 7 * np.arange(n_bytes + 1)
    is_used = shifted[:, :-1] > 0
    is_used[:, 0] = True
    has_more = shifted[:, 1:] > 0
    return (shifted[:, :-1] & 127 | 128 * has_more).astype(np.uint8), is_used


def _make_records(store: GalleryStore, snapshot: Snapshot, progress: Progress) -> Iterator[bytes]:
    n = snapshot.searcher.statistics.n
    document = 0
    for first in range(0, snapshot.state.n_rows, _RECORDS_AT_ONCE):
        lengths = snapshot.bags["tf"][first : first + _RECORDS_AT_ONCE].sum(axis=1, dtype=np.int64)
        for record in store.catalog.images_between(first, first + _RECORDS_AT_ONCE):
            length = int(lengths[record.row - first])
            yield field(1, document) + field(2, printable(record.path)) + field(3, length)
            document += 1
        progress("exporting", document, n)
