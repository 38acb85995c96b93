"""Names of words as a table that people can read, edit and pass on: a TSV file.

In: a text, or a mapping from words to names. Out: the other one. A vocabulary keeps such a table
as `words.tsv`, a gallery the names that its people typed as `names.tsv`:

    # bm25v word names, format 1, vocabulary 0123456789abcdef
    word    name
    4711    striped ear

Further columns are for people and are not read. Tables made by hand may leave the first two lines
out. Not this room's job: what a word looks like, and who may name it.
"""

import os
import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path

from bm25v.errors import WrongUse

FORMAT = 1
LONGEST = 100  # characters in a name

_STAMP = re.compile(r"# bm25v word names, format (\d+)(?:, vocabulary (\w+))?")
_NO_TEXT = {"Cc", "Cs", "Zl", "Zp"}  # control characters, halves of characters, line breaks


def check_name(name: str) -> str:
    """Return a name without spaces around it, or refuse it.

    >>> check_name("  striped ear ")
    'striped ear'
    """
    name = unicodedata.normalize("NFC", name).strip()
    if not name:
        raise WrongUse("an empty name: give at least one letter")
    if any(unicodedata.category(character) in _NO_TEXT for character in name):
        raise WrongUse(f"the name {name!r} has a tab, a line break or the like: leave it out")
    if name.isdecimal():
        raise WrongUse(f"the name {name!r} would pass for a word's number: add a letter")
    if len(name) > LONGEST:
        raise WrongUse(f"a name of {len(name)} characters: {LONGEST} is the limit")
    return name


def check_word(word: int, n_words: int) -> int:
    """Return a word's number, or refuse one that is not in the vocabulary.

    >>> check_word(191, n_words=192)
    191
    """
    if not 0 <= word < n_words:
        raise WrongUse(f"no word {word}: this vocabulary has words 0 to {n_words - 1}")
    return word


def find_word(text: str, names: Mapping[int, str], n_words: int) -> int:
    """Return the word that a person means, by its number or by its name.

    >>> find_word("12", {}, n_words=192), find_word("Striped Ear", {4: "striped ear"}, n_words=192)
    (12, 4)
    """
    wanted = unicodedata.normalize("NFC", text).strip()
    if re.fullmatch(r"-?[0-9]{1,18}", wanted):
        return check_word(int(wanted), n_words)
    found = [word for word, name in names.items() if name.casefold() == wanted.casefold()]
    if not found:
        raise WrongUse(f"no word is named {text!r}: give its number, or `bm25v words name` one so")
    if len(found) > 1:
        numbers = ", ".join(map(str, sorted(found)))
        raise WrongUse(f"several words are named {text!r}: give the number of one of {numbers}")
    return found[0]


def find_named_words(text: str, names: Mapping[int, str]) -> list[int]:
    """Return the words whose name stands in a text, or has the text in it; whole words only.

    >>> names = {3: "Cat", 4: "striped", 5: "caterpillar", 6: "cat ear"}
    >>> find_named_words("a striped cat", names), find_named_words("cat", names)
    ([3, 4], [3, 6])
    """
    wanted = _phrase(text)
    phrases = {word: _phrase(name) for word, name in names.items()}
    return sorted(w for w, phrase in phrases.items() if phrase in wanted or wanted in phrase)


def format_names(
    names: Mapping[int, str], *, vocabulary: str, notes: Mapping[int, str] | None = None
) -> str:
    """Return names as a table, by number; `notes` become a column for people.

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
    r"""Return the names in a table; lines without a name are passed over.

    >>> parse_names("7\tgrass\n9\t\n", n_words=192, vocabulary="", source="mine.tsv")
    {7: 'grass'}
    """
    names: dict[int, str] = {}
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        try:
            if line.startswith("#"):
                _check_stamp(line, vocabulary)
                continue
            word, _, rest = line.rstrip("\r").partition("\t")
            name = rest.partition("\t")[0].strip()
            if not line.strip() or (word.strip() == "word" and not names):
                continue
            if not re.fullmatch(r"[0-9]{1,18}", word.strip()):
                raise WrongUse(f"{word!r} is no number of a word: write the number, a tab, a name")
            found = check_word(int(word), n_words)
            if found in names:
                raise WrongUse(f"word {found} has a name already, {names[found]!r}: keep one")
            if name:
                names[found] = check_name(name)
        except WrongUse as error:
            raise WrongUse(f"{source}, line {number}: {error}") from None
    return names


def read_names(path: Path, *, n_words: int, vocabulary: str) -> dict[int, str]:
    """Return the names in a file."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise WrongUse(f"{path} is not text in UTF-8: save it as such") from None
    return parse_names(text, n_words=n_words, vocabulary=vocabulary, source=str(path))


def write(path: Path, text: str) -> None:
    """Bring a table to disk; a file that was there stays whole until the new one is."""
    new = path.with_name(f".{path.name}.new")
    with new.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _phrase(text: str) -> str:
    """Return a text as words with a space around each, whatever its case and punctuation."""
    tokens = re.findall(r"\w+|[^\w\s]", unicodedata.normalize("NFC", text).casefold())
    return f" {' '.join(tokens)} "


def _check_stamp(line: str, vocabulary: str) -> None:
    stamp = _STAMP.match(line)
    if stamp is None:
        return
    if int(stamp[1]) > FORMAT:
        raise WrongUse(f"names of format {stamp[1]}, this bm25v reads up to {FORMAT}: upgrade it")
    if stamp[2] and stamp[2] != vocabulary:
        raise WrongUse(
            f"names of words of another vocabulary ({stamp[2]}, not {vocabulary}): the same "
            "numbers mean other words there"
        )
