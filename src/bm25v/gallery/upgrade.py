"""A gallery of an older version in, full bags for all of its rows out.

A pass over the files of the gallery's images, in the order of rows, committed in batches: one that
is interrupted goes on where it was. An image whose file is missing or has other content by now gets
the words of its bag alone. Not this module's job: new and changed files (`indexing`).
"""

import os
from collections.abc import Generator
from contextlib import closing

from threadpoolctl import threadpool_limits

from bm25v.gallery.encoding import EncodedImage, NamedImage, Outcome, encode_images
from bm25v.gallery.file_state import has_size_and_time
from bm25v.gallery.full_bags import plan_full_bags
from bm25v.gallery.records import ImageRecord
from bm25v.gallery.rows import read_bag
from bm25v.gallery.writer import Writer
from bm25v.progress import Progress
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.bag import FullBag, expand_bag

BATCH = 256  # images per commit


def add_full_bags(writer: Writer, vocabulary: Vocabulary, workers: int, progress: Progress) -> int:
    """Give full bags to all rows that have none; return how many rows that were."""
    if writer.has_full_bags:
        return 0
    state = writer.full_bags or plan_full_bags(vocabulary)
    if state is None:
        return 0
    if writer.full_bags is None:
        writer.start_full_bags(state)
    n_done = state.n_rows
    records = [record for record in writer.catalog.records() if record.row >= n_done]
    with_file = {record.row: NamedImage(record.path) for record in records if _has_file(record)}
    readable = iter(with_file.values())
    encoded = encode_images(readable, vocabulary, lambda content: None, workers, progress)
    with threadpool_limits(1, user_api="blas"), closing(encoded):
        for record in records:
            full_bag = _find_full_bag(encoded, record) if record.row in with_file else None
            if full_bag is None:
                bags = writer.files.bags.view(record.row + 1)
                full_bag = expand_bag(read_bag(bags[record.row]))
            writer.put_full_bag(full_bag, record.checksum)
            if writer.n_pending >= BATCH:
                writer.commit()
            progress("adding full bags", record.row + 1, len(records) + n_done)
    writer.commit()
    return len(records)


def _has_file(record: ImageRecord) -> bool:
    is_file = record.live and os.path.isabs(record.path)
    return is_file and has_size_and_time(record.path, record.size, record.mtime_ns)


def _find_full_bag(encoded: Generator[tuple[str, Outcome]], record: ImageRecord) -> FullBag | None:
    """Return the full bag of the next image; None if it is not the one that was indexed."""
    _, outcome = next(encoded)
    if not isinstance(outcome, EncodedImage) or outcome.encoding is None:
        return None
    return outcome.encoding.full_bag if outcome.file.content == record.content else None
