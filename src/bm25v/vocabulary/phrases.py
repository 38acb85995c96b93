"""Texts as tokens, and an index from names to what they name.

Case, accents, hyphens, apostrophes and plurals do not matter, nor whether a name is written as one
word or as several; only whole words count: "cat" is not in "catamaran".
"""

import difflib
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

_ARTICLES = "a an any her his its my our some the their these this those your"
_OTHERS = (
    "all and are as at be before behind beside between by find for from front has have i image "
    "images in inside into is it me near next of on onto or outside over photo photograph "
    "photographs photos picture pictures please shot show showing shows snapshot that there to "
    "under view want where which with"
)
ARTICLES = frozenset(_ARTICLES.split())
SMALL_WORDS = ARTICLES.union(_OTHERS.split())  # they say nothing about what an image shows

_TOKEN = re.compile(r"[^\W_]+(?:['’ʼ][^\W_]+)*", re.UNICODE)
_APOSTROPHES = str.maketrans("", "", "'’ʼ")
_IRREGULAR = {
    "children": "child",
    "feet": "foot",
    "geese": "goose",
    "men": "man",
    "mice": "mouse",
    "oxen": "ox",
    "people": "person",
    "teeth": "tooth",
    "women": "woman",
}
_ENDINGS = (("ies", "y"), ("ves", "f"), ("ves", "fe"), ("es", ""), ("s", ""))
_SHORTEST = 3  # letters of a singular that an ending is taken off from


class Token(NamedTuple):
    """A word of a text, or a sign that is neither a word nor punctuation."""

    text: str  # as it was written
    key: str  # in lower case, without accents
    starts_phrase: bool  # punctuation separates it from the token before it
    is_negated: bool  # it was written with a minus: "-dog"


def split_text(text: str) -> list[Token]:
    """Return the tokens of a text.

    >>> [token.key for token in split_text("Crème-brûlée & the dog's 🐕 -cat")]
    ['creme', 'brulee', 'the', 'dogs', '🐕', 'cat']
    """
    text = unicodedata.normalize("NFC", text)
    tokens: list[Token] = []
    end = 0
    for start, stop, is_word in _find_spans(text):
        gap = text[end:start]
        is_separate = any(unicodedata.category(c)[0] == "P" and c not in "-_‐‑'’" for c in gap)
        has_minus = is_word and start > 0 and text[start - 1] in "-−–"
        is_negated = has_minus and (start == 1 or text[start - 2].isspace())
        written = text[start:stop]
        key = fold(written) if is_word else written
        tokens.append(Token(written, key, is_separate or is_negated or not is_word, is_negated))
        end = stop
    return tokens


def _find_spans(text: str) -> Iterator[tuple[int, int, bool]]:
    """Return where words are, and the other signs that are neither punctuation nor spaces."""
    end = 0
    for match in [*_TOKEN.finditer(text), None]:
        start = len(text) if match is None else match.start()
        for position in range(end, start):
            category = unicodedata.category(text[position])
            if category[0] in "SNLC" and category != "Cc" and text[position] not in "+−|~^`":
                yield position, position + 1, False
        if match is not None:
            yield match.start(), match.end(), True
            end = match.end()


def fold(word: str) -> str:
    """Return a word in lower case, without accents and apostrophes.

    >>> fold("Crème"), fold("Lady’s")
    ('creme', 'ladys')
    """
    decomposed = unicodedata.normalize("NFKD", word.translate(_APOSTROPHES).casefold())
    return "".join(c for c in decomposed if not unicodedata.combining(c))


def list_singulars(key: str) -> Iterator[str]:
    """Return what a word may be the plural of.

    >>> list(list_singulars("knives")), list(list_singulars("mice")), list(list_singulars("glass"))
    (['knif', 'knife', 'kniv', 'knive'], ['mouse'], [])
    """
    if key in _IRREGULAR:
        yield _IRREGULAR[key]
    elif not key.endswith("ss"):
        for ending, singular in _ENDINGS:
            stem = key.removesuffix(ending)
            if stem != key and len(stem + singular) >= _SHORTEST:
                yield stem + singular


class PhraseIndex:
    """Names, each with a number, that runs of tokens are looked up in.

    >>> index = PhraseIndex([("hot dog", 1), ("dog", 2), ("soft-coated wheaten terrier", 3)])
    >>> [index.find(split_text(text)) for text in ("Dogs", "hotdogs", "wheaten terrier", "hound")]
    [(2,), (1,), (3,), ()]
    """

    def __init__(self, names: Iterable[tuple[str, int]]) -> None:
        exact: defaultdict[str, dict[int, None]] = defaultdict(dict)
        self._names: dict[str, str] = {}
        for name, number in names:
            key = " ".join(token.key for token in split_text(name))
            exact[key][number] = None
            self._names.setdefault(key, name)
        self._exact = {key: tuple(numbers) for key, numbers in exact.items()}
        self.longest = max((key.count(" ") + 1 for key in self._exact), default=0)

    def find(self, tokens: Sequence[Token]) -> tuple[int, ...]:
        """Return the numbers of the names that a run of tokens is; its last may be a plural."""
        if any(token.starts_phrase for token in tokens[1:]):
            return ()
        *first, last = (token.key for token in tokens)
        for ending in (last, *list_singulars(last)):
            numbers = self._find_keys([*first, ending])
            if numbers:
                return numbers
        return ()

    def find_first_word(self, token: Token) -> tuple[int, ...]:
        """Return the number of the only name that starts with a word: "Persian" of "Persian cat".

        Only proper adjectives are such words.
        """
        numbers = {
            number
            for key, name in self._names.items()
            if name[:1].isupper() and key.startswith(f"{token.key} ") and name.count(" ") == 1
            for number in self._exact[key]
        }
        return tuple(numbers) if len(numbers) == 1 else ()

    def find_containing(self, token: Token) -> tuple[int, ...]:
        """Return the numbers of the names that have a word: "snow" of "snow slope"."""
        keys = {token.key, *list_singulars(token.key)} - SMALL_WORDS
        names = (name for name in self._exact if not keys.isdisjoint(name.split(" ")))
        return tuple(dict.fromkeys(number for name in names for number in self._exact[name]))

    def find_similar(self, token: Token, n: int = 3) -> list[str]:
        """Return the names most similar to a word that is none."""
        keys = difflib.get_close_matches(token.key, self._names, n, cutoff=0.75)
        return [self._names[key] for key in keys]

    def _find_keys(self, keys: Sequence[str]) -> tuple[int, ...]:
        spaced = " ".join(keys)
        if spaced in self._exact:
            return self._exact[spaced]
        if any(key in SMALL_WORDS for key in keys):
            return ()
        joined = "".join(keys)
        if len(joined) >= _SHORTEST and joined in self._joined:
            return self._joined[joined]
        return self._parts.get(joined, ()) if len(keys) > 1 else ()

    @cached_property
    def _joined(self) -> dict[str, tuple[int, ...]]:
        return {key.replace(" ", ""): numbers for key, numbers in self._exact.items()}

    @cached_property
    def _parts(self) -> dict[str, tuple[int, ...]]:
        """Beginnings and ends of names, of two or more words, that stand for one name only."""
        parts: defaultdict[str, set[int]] = defaultdict(set)
        for key, numbers in self._exact.items():
            keys = key.split(" ")
            for n in range(2, len(keys)):
                for part in (keys[:n], keys[-n:]):
                    if not SMALL_WORDS.intersection((part[0], part[-1])):
                        parts["".join(part)].update(numbers)
        return {part: tuple(numbers) for part, numbers in parts.items() if len(numbers) == 1}
