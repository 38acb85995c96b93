"""Reads a text: what it means by the lexicon, by names that people gave, by dates and by paths.

Names of images come first (“Anna's birthday”). The longest names count. "without a dog", "no dog"
and "-dog" count against images; small words such as "a" and "on" say nothing. What is no word of
the lexicon is looked for in folder and file names, then as a misspelled word; what is left is not
understood. A text tower reads a text as a whole.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import NamedTuple

import numpy as np

from bm25v.backbones.protocol import Floats
from bm25v.errors import InvalidQuery
from bm25v.index.bm25 import WeightedWords
from bm25v.search.query import Word
from bm25v.store.base import Filter, View
from bm25v.store.filters import Called, DateRange, ImageFilter, parse_period
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.lexicon import CAPTIONS, Entry, Lexicon
from bm25v.vocabulary.names import check_word, find_word
from bm25v.vocabulary.phrases import (
    ARTICLES,
    SMALL_WORDS,
    PhraseIndex,
    Token,
    list_singulars,
    make_key,
    split_text,
)

MAX_TERMS = 64  # of a text that count
TEXT_WEIGHT = 0.07  # beside images: what one standard deviation of a text adds to a cosine
NAMED_WEIGHT = 0.5  # of a word that people named, beside entries of the lexicon

_MAX_WORDS = 500  # of a text that are read
_MAX_LOOKUPS = 8  # of names in paths
_NEGATIONS = {"without", "no", "not", "except", "excluding", "minus"}
_CONNECTIVES = {"or", "nor", "and"}
_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_UNCERTAIN_MONTHS = {"march", "may", "mar"}  # they mean something else without a year
_YEAR = re.compile("(19|20)[0-9]{2}")
_ISO_DATE = re.compile("(19|20)[0-9]{2}-[0-9]{1,2}(-[0-9]{1,2})?")
_FIRST_YEAR = 1990  # of photos that a month without a year may mean


class NamedVocabulary(NamedTuple):
    """A vocabulary, and the names of its words in one collection."""

    vocabulary: Vocabulary
    names: Mapping[int, str]
    own_names: Mapping[int, str]  # those of them that people gave in the collection
    image_names: Mapping[str, Called] = {}  # names that people gave to images, by their keys

    def find_words(self, words: Iterable[Word]) -> tuple[int, ...]:
        """Return words by their numbers or names, each once."""
        return tuple(dict.fromkeys(word for group in self.find_groups(words) for word in group))

    def find_groups(self, words: Iterable[Word]) -> tuple[tuple[int, ...], ...]:
        """Return words by their numbers, and all words of a name."""
        return tuple(dict.fromkeys(map(self._find_group, words)))

    def _find_group(self, word: Word) -> tuple[int, ...]:
        if isinstance(word, str):
            return find_word(word, self.names, self.vocabulary.n_words)
        if isinstance(word, bool) or not isinstance(word, int | np.integer):
            raise InvalidQuery(f"{word!r} is not a word: give its number or its name")
        return (check_word(int(word), self.vocabulary.n_words),)


@dataclass(frozen=True, eq=False)
class TextTerm:
    """What a word or phrase of a text adds to a query."""

    label: str
    dense_e: Floats | None  # part of the query's vector
    words: WeightedWords  # part of the query's words
    means: tuple[float, float] = (0.0, 0.0)  # of what both parts give for any photo
    weight: float = 0.0  # of an entry of the lexicon that images should show
    learned_from: int = CAPTIONS

    @classmethod
    def of_entry(cls, label: str, entry: Entry, sign: float) -> "TextTerm":
        weight = sign * entry.weight
        words = WeightedWords(entry.words, weight * entry.word_weights, np.zeros(len(entry.words)))
        means = (weight * entry.means[0], weight * entry.means[1])
        vector_e = np.float32(weight) * entry.direction_e
        return cls(label, vector_e, words, means, max(weight, 0.0), entry.learned_from)

    @classmethod
    def of_words(cls, label: str, words: Sequence[int]) -> "TextTerm":
        listed = np.array(sorted(words), dtype=np.int32)
        weights = np.full(len(listed), NAMED_WEIGHT)
        return cls(label, None, WeightedWords(listed, weights, np.zeros(len(listed))))


@dataclass(frozen=True)
class TextMeaning:
    """What a text stands for in a collection."""

    terms: tuple[TextTerm, ...] = ()
    must: tuple[tuple[int, ...], ...] = ()  # words that people named: any of each group
    without: tuple[int, ...] = ()
    images: ImageFilter = field(default_factory=ImageFilter)  # dates and names of paths
    understood: tuple[str, ...] = ()
    not_understood: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # for the user


def interpret_text(text: str, named: NamedVocabulary, view: View) -> TextMeaning:
    """Return what a text means, for any mode of search."""
    left, called = take_names(text, named.image_names)
    meaning = _read_text(left, named, view) if left else TextMeaning()
    if not called:
        return meaning
    labels = tuple(f"“{name}” (a name that people gave)" for name, _ in called)
    images = replace(meaning.images, called=called)
    return replace(meaning, images=images, understood=(*labels, *meaning.understood))


def take_names(text: str, names: Mapping[str, Called]) -> tuple[str, tuple[Called, ...]]:
    """Return what is left of a text, and the images that names in it stand for; the longest count.

    `names` are those that people gave to images, by their keys. A name is left in the text if a
    negation or a minus is before it.

    >>> names = {"annas birthday": Called("Anna's birthday", ())}
    >>> take_names("cake at anna’s birthdays!", names)
    ('cake at', (Called(name="Anna's birthday", contents=()),))
    >>> take_names("no Anna's birthday", names)
    ("no Anna's birthday", ())
    """
    keyed = [(chunk, key) for chunk in text.split() if (key := make_key(chunk))]
    chunks, keys = [chunk for chunk, _ in keyed], [key for _, key in keyed]
    longest = max((key.count(" ") + 1 for key in names), default=0)
    left: list[str] = []
    called: list[Called] = []
    at = 0
    while at < len(keys):
        is_negated = chunks[at][0] in "-−–" or (at > 0 and keys[at - 1] in _NEGATIONS)
        for n in range(0 if is_negated else min(longest, len(keys) - at), 0, -1):
            *first, last = " ".join(keys[at : at + n]).split(" ")
            endings = (last, *list_singulars(last))
            written = (" ".join((*first, ending)) for ending in endings)
            images = next((names[name] for name in written if name in names), None)
            if images is not None:
                called.append(images)
                at += n
                break
        else:
            left.append(chunks[at])
            at += 1
    return (" ".join(left), tuple(dict.fromkeys(called))) if called else (text, ())


def _read_text(text: str, named: NamedVocabulary, view: View) -> TextMeaning:
    vocabulary = named.vocabulary
    tower = vocabulary.text_tower
    if tower is None:
        return _Reader(vocabulary.lexicon, named, view).read(text)
    (text_e,) = tower.embed([text])
    no_words = WeightedWords(np.empty(0, np.int32), np.empty(0), np.empty(0))
    vector_e = text_e / np.float32(TEXT_WEIGHT)  # so it counts like one more image
    return TextMeaning((TextTerm(text, vector_e, no_words),), understood=(text,))


class _Reader:
    """Reads one text, word by word."""

    def __init__(self, lexicon: Lexicon | None, named: NamedVocabulary, view: View) -> None:
        self._lexicon, self._view = lexicon, view
        groups: dict[str, tuple[int, ...]] = {}
        for word, name in (named.names if lexicon is None else named.own_names).items():
            key = make_key(name)
            groups[key] = (*groups.get(key, ()), word)
        self._named = PhraseIndex(groups)
        longest = 0 if lexicon is None else lexicon.index.longest
        self._longest = 1 + max(self._named.longest, longest)  # "bull terrier" as two words
        self._terms: dict[tuple[object, bool], TextTerm] = {}
        self._must: list[tuple[int, ...]] = []
        self._without: dict[str, tuple[int, ...]] = {}
        self._images = ImageFilter()
        self._unknown: list[str] = []
        self._notes: list[str] = []
        self._n_lookups = 0

    def read(self, text: str) -> TextMeaning:
        chunks = text.split()
        all_tokens = list(_split_chunks(chunks[:_MAX_WORDS]))
        if max(len(chunks), len(all_tokens)) > _MAX_WORDS:
            self._notes.append(f"only the first {_MAX_WORDS} words of the text were read")
        tokens = all_tokens[:_MAX_WORDS]
        at, negation, was_excluded = 0, False, False
        while at < len(tokens):
            token, chunk = tokens[at]
            if _to_path_name(chunks[chunk]) in self._images.names:  # all of it: "IMG_2004.jpg"
                at += 1
                continue
            n = self._read_date(tokens, at)
            if n:
                at += n
                continue
            is_excluded = negation or token.is_negated
            n = self._read_name(tokens, at, is_excluded)
            if n:
                at, negation, was_excluded = at + n, False, is_excluded
                continue
            if token.key in _NEGATIONS:
                negation = True
            elif token.key in _CONNECTIVES:
                negation = negation or was_excluded
            elif token.key not in ARTICLES:
                negation = was_excluded = False
                if token.key not in SMALL_WORDS:
                    self._read_unknown(token, chunks[chunk], is_excluded)
            at += 1
        return self._finish()

    def _read_date(self, tokens: Sequence[tuple[Token, int]], at: int) -> int:
        """Read a year, a month or a day; return how many tokens it has."""
        if self._images.dates:
            return 0
        keys = [token.key for token, _ in tokens[at : at + 3]]
        together = [token.key for token, chunk in tokens[at : at + 3] if chunk == tokens[at][1]]
        for n in (3, 2):
            iso = "-".join(together[:n])
            if len(together) >= n and _ISO_DATE.fullmatch(iso):
                return self._add_dates([iso], n)
        month = _find_month(keys[0])
        following = keys[1] if len(keys) > 1 else ""
        if month and _YEAR.fullmatch(following):
            return self._add_dates([f"{following}-{month:02}"], 2)
        if _YEAR.fullmatch(keys[0]):
            next_month = _find_month(following)
            if next_month:
                return self._add_dates([f"{keys[0]}-{next_month:02}"], 2)
            return self._add_dates([keys[0]], 1)
        if month and keys[0] not in _UNCERTAIN_MONTHS:
            years = range(_FIRST_YEAR, date.today().year + 1)
            return self._add_dates([f"{year}-{month:02}" for year in years], 1, keys[0])
        return 0

    def _add_dates(self, periods: Sequence[str], n: int, label: str = "") -> int:
        """Limit the images to some periods; a number that is no date is left to others."""
        try:
            dates = tuple(map(parse_period, periods))
        except InvalidQuery:
            return 0
        if label:
            dates = tuple(DateRange(start, end, label) for start, end, _ in dates)
        elif not self._view.count(Filter(ImageFilter(dates=dates))) and self._has_path(periods[0]):
            return 0
        self._images = replace(self._images, dates=dates)
        return n

    def _read_name(self, tokens: Sequence[tuple[Token, int]], at: int, is_excluded: bool) -> int:
        """Read the longest name; return how many tokens it has."""
        for n in range(min(self._longest, len(tokens) - at), 0, -1):
            run = [token for token, _ in tokens[at : at + n]]
            label = " ".join(token.text for token in run).lower()
            words = self._named.find(run)
            number = None if self._lexicon is None else self._lexicon.find(run)
            if words:
                self._add_named(label, words, is_excluded)
            elif number is not None and (n > 1 or run[0].key not in SMALL_WORDS | _NEGATIONS):
                if is_excluded or not self._is_path(number, label):
                    self._add_entry(label, number, is_excluded)
                    if n == 1:
                        self._add_partial(label, run[0], is_excluded)
            elif n == 1 and (partial := self._find_partial(run[0])):
                self._add_named(label, partial, is_excluded)
            else:
                continue
            return n
        return 0

    def _read_unknown(self, token: Token, chunk: str, is_excluded: bool) -> None:
        name = _to_path_name(chunk)
        if not is_excluded and self._has_path(name):
            self._images = replace(self._images, names=(*self._images.names, name))
            return
        lexicon, spelled = self._lexicon, None
        if lexicon is not None:  # a word that no caption has is no evidence of a mistake
            spelled = lexicon.index.find_misspelled(token, lexicon.is_estimated)
        if spelled is None or lexicon is None or spelled in _NEGATIONS:
            self._unknown.append(token.text)
            return
        (number,) = lexicon.index.find(split_text(spelled))
        self._notes.append(f"{token.text} was read as {spelled}")
        self._add_entry(spelled, number, is_excluded)

    def _is_path(self, number: int, label: str) -> bool:
        """Return whether a word of which the lexicon only has an estimate is the name of a path."""
        assert self._lexicon is not None
        if label in self._images.names:
            return True
        if not self._lexicon.is_estimated(number) or not self._has_path(label):
            return False
        self._images = replace(self._images, names=(*self._images.names, label))
        return True

    def _has_path(self, name: str) -> bool:
        """Return whether the path of an image has a name."""
        if not name or self._n_lookups >= _MAX_LOOKUPS:
            return False
        self._n_lookups += 1
        return self._view.count(Filter(ImageFilter(names=(name,)))) > 0

    def _add_entry(self, label: str, number: int, is_excluded: bool) -> None:
        assert self._lexicon is not None
        if (number, not is_excluded) in self._terms:
            self._note_contradiction(label)
            self._terms.pop((number, True), None)
            is_excluded = False
        if len(self._terms) < MAX_TERMS and (number, is_excluded) not in self._terms:
            entry, sign = self._lexicon[number], -1.0 if is_excluded else 1.0
            label = f"without {label}" if is_excluded else label
            self._terms[number, is_excluded] = TextTerm.of_entry(label, entry, sign)

    def _add_named(self, label: str, words: tuple[int, ...], is_excluded: bool) -> None:
        if words in (self._must if is_excluded else self._without.values()):
            self._note_contradiction(label)
            kept = {name: group for name, group in self._without.items() if group != words}
            self._without, is_excluded = kept, False
        if is_excluded:
            self._without[label] = words
        elif words not in self._must:
            self._must.append(words)
            self._terms[words, False] = TextTerm.of_words(label, words)

    def _note_contradiction(self, label: str) -> None:
        self._notes.append(f"{label} is both searched for and excluded: it is searched for")

    def _add_partial(self, label: str, token: Token, is_excluded: bool) -> None:
        """Add the words whose names contain a word that the lexicon has, too."""
        words = self._find_partial(token)
        if words and not is_excluded:
            self._terms[words, False] = TextTerm.of_words(f"{label} (named)", words)

    def _find_partial(self, token: Token) -> tuple[int, ...]:
        return () if token.key in _NEGATIONS else self._named.find_containing(token)

    def _finish(self) -> TextMeaning:
        excluded = {word for words in self._without.values() for word in words}
        groups = (tuple(w for w in group if w not in excluded) for group in self._must)
        labels = [term.label for term in self._terms.values()]
        paths = [f"“{name}” in the path" for name in self._images.names]
        dates = [dates.text for dates in self._images.dates[:1]]
        return TextMeaning(
            tuple(self._terms.values()),
            tuple(filter(None, groups)),
            tuple(sorted(excluded)),
            self._images,
            (*labels, *(f"without {label}" for label in self._without), *paths, *dates),
            tuple(dict.fromkeys(self._unknown)),
            tuple(dict.fromkeys(self._notes)),
        )


def _split_chunks(chunks: Sequence[str]) -> Iterator[tuple[Token, int]]:
    """Yield the tokens of a text, each with the number of the chunk between spaces it is in."""
    is_separate = False
    for number, chunk in enumerate(chunks):
        for position, token in enumerate(split_text(chunk)):
            starts_phrase = token.starts_phrase or (position == 0 and is_separate)
            yield token._replace(starts_phrase=starts_phrase), number
        is_separate = chunk[-1] in ".,;:!?)"


def _to_path_name(chunk: str) -> str:
    return chunk.strip(".,;:!?\"'()[]").lower()


def _find_month(key: str) -> int:
    """Return the number of a month by its name or first letters; 0 if it is none.

    >>> _find_month("june"), _find_month("sept"), _find_month("ju")
    (6, 9, 0)
    """
    if len(key) < 3:
        return 0
    return next((i for i, month in enumerate(_MONTHS, 1) if month.startswith(key)), 0)
