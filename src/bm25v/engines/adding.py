"""Images from memory go into a collection in Qdrant.

In: images with ids. Out: points, and a report. Images are encoded before the collection is marked
as written to, so that others wait only while points are written. Not this module's job: images that
have bags already (`loading`).
"""

import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import islice

from threadpoolctl import threadpool_limits

from bm25v.engines.fetched import read_records
from bm25v.engines.points import point_id
from bm25v.engines.qdrant import QdrantEngine
from bm25v.engines.writer import QdrantWriter
from bm25v.errors import ImageError
from bm25v.exchange.bags import ImageBags
from bm25v.gallery.encoding import EncodedImage, encode_images
from bm25v.gallery.indexing import Failure, IndexReport, check_named_images, check_workers
from bm25v.images import ImageInput
from bm25v.progress import Progress
from bm25v.threads import available_cpus

_BATCH = 256  # images that are written together


def add_images(
    writer: QdrantWriter,
    engine: QdrantEngine,
    named: Iterable[tuple[str, ImageInput]],
    *,
    total: int,
    workers: int | None,
    progress: Progress,
) -> IndexReport:
    """Add images, or replace those that have their ids; the same content is left as it is."""
    start, report, n_done = time.perf_counter(), IndexReport(), 0
    check_workers(workers)
    images = check_named_images(named)
    n_threads = workers or available_cpus()
    encoded = encode_images(images, engine.vocabulary, lambda _: None, n_threads, progress)
    with threadpool_limits(1, user_api="blas"), closing(encoded):
        while batch := list(islice(encoded, _BATCH)):
            outcomes = [outcome for _, outcome in batch]
            report.failed += [Failure(p, str(o)) for p, o in batch if isinstance(o, ImageError)]
            _write(writer, engine, [o for o in outcomes if isinstance(o, EncodedImage)], report)
            n_done += len(batch)
            progress("indexing", n_done, max(n_done, total))
    report.seconds = time.perf_counter() - start
    return report


def _write(
    writer: QdrantWriter, engine: QdrantEngine, images: Sequence[EncodedImage], report: IndexReport
) -> None:
    known = read_records(engine.calls, [point_id(image.file.path) for image in images])
    contents = {record.path: record.content for record in known.values()}
    changed = [
        ImageBags(file, encoding.bag, encoding.full_bag, encoding.dense_e.astype("float16"))
        for file, encoding in images
        if encoding is not None and contents.get(file.path) != file.content
    ]
    report.unchanged += len(images) - len(changed)
    if changed:
        with writer:
            added, updated, _ = writer.add(changed)
        report.added += added
        report.updated += updated
