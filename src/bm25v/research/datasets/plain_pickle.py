"""Reads pickles of plain values and numpy arrays: no code in them runs, and a few bytes stay small.

In: bytes. Out: dicts, lists, strings and numbers. A machine of its own runs the opcodes. The few
names that arrays need lead to stand-ins that only store their arguments, every other name and
opcode is refused, and numpy gets nothing but the bytes of an array of plain numbers. Python's
unpickler allocates what a length says before it reads so many bytes; here a step takes no more
memory than its bytes. Steps are counted, and so are the values of the result: one that is referred
to in many places counts in each of them.
"""

import codecs
import pickle
import re
import struct
from typing import Any, NoReturn

import numpy as np

from bm25v.schema import show_value

MAX_BYTES = 64_000_000
MAX_STEPS = 2_000_000
MAX_VALUES = 2_000_000
MAX_DEPTH = 50  # of values in each other

_FEW_VALUES, _VALUES_PER_BYTE = 10_000, 20  # a value that is stored once takes at least a byte
_NUMBER_BYTES = 8
_LINE_BYTES = 40  # of a number that is written as text
_PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
_ORDERS = {"<": "<", ">": ">", "=": "=", "|": "="}  # of the bytes of a number

_FIXED = {  # opcodes with a number behind them
    pickle.BININT: struct.Struct("<i"),
    pickle.BININT1: struct.Struct("<B"),
    pickle.BININT2: struct.Struct("<H"),
    pickle.BINFLOAT: struct.Struct(">d"),
    pickle.BINGET: struct.Struct("<B"),
    pickle.LONG_BINGET: struct.Struct("<I"),
    pickle.BINPUT: struct.Struct("<B"),
    pickle.LONG_BINPUT: struct.Struct("<I"),
    pickle.PROTO: struct.Struct("<B"),
    pickle.FRAME: struct.Struct("<Q"),
}
_COUNTED = {  # opcodes with a length and as many bytes behind them
    pickle.BINSTRING: struct.Struct("<I"),
    pickle.SHORT_BINSTRING: struct.Struct("<B"),
    pickle.BINUNICODE: struct.Struct("<I"),
    pickle.SHORT_BINUNICODE: struct.Struct("<B"),
    pickle.BINUNICODE8: struct.Struct("<Q"),
    pickle.BINBYTES: struct.Struct("<I"),
    pickle.SHORT_BINBYTES: struct.Struct("<B"),
    pickle.BINBYTES8: struct.Struct("<Q"),
    pickle.BYTEARRAY8: struct.Struct("<Q"),
    pickle.LONG1: struct.Struct("<B"),
    pickle.LONG4: struct.Struct("<I"),
}


class PickleRefused(Exception):
    """A pickle is damaged, too large, or contains more than plain values."""


class _StandIn:
    """Stores the arguments and the state of a pickled object."""

    def __init__(self, arguments: list[Any]) -> None:
        self.arguments = arguments


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


def load_plain(content: bytes) -> Any:
    """Return the dicts, lists, strings and numbers in a pickle; arrays become flat lists.

    >>> load_plain(pickle.dumps({"easy": np.arange(3), "bbx": (1.5, None)}))
    {'easy': [0, 1, 2], 'bbx': [1.5, None]}
    """
    if len(content) > MAX_BYTES:
        raise PickleRefused(f"has {len(content):,} bytes, more than {MAX_BYTES:,}")
    try:
        converter = _Converter(min(MAX_VALUES, _FEW_VALUES + _VALUES_PER_BYTE * len(content)))
        return converter.convert(_Machine(content).run())
    except PickleRefused:
        raise
    except Exception as error:  # damaged pickles raise errors of all kinds
        raise PickleRefused(
            f"is damaged or not a pickle ({type(error).__name__}: {show_value(str(error))})"
        ) from error


class _Machine:
    """Runs the opcodes of a pickle; tuples become lists."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._position = 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        """Return the value of the pickle."""
        for _ in range(MAX_STEPS):
            opcode = self._take(1)
            if opcode == pickle.STOP:
                return self._stack.pop()
            if opcode in _FIXED:
                self._run_number(opcode, *self._unpack(_FIXED[opcode]))
            elif opcode in _COUNTED:
                (length,) = self._unpack(_COUNTED[opcode])
                self._run_bytes(opcode, self._take(length))
            elif opcode in b"ILFSVgpc":
                self._run_line(opcode, self._take_line())
            else:
                self._run_bare(opcode)
        raise PickleRefused(f"has more than {MAX_STEPS:,} steps")

    def _run_number(self, opcode: bytes, value: Any) -> None:
        match opcode:
            case pickle.BINGET | pickle.LONG_BINGET:
                self._stack.append(self._memo[value])
            case pickle.BINPUT | pickle.LONG_BINPUT:
                self._store(value)
            case pickle.PROTO:
                if value not in _PROTOCOLS:
                    raise PickleRefused(f"has the protocol {value}, which is not known")
            case pickle.FRAME:
                pass
            case _:
                self._stack.append(value)

    def _run_bytes(self, opcode: bytes, value: bytes) -> None:
        match opcode:
            case pickle.BINSTRING | pickle.SHORT_BINSTRING:
                self._stack.append(value.decode("latin1"))
            case pickle.BINUNICODE | pickle.SHORT_BINUNICODE | pickle.BINUNICODE8:
                self._stack.append(value.decode("utf-8", "surrogatepass"))
            case pickle.LONG1 | pickle.LONG4:
                if len(value) > _NUMBER_BYTES:
                    raise PickleRefused(f"has a number of {len(value):,} bytes")
                self._stack.append(int.from_bytes(value, "little", signed=True))
            case _:
                self._stack.append(value)

    def _run_line(self, opcode: bytes, line: bytes) -> None:
        match opcode:
            case pickle.GLOBAL:
                self._push_name(line.decode(), self._take_line().decode())
            case pickle.STRING:
                if line[:1] != line[-1:] or line[:1] not in (b"'", b'"') or len(line) < 2:
                    raise PickleRefused("has a text without quotes")
                self._stack.append(codecs.escape_decode(line[1:-1])[0].decode("latin1"))
            case pickle.UNICODE:
                self._stack.append(line.decode("raw-unicode-escape"))
            case _ if len(line) > _LINE_BYTES:
                raise PickleRefused(f"has a number of {len(line):,} digits")
            case pickle.FLOAT:
                self._stack.append(float(line))
            case pickle.GET:
                self._stack.append(self._memo[int(line)])
            case pickle.PUT:
                self._store(int(line))
            case _:
                value = int(line.rstrip(b"L"))
                is_truth_value = opcode == pickle.INT and line in (b"00", b"01")
                self._stack.append(bool(value) if is_truth_value else value)

    def _run_bare(self, opcode: bytes) -> None:
        stack = self._stack
        match opcode:
            case pickle.NONE:
                stack.append(None)
            case pickle.NEWTRUE | pickle.NEWFALSE:
                stack.append(opcode == pickle.NEWTRUE)
            case pickle.EMPTY_LIST | pickle.EMPTY_TUPLE:
                stack.append([])
            case pickle.EMPTY_DICT:
                stack.append({})
            case pickle.LIST | pickle.TUPLE:
                stack.append(self._pop_mark())
            case pickle.DICT:
                stack.append(_add_items({}, self._pop_mark()))
            case pickle.TUPLE1 | pickle.TUPLE2 | pickle.TUPLE3:
                stack.append(self._pop(opcode[0] - pickle.TUPLE1[0] + 1))
            case pickle.APPEND:
                (value,) = self._pop(1)
                _as_list(stack[-1]).append(value)
            case pickle.APPENDS:
                values = self._pop_mark()
                _as_list(stack[-1]).extend(values)
            case pickle.SETITEM:
                pair = self._pop(2)
                _add_items(stack[-1], pair)
            case pickle.SETITEMS:
                pairs = self._pop_mark()
                _add_items(stack[-1], pairs)
            case pickle.MARK:
                self._marks.append(len(stack))
            case pickle.POP:
                stack.pop()
            case pickle.POP_MARK:
                self._pop_mark()
            case pickle.DUP:
                stack.append(stack[-1])
            case pickle.MEMOIZE:
                self._store(len(self._memo))
            case pickle.STACK_GLOBAL:
                self._push_name(*self._pop(2))
            case pickle.REDUCE:
                self._reduce()
            case pickle.BUILD:
                (state,) = self._pop(1)
                if not isinstance(stack[-1], _StandIn):
                    _refuse_more()
                stack[-1].arguments.append(state)
            case _:
                raise PickleRefused(f"has the opcode {opcode!r}, which plain values do not need")

    def _store(self, number: int) -> None:
        if not 0 <= number < MAX_STEPS:  # picklers count from 0; far numbers can be slow keys
            raise PickleRefused(f"stores a value under the number {number}")
        self._memo[number] = self._stack[-1]

    def _push_name(self, module: Any, name: Any) -> None:
        if (str(module), str(name)) not in _NAMES:
            full_name = f"{module}.{name}"
            shown = full_name if full_name.isprintable() else show_value(full_name)
            raise PickleRefused(f"contains {shown[:100]}, which could run code, so it is not read")
        self._stack.append(_NAMES[module, name])

    def _reduce(self) -> None:
        stand_in, arguments = self._pop(2)
        if not (isinstance(stand_in, type) and isinstance(arguments, list)):
            _refuse_more()
        self._stack.append(stand_in(list(arguments)))

    def _pop(self, n: int) -> list[Any]:
        if len(self._stack) < n:
            raise PickleRefused("is damaged: it takes a value that is not there")
        values = self._stack[-n:]
        del self._stack[-n:]
        return values

    def _pop_mark(self) -> list[Any]:
        start = self._marks.pop()
        return self._pop(len(self._stack) - start) if len(self._stack) > start else []

    def _unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        return layout.unpack(self._take(layout.size))

    def _take(self, n: int) -> bytes:
        if n > len(self._content) - self._position:
            raise PickleRefused("is damaged: it ends too early")
        self._position += n
        return self._content[self._position - n : self._position]

    def _take_line(self) -> bytes:
        end = self._content.find(b"\n", self._position)
        if end < 0:
            raise PickleRefused("is damaged: it ends too early")
        line = self._content[self._position : end]
        self._position = end + 1
        return line


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else _refuse_more()


def _add_items(target: Any, pairs: list[Any]) -> dict[str, Any]:
    """Add keys and values; keys are texts, because numbers can be chosen to be slow keys."""
    if not isinstance(target, dict) or len(pairs) % 2:
        _refuse_more()
    for key, value in zip(pairs[::2], pairs[1::2], strict=True):
        target[key if isinstance(key, str) else _refuse_more()] = value
    return target


class _Converter:
    """Turns the machine's values into plain ones; everything is a tree then."""

    def __init__(self, max_values: int) -> None:
        self._max_values = max_values
        self._n_values = 0

    def convert(self, value: Any, depth: int = 0) -> Any:
        """Return a value without stand-ins, in which nothing is shared."""
        self._count(1)
        if depth > MAX_DEPTH:
            raise PickleRefused(f"is nested deeper than {MAX_DEPTH} levels")
        match value:
            case dict():
                return {key: self.convert(item, depth + 1) for key, item in value.items()}
            case list():
                return [self.convert(item, depth + 1) for item in value]
            case str() | int() | float() | None:
                return value
            case (
                _Array(arguments=[*_, [_, _, type, _, data]]) | _Buffer(arguments=[data, type, *_])
            ):
                values = _to_array(type, data)
                self._count(len(values))
                return values.tolist()
            case _Scalar(arguments=[type, data]):
                return _to_array(type, data).item()
            case _:
                return _refuse_more()

    def _count(self, n: int) -> None:
        self._n_values += n
        if self._n_values > self._max_values:
            raise PickleRefused(f"has more than {self._max_values:,} values")


def _refuse_more() -> NoReturn:
    raise PickleRefused("contains more than plain values and arrays of numbers")


def _to_array(type: Any, data: Any) -> Any:
    match type:
        case _Type(arguments=[str(code), *_, [_, str(order), *_]]) if re.fullmatch(
            "[iuf][1248]", code
        ):
            return np.frombuffer(_bytes(data), _ORDERS[order] + code)
    raise PickleRefused("contains arrays of other things than numbers")


def _bytes(data: Any) -> bytes:
    match data:
        case bytes():
            return data
        case str(text) | _Encoded(arguments=[str(text), "latin1"]):
            return text.encode("latin1")
        case _Encoded(arguments=[]):
            return b""
    raise PickleRefused("contains an array without its bytes")
