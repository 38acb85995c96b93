"""Writes fields in the format of protocol buffers, as far as ONNX graphs need it.

In: field numbers and values. Out: bytes. Not this module's job: reading, and what ONNX's fields
mean.
"""


def field(number: int, value: bytes | str | int) -> bytes:
    """Return one field: a number, or text, bytes or a message after their length.

    >>> field(1, 300).hex(" ")
    '08 ac 02'
    >>> field(2, "on").hex(" ")
    '12 02 6f 6e'
    """
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    payload = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    low = bytes([value & 127])
    return low if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)
