"""Rows of numbers ↔ texts, as payloads have them: JSON has no bytes.

A character has six bits of a row, as in base64. The bytes of a row are divided into three parts of
equal length: first come the lower six bits of each byte, part by part, then the upper two bits of
all three parts together. So a thousand texts are read by a few operations on whole arrays, several
times faster than base64. Not this module's job: what the rows mean.
"""

from collections.abc import Sequence

import numpy as np

from bm25v.gallery.rows import RowArray

ROW_MULTIPLE = 12  # bytes: each part of a row consists of numbers of 32 bits

_LOWER, _UPPER = np.uint32(0x3F3F3F3F), np.uint32(0xC0C0C0C0)  # bits of four bytes
_SHIFTS = np.array([[6], [4], [2]], dtype=np.uint32)  # of the upper bits of each part
# The character of each code: those from ? to ~, whose lower six bits are the code.
_CHARACTERS = bytes(0x3F if code % 64 == 63 else 0x40 + code % 64 for code in range(256))
_CHUNK_ROWS = 128  # read at once: they fit into the cache


def write_texts(rows: RowArray) -> list[str]:
    """Return rows as texts.

    >>> write_texts(np.array([([1, 2, 255],)], dtype=[("words", "<u4", 3)]))
    ['A@@@B@@@?@@@p@@@']
    """
    part = rows.dtype.itemsize // ROW_MULTIPLE
    parts = np.frombuffer(rows.tobytes(), dtype=np.uint32).reshape(len(rows), 3, part)
    codes = np.empty((len(rows), 4, part), dtype=np.uint32)
    codes[:, :3] = parts & _LOWER
    codes[:, 3] = np.bitwise_or.reduce((parts & _UPPER) >> _SHIFTS, axis=1)
    text, width = codes.tobytes().translate(_CHARACTERS).decode("ascii"), 16 * part
    return [text[at : at + width] for at in range(0, len(text), width)]


def read_texts(
    texts: Sequence[str], dtype: np.dtype[np.void], *, compiled: bool = False
) -> RowArray:
    """Return the rows in texts; raise `ValueError` if a text is not one.

    `compiled` chooses the implementation: compiled is twice as fast, once numba is imported.

    >>> read_texts(["A@@@B@@@?@@@p@@@"], np.dtype([("words", "<u4", 3)]))["words"].tolist()
    [[1, 2, 255]]
    """
    part = dtype.itemsize // ROW_MULTIPLE
    if not {16 * part}.issuperset(map(len, texts)):
        raise ValueError(f"bags of another size than {16 * part} characters")
    parts = np.empty((len(texts), 3, part), dtype=np.uint32)
    for start in range(0, len(texts), _CHUNK_ROWS):
        chunk = slice(start, start + _CHUNK_ROWS)
        content = "".join(texts[chunk]).encode("ascii")
        codes = np.frombuffer(content, dtype=np.uint32).reshape(-1, 4, part)
        if compiled:
            from bm25v.engines import row_text_kernels

            row_text_kernels.join_bits(codes, _LOWER, _UPPER, parts[chunk])
        else:
            upper = (codes[:, 3:] << _SHIFTS) & _UPPER
            np.bitwise_or(codes[:, :3] & _LOWER, upper, out=parts[chunk])
    parts.flags.writeable = False
    return parts.reshape(-1).view(dtype)
