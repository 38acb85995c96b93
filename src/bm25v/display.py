"""How values are shown to people, with strings that any terminal, page or plot can show."""

import contextlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Characters that end a line, move the cursor or reverse the text of a terminal.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f]")


def printable(text: str) -> str:
    """Return a text that every output can encode; bytes that are not text become "?".

    >>> printable("caf\\udce9.jpg")
    'caf?.jpg'
    """
    return text.encode(errors="replace").decode()


def one_line(text: str) -> str:
    """Return a text as one line that no terminal takes for a command: no control characters.

    >>> one_line("red \\x1b[31m, two\\nlines")
    'red ?[31m, two?lines'
    """
    return _CONTROL.sub("?", printable(text))


def first_line(text: str) -> str:
    """Return the first line of a long message.

    >>> first_line("no such model\\nTraceback of 40 lines")
    'no such model'
    """
    return one_line(text.strip().partition("\n")[0])


def display_path(path: str) -> str:
    """Return a path in one line, relative to the current folder if it is inside it.

    >>> display_path("/somewhere/else/two\\nlines.jpg")
    '/somewhere/else/two?lines.jpg'
    """
    with contextlib.suppress(ValueError):
        path = str(Path(path).relative_to(Path.cwd()))
    return one_line(path)


def format_json(value: Any, *, indent: int | None = 2) -> str:
    """Return plain values as JSON; NaN and infinite numbers, which JSON has not, become null.

    It is ASCII, so that every terminal shows it and every path is read back as it was.

    >>> print(format_json({"path": "caf\\udce9.jpg", "scores": [0.5, math.nan, math.inf]}))
    {
      "path": "caf\\udce9.jpg",
      "scores": [
        0.5,
        null,
        null
      ]
    }
    """
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_without_nan(value), indent=indent, allow_nan=False)


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return value


def word_label(word: int, name: str | None) -> str:
    """Return a word's name, or its number if it has none.

    >>> word_label(12, None), word_label(12, "striped ear")
    ('word 12', 'striped ear')
    """
    return name or f"word {word}"


def identify_word(word: int, name: str | None) -> str:
    """Return a word's number, and its name if it has one.

    >>> identify_word(12, None), identify_word(12, "striped ear")
    ('12', "12 'striped ear'")
    """
    return f"{word} {name!r}" if name else str(word)


def count(n: int, noun: str) -> str:
    """Return a number and its noun.

    >>> count(1, "word"), count(1200, "image")
    ('1 word', '1,200 images')
    """
    return f"{n:,} {noun}{'s' * (n != 1)}"


def duration(seconds: float) -> str:
    """Return a duration in the units that people use.

    >>> duration(0.0312), duration(4.21), duration(131), duration(7265)
    ('0.03s', '4.2s', '2m 11s', '2h 01m')
    """
    if seconds < 1:
        return f"{seconds:.2f}s"
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m {rest:02d}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60:02d}m"


def file_size(n_bytes: int) -> str:
    """Return a number of bytes in a readable unit.

    >>> file_size(184), file_size(12_345), file_size(12_345_678), file_size(1_234_567_890)
    ('184 bytes', '12.3 kB', '12.3 MB', '1.2 GB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes} bytes"
