"""A folder of Parquet files with one row for each image; pyarrow reads and writes them.

A row has the image's key, the facts about its file, its bags as a gallery stores them, its dense
vector; or the reason why it could not be read. The metadata of each file says what the bags were
made with, so that those of two vocabularies are never mixed.
"""

import io
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.display import first_line, printable
from bm25v.errors import BagFileError, MissingExtra
from bm25v.images import Metadata
from bm25v.schema import SchemaError, parse_object
from bm25v.store.encoding import ImageBags
from bm25v.store.files import FileState
from bm25v.store.meta import Meta, check_same_bags, parse_meta
from bm25v.vocabulary.bag import SCALE, Bag, FullBag, patch_bytes, word_bytes

if TYPE_CHECKING:
    import pyarrow

FORMAT = 1

_METADATA = b"bm25v"
_PART = re.compile(r"part-(\d{6,})\.parquet")
_DICTIONARIES = ("words", "full_words", "full_levels", "full_patches")  # much smaller with one
_BATCH_ROWS = 1024
_ROW_GROUP = 16_384
_HASH_BYTES = 16


class FailedImage(NamedTuple):
    """A file that could not be read, its size and time at that moment, and the reason."""

    path: str
    size: int | None  # None, as the time, if there was no file
    mtime_ns: int | None
    error: str


Row = ImageBags | FailedImage


class Batch(NamedTuple):
    """Some images of a folder of bags, in its order."""

    images: list[ImageBags]
    failed: list[FailedImage]


def part_name(number: int) -> str:
    """Return the name of a file in a folder of bags.

    >>> part_name(12)
    'part-000012.parquet'
    """
    return f"part-{number:06d}.parquet"


def find_parts(folder: Path) -> dict[int, Path]:
    paths = folder.iterdir() if folder.is_dir() else ()
    matches = ((_PART.fullmatch(path.name), path) for path in paths)
    return dict(sorted((int(match[1]), path) for match, path in matches if match))


def format_part(rows: Sequence[Row], meta: Meta) -> bytes:
    require_pyarrow()
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.Table.from_pylist(list(map(_to_values, rows)), schema=_make_schema(meta))
    output = io.BytesIO()
    parquet.write_table(
        table,
        output,
        compression="zstd",
        row_group_size=_ROW_GROUP,
        use_dictionary=[f"{name}.list.element" for name in _DICTIONARIES],
        use_byte_stream_split=["dense.list.element"],
    )
    return output.getvalue()


class BagFolder:
    """The Parquet files of a folder, opened for reading; they must have the same settings."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        require_pyarrow()
        self.folder = Path(folder)
        self.parts = find_parts(self.folder)
        if not self.parts:
            raise BagFileError(
                f"{self.folder} has no files such as {part_name(0)}: make them with "
                "`bm25v bags encode` or `bm25v bags export`"
            )
        first, *others = self.parts.values()
        self.meta, self.n_rows = _read_meta(first)
        for path in others:
            meta, n_rows = _read_meta(path)
            check_same_bags(meta, self.meta, str(path), str(first))
            self.n_rows += n_rows

    def batches(self) -> Iterator[Batch]:
        for part in self.parts:
            yield from self.read_part(part)

    def read_part(self, part: int) -> Iterator[Batch]:
        path = self.parts[part]
        for rows in _read_rows(path):
            try:
                yield _to_batch(rows, self.meta)
            except ValueError as error:
                raise BagFileError(f"{path} cannot be used ({error}): make it again") from error

    def average_length(self) -> float:
        """Return the mean sum of the term frequencies of an image's bag."""
        n = total = 0
        for path in self.parts.values():
            for rows in _read_rows(path, ["tf", "error"]):
                n += rows["error"].null_count
                total += int(rows["tf"].flatten().to_numpy().sum(dtype=np.int64))
        return total / SCALE / max(n, 1)

    def states(self) -> Iterator[tuple[int, FailedImage]]:
        """Yield the number of its file, and the key, size, time and error of each row.

        The error is empty if the image could be read.
        """
        for part, path in self.parts.items():
            for rows in _read_rows(path, ["key", "key_bytes", "size", "mtime", "error"]):
                for failed in _to_failed(rows):
                    yield part, failed


def require_pyarrow() -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise MissingExtra("a folder of bags", "parquet") from error


def _make_schema(meta: Meta) -> "pyarrow.Schema":
    import pyarrow

    word = pyarrow.uint16() if word_bytes(meta.n_words) == 2 else pyarrow.uint32()
    patch = pyarrow.uint8() if patch_bytes(meta.n_patches) == 1 else pyarrow.uint16()
    fields = {
        "key": pyarrow.string(),  # a path, or the id of an image from memory
        "key_bytes": pyarrow.binary(),  # null, unless the path is not text
        "content": pyarrow.binary(_HASH_BYTES),
        "size": pyarrow.int64(),
        "mtime": pyarrow.timestamp("ns", "UTC"),
        "width": pyarrow.int32(),
        "height": pyarrow.int32(),
        "taken": pyarrow.timestamp("ms"),  # a camera's clock has no time zone
        "words": pyarrow.list_(word),
        "tf": pyarrow.list_(pyarrow.uint16()),
        "full_words": pyarrow.list_(word),
        "full_levels": pyarrow.list_(pyarrow.uint8()),
        "full_patches": pyarrow.list_(patch),
        "dense": pyarrow.list_(pyarrow.float16(), meta.dense_dim),
        "error": pyarrow.string(),
    }
    metadata = json.dumps({"format": FORMAT, **vars(meta)})
    return pyarrow.schema(list(fields.items()), metadata={_METADATA: metadata.encode()})


def _to_values(row: Row) -> dict[str, Any]:
    """Return the values of an image by column; those that it does not have are null."""
    if isinstance(row, FailedImage):
        facts = {"size": row.size, "mtime": row.mtime_ns, "error": printable(row.error)}
        return _to_key(row.path) | facts
    file = row.file
    width, height, taken = file.metadata or (None, None, None)
    values: dict[str, Any] = _to_key(file.path)
    values |= {"content": file.content, "size": file.size, "mtime": file.mtime_ns}
    values |= {"width": width, "height": height, "taken": taken}
    values |= {"words": row.bag.words, "tf": row.bag.tf, "dense": row.dense_e}
    return values | {f"full_{name}": value for name, value in row.full_bag._asdict().items()}


def _to_key(path: str) -> dict[str, Any]:
    key = printable(path)
    return {"key": key, "key_bytes": None if key == path else os.fsencode(path)}


def _read_meta(path: Path) -> tuple[Meta, int]:
    from pyarrow import parquet

    with _reporting(path):
        with parquet.ParquetFile(path) as file:
            schema, n_rows = file.schema_arrow, file.metadata.num_rows
        values = parse_object((schema.metadata or {}).get(_METADATA, b"{}"))
        version = values.get("format")
        if isinstance(version, int) and version > FORMAT:
            raise BagFileError(
                f"{path} has format {version}, this bm25v reads up to {FORMAT}: upgrade bm25v"
            )
        meta = parse_meta(values)
        for field in _make_schema(meta):
            index = schema.get_field_index(field.name)
            if index < 0 or schema.field(index).type != field.type:
                raise ValueError(f"it has no column {field.name} of type {field.type}")
    return meta, n_rows


def _read_rows(path: Path, columns: list[str] | None = None) -> "Iterator[pyarrow.RecordBatch]":
    from pyarrow import parquet

    with _reporting(path), parquet.ParquetFile(path) as file:
        yield from file.iter_batches(_BATCH_ROWS, columns=columns)


@contextmanager
def _reporting(path: Path) -> Iterator[None]:
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, SchemaError, OSError, ValueError) as error:
        reason = first_line(str(error))
        raise BagFileError(f"{path} cannot be read ({reason}): make it again") from error


def _to_batch(rows: "pyarrow.RecordBatch", meta: Meta) -> Batch:
    failed = rows.filter(rows["error"].is_valid())
    rows = rows.filter(rows["error"].is_null())
    bag, full_bag = ("words", "tf"), ("full_words", "full_levels", "full_patches")
    needed = ("content", "size", "mtime", *bag, *full_bag, "dense")
    if any(rows[name].null_count for name in needed):
        raise ValueError("an image has neither bags nor an error")
    files = _read_files(rows)
    bags = starmap(Bag, _split_bags(rows, bag, meta.k_post, meta.n_words))
    full_bags = starmap(FullBag, _split_bags(rows, full_bag, meta.k_full, meta.n_words))
    if np.any(rows["full_patches"].flatten().to_numpy() >= meta.n_patches):
        raise ValueError(f"full_patches of an image are not below {meta.n_patches}")
    dense = rows["dense"].flatten().to_numpy(zero_copy_only=False)
    dense_ne = dense.reshape(len(files), meta.dense_dim)
    columns = (files, bags, full_bags, dense_ne)
    return Batch([ImageBags(*row) for row in zip(*columns, strict=True)], _to_failed(failed))


def _read_files(rows: "pyarrow.RecordBatch") -> list[FileState]:
    names = ("content", "size", "width", "height", "taken")
    content, size, width, height, taken = (rows[name].to_pylist() for name in names)
    times = rows["mtime"].cast("int64").to_pylist()
    metadata = [
        None if w is None or h is None else Metadata(w, h, t)
        for w, h, t in zip(width, height, taken, strict=True)
    ]
    columns = (_read_keys(rows), content, size, times, metadata)
    return [FileState(*row) for row in zip(*columns, strict=True)]


def _read_keys(rows: "pyarrow.RecordBatch") -> list[str]:
    keys, raw = rows["key"].to_pylist(), rows["key_bytes"].to_pylist()
    paths = [key if b is None else os.fsdecode(b) for key, b in zip(keys, raw, strict=True)]
    if not all(paths):
        raise ValueError("an image has no key")
    return paths


def _to_failed(rows: "pyarrow.RecordBatch") -> list[FailedImage]:
    times = rows["mtime"].cast("int64").to_pylist()
    errors = (error or "" for error in rows["error"].to_pylist())
    columns = (_read_keys(rows), rows["size"].to_pylist(), times, errors)
    return [FailedImage(*row) for row in zip(*columns, strict=True)]


def _split_bags(
    rows: "pyarrow.RecordBatch", names: Sequence[str], k: int, n_words: int
) -> list[tuple[NDArray[Any], ...]]:
    """Return the columns of bags, one tuple for each row; raise `ValueError` for impossible ones.

    The first column has the words, the second what must be above 0.
    """
    lengths = [rows[name].value_lengths().fill_null(0).to_numpy() for name in names]
    values = [rows[name].flatten().to_numpy(zero_copy_only=False) for name in names]
    if any(not np.array_equal(lengths[0], other) for other in lengths[1:]):
        raise ValueError(f"the lists {', '.join(names)} of an image have different lengths")
    words, frequencies = values[0].astype(np.int32), values[1]
    ends = np.cumsum(lengths[0])
    starts = np.zeros(len(words) + 1, dtype=bool)
    starts[ends] = True
    is_ascending = np.diff(words) > 0
    if np.any(lengths[0] > k) or np.any((words < 0) | (words >= n_words)):
        raise ValueError(f"{names[0]} of an image are not at most {k} of {n_words:,} words")
    if not np.all(is_ascending | starts[1:-1]) or not np.all(frequencies > 0):
        raise ValueError(f"{names[0]} of an image do not ascend, or have {names[1]} of 0")
    parts = (np.split(column, ends[:-1]) for column in (words, *values[1:]))
    return list(zip(*parts, strict=True))[: len(rows)]
