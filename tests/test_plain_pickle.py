"""Pickles of others: nothing in them runs, and small ones take little time and memory."""

import os
import pickle
import pickletools
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bm25v.research.datasets import plain_pickle
from bm25v.research.datasets.plain_pickle import PickleRefused, load_plain
from tests.children import Report, finish, needs_fork, start

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork"),
    pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning"),
]

MEMORY = 100_000_000  # that a pickle of a few bytes may take at most
SECONDS = 1.0
MERSENNE = 2**61 - 1  # multiples of it have the hash 0


def counted(opcode: bytes, layout: str, length: int) -> bytes:
    return opcode + struct.pack(layout, length)


def slow_keys(n: int) -> bytes:
    numbers = b"".join(b"L%dL\nN" % (k * MERSENNE) for k in range(n))
    return b"(" + numbers + b"d."


def slow_memo(n: int) -> bytes:
    return b"N" + b"".join(b"p%d\n" % (k * MERSENNE) for k in range(n)) + b"."


def shared_array(n: int) -> bytes:
    """Return a pickle with one array in many places."""
    return pickle.dumps([np.zeros(100_000, np.uint8)] * n)


SMALL_BUT_LARGE = {
    "BINBYTES": counted(b"B", "<I", 2**31 - 1),
    "BINBYTES8": counted(b"\x8e", "<Q", 2**40),
    "BYTEARRAY8": counted(b"\x96", "<Q", 2**40),
    "BINUNICODE": counted(b"X", "<I", 2**32 - 1),
    "BINUNICODE8": counted(b"\x8d", "<Q", 2**63),
    "BINSTRING": counted(b"T", "<i", -1),
    "LONG4": counted(b"\x8b", "<i", 2**31 - 1),
    "FRAME": b"\x80\x04" + counted(b"\x95", "<Q", 2**62) + b"N.",
    "LONG_BINPUT": b"N" + counted(b"r", "<I", 2**31) + b".",
    "PUT": b"Np" + b"9" * 30 + b"\n.",
    "digits": b"I" + b"9" * 1_000_000 + b"\n.",
    "number": b"\x8b" + struct.pack("<i", 1_000_000) + b"\x7f" * 1_000_000 + b".",
    "tuples in tuples": b")" + b"".join(b"q%ch%ch%c\x87" % (n, n, n) for n in range(80)) + b".",
    "lists in lists": b"]" + b"".join(b"q%c(%sl" % (n, b"h%c" % n * 10) for n in range(20)) + b".",
    "a list in itself": b"]q\0h\0ah\0ah\0a.",
    "keys in keys": b")" + b"2\x86" * 40 + b"q\x000}h\x00Ns.",
    "slow keys": slow_keys(20_000),
    "slow memo": slow_memo(20_000),
    "one array in many places": shared_array(5000),
    "deep": b"]" * 1000 + b"a" * 999 + b".",
}


def run_limited(function: Callable[[], Any]) -> None:
    """Run a function in a process that can take little memory; it must end soon."""
    resource = pytest.importorskip("resource")

    def run(report: Report) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CPU, (10, 10))  # then it is killed
        began = time.process_time()
        function()
        assert time.process_time() - began < SECONDS

    assert finish(*start(run))[0] == 0


needs_limits = pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")


def load_or_refuse(content: bytes) -> Any:
    """Return the value; it has at most as many parts as a pickle of that size may have."""
    try:
        value = load_plain(content)
    except PickleRefused as error:
        assert len(str(error)) < 300
        assert "MemoryError" not in str(error)  # it was not tried
        assert "\n" not in str(error)
        return None
    assert count_values(value) <= 10_000 + 20 * len(content)
    return value


def count_values(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(count_values, value.values()))
    if isinstance(value, list):
        return 1 + sum(map(count_values, value))
    assert type(value) in (str, int, float, bool, type(None))
    return 1


@needs_fork
@needs_limits
@pytest.mark.parametrize("name", SMALL_BUT_LARGE)
def test_a_small_pickle_takes_little_time_and_memory(name: str) -> None:
    run_limited(lambda: load_or_refuse(SMALL_BUT_LARGE[name]))


_ARRAYS = b"cnumpy._core.multiarray\n_reconstruct\n|cnumpy\ndtype\n|U\x02i4|U\x01<|C\x01a|\x93"
_MEMO = b"q\0|q\1|h\0|h\1|p7\n|g7\n|\x94|0|1|2"
_CONTAINERS = b"(|]|}|)|l|t|d|a|e|s|u|\x85|\x86|\x87|R|b"
_PLAIN = b"N|\x88|K\x05|U\x01a|\x8e" + b"\xff" * 8
OPCODES = st.lists(
    st.sampled_from(b"|".join([_ARRAYS, _MEMO, _CONTAINERS, _PLAIN]).split(b"|")), max_size=60
).map(b"".join)


@needs_fork
@needs_limits
@settings(max_examples=30)
@given(data=st.data())
def test_random_programs_take_little_time_and_memory(data: st.DataObject) -> None:
    programs = data.draw(st.lists(st.binary(max_size=30) | OPCODES, min_size=20, max_size=40))
    run_limited(lambda: [load_or_refuse(b"".join(programs[n:]) + b".") for n in range(20)])


@settings(max_examples=300)
@given(content=OPCODES | st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    load_or_refuse(content)
    load_or_refuse(content + b".")


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=20,
)


def to_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: to_lists(item) for key, item in value.items()}
    return [to_lists(item) for item in value] if isinstance(value, list | tuple) else value


@settings(max_examples=200)
@given(value=VALUES, protocol=st.integers(0, pickle.HIGHEST_PROTOCOL), optimised=st.booleans())
def test_plain_values_are_read_as_python_reads_them(
    value: Any, protocol: int, optimised: bool
) -> None:
    content = pickle.dumps(value, protocol)
    content = pickletools.optimize(content) if optimised else content
    assert load_plain(content) == to_lists(pickle.loads(content))


@settings(max_examples=100)
@given(
    values=st.lists(st.integers(-100, 100), max_size=20),
    kind=st.sampled_from(["i1", "<i2", ">i4", "<i8", "u8", "<f4", ">f8"]),
    protocol=st.integers(0, pickle.HIGHEST_PROTOCOL),
)
def test_arrays_are_read_as_numpy_reads_them(values: list[int], kind: str, protocol: int) -> None:
    array = np.abs(values).astype(kind) if kind == "u8" else np.array(values, kind)
    scalars = [array.dtype.type(3)]
    expected = [array.tolist(), [3.0]]
    assert load_plain(pickle.dumps([array, scalars], protocol)) == expected


def test_a_value_in_several_places_is_read_in_each() -> None:
    box = [1.5, 2.5]
    assert load_plain(pickle.dumps({"a": box, "b": [box, box]})) == {"a": box, "b": [box, box]}


def test_the_size_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    content = pickle.dumps(list(range(1000)), 0)
    for name, value, message in (
        ("MAX_BYTES", 100, "bytes, more than 100"),
        ("MAX_STEPS", 50, "more than 50 steps"),
        ("MAX_VALUES", 999, "more than 999 values"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(plain_pickle, name, value)
            with pytest.raises(PickleRefused, match=message):
                load_plain(content)
    assert len(load_plain(content)) == 1000
