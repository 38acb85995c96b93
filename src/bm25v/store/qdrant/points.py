"""An image as a point of Qdrant: its id, vectors and payload, and filters as conditions on these.

A point has the sparse vector `words`, whose values are the saturated term frequencies of the index
bag under the frozen average length; the vector `dense`; and a payload with what filters, the second
stage and explanations need. Bags are rows of a gallery's files, in base64.

Every condition that Qdrant knows is checked there, exactly. Patterns of paths it does not know: the
paths are read, and those that match become a list of ids.
"""

import hashlib
import math
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pybase64 import b64decode, b64encode_as_string
from qdrant_client import models

from bm25v.errors import EngineError
from bm25v.index.bm25 import saturation
from bm25v.store.bags import RowArray, write_bag, write_full_bag
from bm25v.store.base import Filter
from bm25v.store.encoding import ImageBags
from bm25v.store.files import FileState
from bm25v.store.filters import (
    ImageFilter,
    folder_of_pattern,
    has_names,
    has_pattern,
    is_pattern,
    list_folders,
    time_bounds,
)
from bm25v.store.qdrant.calls import Calls
from bm25v.store.records import ImageRecord, to_seconds
from bm25v.vocabulary.bag import dequantise

if TYPE_CHECKING:
    from bm25v.store.qdrant.state import CollectionState

SPARSE, DENSE = "words", "dense"  # vectors
WORDS = "words"  # payload: all words of an image, for filters
FOLDERS = "folders"
BAGS = "bags"  # payload: both bags of an image, in base64
RECORD = ["path", "bytes", "content", "size", "mtime_ns", "width", "height", "taken"]

_NAMESPACE = uuid.UUID("5f1bd26c-2a0b-5b0e-9f29-0f6cf3f5a3c1")


def point_id(key: str) -> str:
    """Return the id of an image's point: that of its path, so that writing twice changes nothing.

    >>> point_id("/photos/cat.jpg") == point_id("/photos/cat.jpg")
    True
    """
    return str(uuid.uuid5(_NAMESPACE, os.fsencode(key).decode("latin-1")))


def fill_rows(images: Sequence[ImageBags], layout: np.dtype[np.void]) -> RowArray:
    rows = np.zeros(len(images), dtype=layout)
    for i, image in enumerate(images):
        write_bag(rows["bag"][i], image.bag)
        write_full_bag(rows["full"][i], image.full_bag)
    return rows


def make_points(
    images: Sequence[ImageBags], rows: RowArray, state: "CollectionState"
) -> list[models.PointStruct]:
    sparse = sparse_vectors(rows["bag"], state)
    words_nk, used_nk = rows["full"]["words"], rows["full"]["levels"] > 0
    points = []
    for i, image in enumerate(images):
        dense_e = np.asarray(image.dense_e, dtype=np.float32)
        if len(dense_e) != state.meta.dense_dim or not np.isfinite(dense_e).all():
            raise EngineError(f"{image.file.path}: its dense vector is damaged; index it again")
        vectors: dict[str, Any] = {DENSE: dense_e.tolist()}
        if sparse[i] is not None:
            vectors[SPARSE] = sparse[i]
        payload = _describe_file(image.file) | {
            WORDS: words_nk[i][used_nk[i]].tolist(),
            BAGS: b64encode_as_string(rows[i]),
        }
        payload["checksum"] = _checksum(payload, dense_e)
        point = models.PointStruct.model_construct(
            id=point_id(image.file.path), vector=vectors, payload=payload
        )
        points.append(point)
    return points


def sparse_vectors(bags: RowArray, state: "CollectionState") -> list[models.SparseVector | None]:
    """Return the saturated term frequencies of bags; None for a bag without words."""
    tf_nk, parameters = bags["tf"], state.meta.parameters
    lengths = tf_nk.sum(axis=1, dtype=np.int64)
    norms = state.frozen_statistics.length_norms(lengths, parameters)
    values_nk = saturation(dequantise(tf_nk), norms[:, None], parameters)
    used_nk = tf_nk > 0
    return [
        models.SparseVector.model_construct(
            indices=words[used].tolist(), values=values[used].tolist()
        )
        if used.any()
        else None
        for words, values, used in zip(bags["words"], values_nk, used_nk, strict=True)
    ]


def to_dense_query(vector_e: NDArray[np.float32], dim: int) -> tuple[list[float], float]:
    """Return a vector to compare with those of points, and the factor of its cosines.

    A vector of the first of two backbones compares with one half of those of points. Both halves
    have the same length, so that zeros for the other half make cosines smaller by a factor of √2.
    """
    n_missing = dim - len(vector_e)
    return [*vector_e.tolist(), *[0.0] * n_missing], math.sqrt(2) if n_missing else 1.0


@contextmanager
def reading_points(where: str) -> Iterator[None]:
    """Turn errors of payloads that bm25v did not write into an `EngineError`."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"{where} has points that bm25v did not write: {error!r}") from error


def read_bags(
    payloads: Sequence[Mapping[str, Any]], layout: np.dtype[np.void], where: str
) -> RowArray:
    with reading_points(where):
        texts = "".join([payload[BAGS] for payload in payloads])
        rows = np.frombuffer(b64decode(texts, validate=True), dtype=layout)
    if len(rows) != len(payloads):
        raise EngineError(f"{where} has bags of another size: it was not loaded as a whole")
    return rows


def read_path(payload: Mapping[str, Any]) -> str:
    if "bytes" in payload:
        return os.fsdecode(bytes.fromhex(payload["bytes"]))
    return str(payload["path"])


def to_record(payload: Mapping[str, Any]) -> ImageRecord:
    """Return what is known about an image, as a catalogue has it; there is no row."""
    content = bytes.fromhex(payload["content"])
    file = (read_path(payload), content, payload["size"], payload["mtime_ns"])
    metadata = (payload.get(key) for key in ("width", "height", "taken"))
    return ImageRecord(-1, *file, 0, True, *metadata)


def to_text(path: str) -> str:
    """Return a path as filters compare it: what is no text is written as \\x and a number."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _describe_file(file: FileState) -> dict[str, Any]:
    """Return the payload of a file: its path as text, and as bytes if it is no text."""
    record = file.to_record(-1, 0)
    text = to_text(file.path)
    payload: dict[str, Any] = {
        "path": text,
        "content": record.content.hex(),
        "size": record.size,
        "mtime_ns": record.mtime_ns,
        "seconds": record.mtime_ns // 10**9,
        FOLDERS: list_folders(text),
    }
    if text != file.path:
        payload["bytes"] = os.fsencode(file.path).hex()
    known = {"width": record.width, "height": record.height, "taken": record.taken}
    return payload | {key: value for key, value in known.items() if value is not None}


def _checksum(payload: Mapping[str, Any], dense_e: NDArray[np.float32]) -> str:
    """Return what is the same if nothing of an image has changed."""
    digest = hashlib.blake2b(dense_e.tobytes(), digest_size=8)
    digest.update(repr([payload.get(key) for key in (*RECORD, BAGS)]).encode())
    return digest.hexdigest()


def select_images(images: ImageFilter, calls: Calls) -> models.Filter | None:
    """Return the conditions of a filter by folder, date and size; None if there are none."""
    if not images:
        return None
    must: list[Any] = []
    if images.folders:
        must.append(models.Filter(should=_in_folders(images.folders, calls)))
    if images.names:
        must.append(_with_paths(calls, lambda path: has_names(path, images.names)))
    for size, side in ((images.min_size, "gte"), (images.max_size, "lte")):
        if size is not None:
            must += [
                _range(key, **{side: n}) for key, n in zip(("width", "height"), size, strict=True)
            ]
    if images.dates:
        has_no_date = models.IsEmptyCondition(is_empty=models.PayloadField(key="taken"))
        periods: list[Any] = []
        for dates in images.dates:
            by_file = [bound // 10**9 for bound in time_bounds(dates)]
            by_time: list[Any] = [has_no_date, _range("seconds", gte=by_file[0], lt=by_file[1])]
            taken = (to_seconds(dates.start), to_seconds(dates.end))
            periods += [_range("taken", gte=taken[0], lt=taken[1]), models.Filter(must=by_time)]
        must.append(models.Filter(should=periods))
    return models.Filter(must=must)


def allow_images(condition: Filter, selected: models.Filter | None) -> models.Filter | None:
    """Return everything that a query rules out as conditions; None if that is nothing.

    `selected` are the conditions of its folders, dates and sizes.
    """
    must: list[Any] = [_has(WORDS, group) for group in condition.must]
    must_not: list[Any] = [_has(WORDS, [word]) for word in condition.without]
    if selected is not None:
        must.append(selected)
    if condition.own_paths:
        must_not.append(models.HasIdCondition(has_id=list(map(point_id, condition.own_paths))))
    if condition.own_contents:
        contents = sorted(content.hex() for content in condition.own_contents)
        must_not.append(_has("content", contents))
    return models.Filter(must=must or None, must_not=must_not or None) if condition else None


def at_or_below(paths: Sequence[str]) -> list[Any]:
    ids: list[Any] = [point_id(path) for path in paths]
    return [_has(FOLDERS, list(map(to_text, paths))), models.HasIdCondition(has_id=ids)]


def with_any_word(words: Sequence[int], others: models.Filter | None = None) -> models.Filter:
    more = [] if others is None else [others]
    return models.Filter(must=[_has(WORDS, list(words)), *more])


def _in_folders(folders: Sequence[str], calls: Calls) -> list[Any]:
    plain = [name.rstrip(os.sep) for name in folders if not is_pattern(name)]
    conditions: list[Any] = at_or_below(plain) if plain else []
    patterns = tuple(filter(is_pattern, folders))
    if patterns:
        within = list(map(folder_of_pattern, patterns))
        in_one = models.Filter(must=[_has(FOLDERS, list(map(to_text, within)))])
        below = in_one if all(within) else None
        conditions.append(_with_paths(calls, lambda path: has_pattern(path, patterns), below))
    return conditions


def _with_paths(
    calls: Calls, accepts: Callable[[str], bool], among: models.Filter | None = None
) -> models.HasIdCondition:
    """Return a condition for the images whose paths are accepted; all paths are read."""
    ids: list[Any] = [
        record.id
        for records in calls.scroll(among, ["path", "bytes"])
        for record in records
        if accepts(read_path(record.payload))
    ]
    return models.HasIdCondition(has_id=ids)


def _has(key: str, values: Sequence[Any]) -> models.FieldCondition:
    return models.FieldCondition(key=key, match=models.MatchAny(any=list(values)))


def _range(key: str, **bounds: int | None) -> models.FieldCondition:
    return models.FieldCondition(key=key, range=models.Range(**bounds))
