"""Pickles of others: plain values and arrays are read, and nothing in them runs."""

import os
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bm25v.research.datasets import PickleRefused, load_plain

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


class Call:
    """An object whose pickle calls a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_function_is_called(tmp_path: Path, protocol: int) -> None:
    target = tmp_path / "made"
    for call in (
        Call(os.mkdir, str(target)),
        Call(eval, f"__import__('os').mkdir({str(target)!r})"),
        Call(getattr, "x", "upper"),
        Call(np.load, str(target)),
        Call(Path, "x"),
    ):
        with pytest.raises(PickleRefused, match=r"refers to [\w.]+: only plain values are read"):
            load_plain(pickle.dumps({"imlist": [call]}, protocol))
    assert not target.exists()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_values_and_arrays_are_read(protocol: int) -> None:
    array, number = np.array([[1.5, -2]], ">f8"), np.int64(3)
    value = load_plain(pickle.dumps({"a": [1, "é", None], "b": array, "c": number}, protocol))
    assert value["a"] == [1, "é", None]
    assert value["b"].tolist() == [[1.5, -2]]
    assert value["c"] == 3


@given(content=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    with suppress(PickleRefused):
        load_plain(content)
    with pytest.raises(PickleRefused, match="is not a pickle of plain values"):
        load_plain(b"not a pickle" + content)
