"""Names of words as a table that people can read, edit and share: a TSV file.

A vocabulary has such a table as `words.tsv`, a gallery has one as `names.tsv`, for the names that
people gave in it:

    # bm25v word names, format 1, vocabulary 0123456789abcdef
    word    name
    4711    striped ear

Further columns are for people and are not read. The first two lines may be left out.
"""

import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path

from bm25v.errors import InvalidOption
from bm25v.files import read_limited
from bm25v.schema import show_value

FORMAT = 1
MAX_LENGTH = 100  # characters in a name
NOT_ALLOWED = {"Cc", "Cs", "Zl", "Zp"}  # control characters, surrogates, line breaks

_MAX_BYTES = 64_000_000  # of a table
_HEADER = re.compile(r"# bm25v word names, format ([0-9]{1,9})(?:, vocabulary (\w{1,64}))?")


def check_name(name: str) -> str:
    """Return a name without spaces around it; raise `InvalidOption` if it cannot be in a table.

    >>> check_name("  striped ear ")
    'striped ear'
    """
    name = unicodedata.normalize("NFC", name).strip()
    if not name:
        raise InvalidOption("an empty name: give at least one character")
    if len(name) > MAX_LENGTH:
        raise InvalidOption(f"a name of {len(name)} characters: give at most {MAX_LENGTH}")
    if any(unicodedata.category(character) in NOT_ALLOWED for character in name):
        raise InvalidOption(
            f"the name {name!r} has a tab, line break or control character: leave it out"
        )
    if name.isdecimal():
        raise InvalidOption(f"the name {name!r} looks like the number of a word: add a letter")
    return name


def check_word(word: int, n_words: int) -> int:
    """Return a word's number; raise `InvalidOption` if the vocabulary has no such word."""
    if not 0 <= word < n_words:
        raise InvalidOption(f"no word {word}: this vocabulary has words 0 to {n_words - 1}")
    return word


def check_names(names: Mapping[int, str | None], n_words: int) -> dict[int, str | None]:
    """Return new names of words, None for a name to be cleared; raise if one is wrong.

    >>> check_names({7: " striped ear ", 8: None}, n_words=192)
    {7: 'striped ear', 8: None}
    """
    return {
        check_word(word, n_words): None if name is None else check_name(name)
        for word, name in names.items()
    }


def is_name(word: int | str) -> bool:
    """Return whether a word is given by a name, not by its number."""
    return isinstance(word, str) and not re.fullmatch(r"-?[0-9]{1,18}", word.strip())


def find_word(text: str, names: Mapping[int, str], n_words: int) -> tuple[int, ...]:
    """Return the words that a person means: one by its number, or all that have a name.

    >>> names = {4: "striped ear", 9: "striped ear"}
    >>> find_word("12", names, n_words=192), find_word("Striped Ear", names, n_words=192)
    ((12,), (4, 9))
    """
    stripped = unicodedata.normalize("NFC", text).strip()
    if not is_name(stripped):
        return (check_word(int(stripped), n_words),)
    words = [word for word, name in names.items() if name.casefold() == stripped.casefold()]
    if not words:
        raise InvalidOption(
            f"no word is named {text!r}: give its number, or name a word with `bm25v words name`"
        )
    return tuple(sorted(words))


def format_names(
    names: Mapping[int, str], *, vocabulary: str, notes: Mapping[int, str] | None = None
) -> str:
    """Return names as a table, sorted by word; `notes` become a third column.

    >>> print(format_names({7: "grass", 2: "ear"}, vocabulary="0123456789abcdef"), end="")
    # bm25v word names, format 1, vocabulary 0123456789abcdef
    word    name
    2       ear
    7       grass
    """
    columns = ["word", "name"] if notes is None else ["word", "name", "note"]
    lines = [f"# bm25v word names, format {FORMAT}, vocabulary {vocabulary}", "\t".join(columns)]
    for word in sorted(names):
        note = () if notes is None else (notes.get(word, ""),)
        lines.append("\t".join((str(word), check_name(names[word]), *note)))
    return "".join(f"{line}\n" for line in lines)


def parse_names(text: str, *, n_words: int, vocabulary: str, source: str) -> dict[int, str]:
    r"""Return the names in a table; lines without a name are skipped.

    `vocabulary` is the fingerprint that the table must be for, `source` its path in error messages.

    >>> parse_names("7\tgrass\n9\t\n", n_words=192, vocabulary="", source="mine.tsv")
    {7: 'grass'}
    """
    names: dict[int, str] = {}
    for line_number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        try:
            if line.startswith("#"):
                _check_header(line, vocabulary)
                continue
            number, name = (part.strip() for part in f"{line}\t".split("\t")[:2])
            if not line.strip() or (number == "word" and not names):
                continue
            if not re.fullmatch(r"[0-9]{1,18}", number):
                raise InvalidOption(
                    f"{show_value(number)} is not the number of a word: "
                    "write the number, a tab, the name"
                )
            word = check_word(int(number), n_words)
            if word in names:
                raise InvalidOption(
                    f"word {word} already has the name {names[word]!r}: keep one of them"
                )
            if name:
                names[word] = check_name(name)
        except InvalidOption as error:
            raise InvalidOption(f"{source}, line {line_number}: {error}") from None
    return names


def read_names(path: Path, *, n_words: int, vocabulary: str) -> dict[int, str]:
    try:
        text = read_limited(path, _MAX_BYTES).decode()
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        raise InvalidOption(f"{path} is not UTF-8 text: save it in this encoding") from None
    except ValueError as error:
        raise InvalidOption(f"{path} is not a table of names: {error}") from None
    return parse_names(text, n_words=n_words, vocabulary=vocabulary, source=str(path))


def _check_header(line: str, vocabulary: str) -> None:
    header = _HEADER.match(line)
    if header is None:
        return
    if int(header[1]) > FORMAT:
        raise InvalidOption(
            f"names in format {header[1]}, this bm25v reads up to format {FORMAT}: upgrade bm25v"
        )
    if header[2] and header[2] != vocabulary:
        raise InvalidOption(
            f"names for another vocabulary ({header[2]}, not {vocabulary}), where the same numbers "
            "are other words: use names for this one"
        )
