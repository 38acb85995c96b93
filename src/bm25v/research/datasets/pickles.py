"""Reads pickles of plain values and numpy arrays, and runs nothing that is in them.

A pickle names functions that are called while it is read. Here the few names that arrays need lead
to stand-ins that only keep what they are given, every other name is refused, and numpy sees no
more than the bytes of an array of plain numbers.
"""

import io
import pickle
import re
from typing import Any

import numpy as np


class Refused(Exception):
    """A pickle is damaged, or holds more than plain values; the message says which."""


class _StandIn:
    """Keeps what a pickled object is made from."""

    def __init__(self, *given: Any) -> None:
        self.given = given

    def __setstate__(self, state: Any) -> None:
        self.given = (*self.given, state)


class _Encoded(_StandIn):
    """_codecs.encode(text, "latin1") or bytes(): how bytes look in old pickles."""


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
            raise Refused(f"holds {module}.{name}, which could run code, and is not read")
        return _NAMES[module, name]


def load_plain(content: bytes) -> Any:
    """Return the dicts, lists, texts and numbers in a pickle; arrays become flat lists."""
    try:
        return _plain(_Unpickler(io.BytesIO(content), encoding="latin1").load())
    except Refused:
        raise
    except Exception as error:  # damaged pickles raise errors of all kinds
        raise Refused(f"is damaged, or no pickle ({error!r})") from error


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {_plain(key): _plain(one) for key, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
        case str() | int() | float() | None:
            return value
        case _Array(given=(*_, (_, _, type, _, data))) | _Buffer(given=(data, type, *_)):
            return _numbers(type, data).tolist()
        case _Scalar(given=(type, data)):
            return _numbers(type, data).item()
    raise Refused("holds more than plain values and arrays of numbers")


def _numbers(type: Any, data: Any) -> Any:
    match type:
        case _Type(given=(str(code), *_, (_, str(order), *_))) if re.fullmatch("[iuf][1248]", code):
            return np.frombuffer(_bytes(data), order.replace("|", "=") + code)
    raise Refused("holds arrays of something else than numbers")


def _bytes(data: Any) -> bytes:
    match data:
        case bytes() | bytearray():
            return bytes(data)
        case str(text) | _Encoded(given=(str(text), "latin1")):
            return text.encode("latin1")
        case _Encoded(given=()):
            return b""
    raise Refused("holds an array without its bytes")
