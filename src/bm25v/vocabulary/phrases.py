"""Texts as tokens, and an index from names to what they name.

Case, accents, hyphens, apostrophes and plurals do not matter, nor whether a name is written as one
word or as several; only whole words count: "cat" is not in "catamaran".
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

_ARTICLES = "a an any her his its my our some the their these this those your"
_OTHERS = (
    "about above across after against all along alongside also am amid among amongst and another "
    "are around as at atop away be because been before behind being below beneath beside between "
    "but by could did do does doing done down during each either else even every everything few "
    "find for from front get gets getting go goes going had has have he herself him himself how i "
    "if image images in inside into is it itself just made make makes making many me more "
    "most much must near next now of off on only onto or other others out outside over own per "
    "photo photograph photographs photos picture pictures please quite rather really same she "
    "shot should show showing shows since snapshot so something somewhere such than that then "
    "there they though through throughout to together too toward towards under until up upon us "
    "various very via view want was we were what when where whether which while who whom whose "
    "will with within would yet you"
)
ARTICLES = frozenset(_ARTICLES.split())
SMALL_WORDS = ARTICLES.union(_OTHERS.split())  # they say nothing about what an image shows

_TOKEN = re.compile(r"[^\W_]+(?:['’ʼ][^\W_]+)*", re.UNICODE)
_APOSTROPHES = str.maketrans("", "", "'’ʼ")
_IRREGULAR = {
    "children": "child",
    "feet": "foot",
    "geese": "goose",
    "leaves": "leaf",
    "men": "man",
    "mice": "mouse",
    "oxen": "ox",
    "people": "person",
    "teeth": "tooth",
    "women": "woman",
}
_ENDINGS = (("s", ""), ("es", ""), ("ies", "y"), ("ves", "f"), ("ves", "fe"))
_SHORTEST = 3  # letters of a singular that an ending is taken off from
_SPELLED = re.compile("[a-z]{5,20}")  # words that may be misspelled: shorter ones become others


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
    (['knive', 'kniv', 'knif', 'knife'], ['mouse'], [])
    """
    if key in _IRREGULAR:
        yield _IRREGULAR[key]
    elif not key.endswith("ss"):
        for ending, singular in _ENDINGS:
            stem = key.removesuffix(ending)
            if stem != key and len(stem + singular) >= _SHORTEST:
                yield stem + singular


class PhraseIndex:
    """Names, each with numbers, that runs of tokens are looked up in.

    The names are given as `make_key` writes them.

    >>> index = PhraseIndex({"hot dog": (1,), "dog": (2,), "soft coated wheaten terrier": (3,)})
    >>> [index.find(split_text(text)) for text in ("Dogs", "hotdogs", "wheaten terrier", "hound")]
    [(2,), (1,), (3,), ()]
    """

    def __init__(self, numbers: Mapping[str, tuple[int, ...]]) -> None:
        self._exact = numbers
        self.longest = max((key.count(" ") + 1 for key in numbers), default=0)

    def __contains__(self, key: str) -> bool:
        return key in self._exact

    def find(self, tokens: Sequence[Token]) -> tuple[int, ...]:
        """Return the numbers of the name that a run of tokens is; its last may be a plural."""
        if any(token.starts_phrase for token in tokens[1:]):
            return ()
        *first, last = (token.key for token in tokens)
        for ending in (last, *list_singulars(last)):
            numbers = self._find_keys([*first, ending])
            if numbers:
                return numbers
        return ()

    def find_containing(self, token: Token) -> tuple[int, ...]:
        """Return the numbers of the names that have a word: "snow" of "snow slope"."""
        keys = {token.key, *list_singulars(token.key)} - SMALL_WORDS
        names = (name for name in self._exact if not keys.isdisjoint(name.split(" ")))
        return tuple(dict.fromkeys(number for name in names for number in self._exact[name]))

    def find_misspelled(self, token: Token, is_doubtful: Callable[[int], bool]) -> str | None:
        """Return the name that a word is one mistake away from; of several, swapped letters first.

        A doubtful name, by its number, is none: the word is more likely one that is not known.

        >>> index = PhraseIndex({"bagel": (1,), "beagle": (2,), "bengali": (3,)})
        >>> [index.find_misspelled(t, lambda n: n > 2) for t in split_text("bageel beagel Bengal")]
        ['bagel', 'beagle', None]
        """
        key = token.key
        if not _SPELLED.fullmatch(key):
            return None
        known = (name for name in _list_misspellings(key) if name in self._exact)
        names = (name for name in known if not is_doubtful(self._exact[name][0]))
        letters = sorted(key)
        return min(names, key=lambda n: (sorted(n) != letters, self._exact[n]), default=None)

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


def make_key(name: str) -> str:
    """Return a name as texts are compared with it.

    >>> make_key("Soft-coated Wheaten Terrier")
    'soft coated wheaten terrier'
    """
    return " ".join(token.key for token in split_text(name))


def _list_misspellings(word: str) -> Iterator[str]:
    """Yield what a word becomes if one letter is left out, added or replaced, or two swapped."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    for at in range(len(word) + 1):
        before, after = word[:at], word[at:]
        yield before + after[1:]
        for letter in letters:
            yield before + letter + after
            yield before + letter + after[1:]
        for other in range(1, len(after)):
            yield before + after[other] + after[1:other] + after[0] + after[other + 1 :]
