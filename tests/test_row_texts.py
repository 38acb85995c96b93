"""Rows survive as texts: any bytes, whether the loop that reads them is compiled or not."""

import json
import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from bm25v.engines.row_texts import ROW_MULTIPLE, read_texts, write_texts

any_bytes = st.integers(1, 4).flatmap(
    lambda n: arrays.arrays(np.uint8, st.tuples(st.integers(0, 5), st.just(n * ROW_MULTIPLE)))
)


@pytest.mark.parametrize("compiled", [False, True])
@given(content=any_bytes)
def test_texts_become_the_same_rows(compiled: bool, content: NDArray[np.uint8]) -> None:
    rows = content.reshape(-1).view([("words", "<u2", 5), ("rest", "u1", content.shape[1] - 10)])
    texts = write_texts(rows)
    again = read_texts(texts, rows.dtype, compiled=compiled)
    assert again.dtype == rows.dtype
    assert again.tobytes() == rows.tobytes()
    assert set("".join(texts)) <= set(string.printable) - set(string.whitespace)
    assert json.loads(json.dumps(texts)) == texts


@pytest.mark.parametrize("compiled", [False, True])
def test_more_rows_than_are_read_at_once(compiled: bool) -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 256, (1_000, 24), np.uint8).view([("words", "<u4", 6)])[:, 0]
    again = read_texts(write_texts(rows), rows.dtype, compiled=compiled)
    np.testing.assert_array_equal(again["words"], rows["words"])


@pytest.mark.parametrize("text", ["A" * 15, "A" * 32, "", "é" * 16])
def test_what_is_no_row_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"another size|ascii"):
        read_texts(["A" * 16, text], np.dtype([("words", "<u4", 3)]))
