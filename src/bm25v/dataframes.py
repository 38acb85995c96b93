"""Rows of plain values become a pandas DataFrame. pandas is optional: the extra `[pandas]`."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from bm25v.errors import MissingExtra

if TYPE_CHECKING:
    import pandas


def make_frame(rows: Iterable[Mapping[str, Any]], types: Mapping[str, str]) -> "pandas.DataFrame":
    """Return a frame with the columns of `types`, which has their types even without rows.

    >>> frame = make_frame([{"path": "a.jpg", "dense": None}], {"path": "object", "dense": "float"})
    >>> frame.shape, frame.dense.isna().tolist()
    ((1, 2), [True])
    """
    try:
        import pandas
    except ImportError as error:
        raise MissingExtra("to_pandas()", "pandas") from error
    return pandas.DataFrame(list(rows), columns=list(types), dtype="object").astype(dict(types))
