"""Reads pickles of plain values and numpy arrays without running any code in them.

In: bytes. Out: dicts, lists, strings and numbers. Unpickling calls the functions that a pickle
names. Here the few names that arrays need lead to stand-ins that only store their arguments, every
other name is refused, and numpy gets nothing but the bytes of an array of plain numbers.
"""

import io
import pickle
import re
from typing import Any

import numpy as np


class PickleRefused(Exception):
    """A pickle is damaged, or contains more than plain values."""


class _StandIn:
    """Stores the arguments and the state of a pickled object."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.arguments = (*self.arguments, state)


class _Encoded(_StandIn):
    """_codecs.encode(text, "latin1") or bytes(): bytes in old pickles."""


class _Type(_StandIn):
    """numpy.dtype(code, …), with a state whose second value is the byte order."""


class _Array(_StandIn):
    """numpy's _reconstruct(…), with the state (version, shape, type, order, bytes)."""


class _Buffer(_StandIn):
    """numpy's _frombuffer(bytes, type, shape, order)."""


class _Scalar(_StandIn):
    """numpy's scalar(type, bytes)."""


_NAMES = {
    ("_codecs", "encode"): _Encoded,
    ("__builtin__", "bytes"): _Encoded,
    ("numpy", "dtype"): _Type,
    ("numpy", "ndarray"): _StandIn,
    **{
        (f"numpy.{core}.{module}", name): stand_in
        for core in ("core", "_core")
        for module, name, stand_in in (
            ("multiarray", "_reconstruct", _Array),
            ("multiarray", "scalar", _Scalar),
            ("numeric", "_frombuffer", _Buffer),
        )
    },
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            raise PickleRefused(
                f"contains {module}.{name}, which could run code, so it is not read"
            )
        return _NAMES[module, name]


def load_plain(content: bytes) -> Any:
    """Return the dicts, lists, strings and numbers in a pickle; arrays become flat lists."""
    try:
        return _to_plain(_Unpickler(io.BytesIO(content), encoding="latin1").load())
    except PickleRefused:
        raise
    except Exception as error:  # damaged pickles raise errors of all kinds
        raise PickleRefused(f"is damaged or not a pickle ({error!r})") from error


def _to_plain(value: Any) -> Any:
    match value:
        case dict():
            return {_to_plain(key): _to_plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_to_plain(item) for item in value]
        case str() | int() | float() | None:
            return value
        case _Array(arguments=(*_, (_, _, type, _, data))) | _Buffer(arguments=(data, type, *_)):
            return _to_array(type, data).tolist()
        case _Scalar(arguments=(type, data)):
            return _to_array(type, data).item()
    raise PickleRefused("contains more than plain values and arrays of numbers")


def _to_array(type: Any, data: Any) -> Any:
    match type:
        case _Type(arguments=(str(code), *_, (_, str(order), *_))) if re.fullmatch(
            "[iuf][1248]", code
        ):
            return np.frombuffer(_bytes(data), order.replace("|", "=") + code)
    raise PickleRefused("contains arrays of other things than numbers")


def _bytes(data: Any) -> bytes:
    match data:
        case bytes() | bytearray():
            return bytes(data)
        case str(text) | _Encoded(arguments=(str(text), "latin1")):
            return text.encode("latin1")
        case _Encoded(arguments=()):
            return b""
    raise PickleRefused("contains an array without its bytes")
