"""Just enough of the protocol buffers format to write a few bytes of an ONNX model.

In: field numbers and values. Out: bytes. Not this room's job: reading, or knowing ONNX.
"""


def field(number: int, value: bytes | str | int) -> bytes:
    """Return one field: text, bytes and messages with their length, numbers as they are.

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
