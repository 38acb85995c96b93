"""Reads and writes fields in the format of protocol buffers, as far as ONNX and CIFF need it.

In: field numbers and values, or bytes. Out: bytes, or field numbers and values. Not this module's
job: what the fields mean.
"""

import struct
from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # how a field's value is stored


def field(number: int, value: bytes | str | int | float) -> bytes:
    """Return one field: a number, or text, bytes or a message after their length.

    >>> field(1, 300).hex(" ")
    '08 ac 02'
    >>> field(2, "on").hex(" ")
    '12 02 6f 6e'
    """
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    if isinstance(value, float):
        return _varint(number << 3 | _FIXED64) + struct.pack("<d", value)
    payload = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | _BYTES) + _varint(len(payload)) + payload


def delimited(message: bytes) -> bytes:
    """Return a message after its length, as in a file of several messages.

    >>> delimited(field(1, 300)).hex(" ")
    '03 08 ac 02'
    """
    return _varint(len(message)) + message


def read_fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the number and the bytes of each text, bytes or message field; skip numbers.

    Whatever is no message raises `ValueError`.

    >>> [(number, bytes(value)) for number, value in read_fields(memoryview(field(2, "on")))]
    [(2, b'on')]
    """
    return ((key, value) for key, value in _read_all(message) if isinstance(value, memoryview))


def read_numbers(message: memoryview, number: int) -> list[int]:
    """Return the values of a field of numbers.

    >>> read_numbers(memoryview(field(1, 300) + field(2, "on") + field(1, 7)), 1)
    [300, 7]
    """
    return [v for key, v in _read_all(message) if key == number and isinstance(v, int)]


def _read_all(message: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """Yield the number and the value of each field; skip those of a fixed size."""
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _read_varint(message, at)
            yield key >> 3, value
            continue
        if kind not in (_FIXED64, _BYTES, _FIXED32):
            raise ValueError(f"no protocol buffer has a value of kind {kind}")
        length, at = _read_varint(message, at) if kind == _BYTES else (8 if kind == 1 else 4, at)
        if length > len(message) - at:
            raise ValueError("the protocol buffer is cut off")
        if kind == _BYTES:
            yield key >> 3, message[at : at + length]
        at += length


def _varint(value: int) -> bytes:
    low = bytes([value & 127])
    return low if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return a number and the position after it; seven bits per byte, the lowest ones first."""
    value = 0
    for index in range(10):
        if at + index >= len(message):
            raise ValueError("the protocol buffer is cut off")
        byte = message[at + index]
        value |= (byte & 127) << 7 * index
        if byte < 128:
            return value, at + index + 1
    raise ValueError("the protocol buffer has a number of more than ten bytes")
