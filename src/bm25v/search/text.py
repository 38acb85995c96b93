"""A text in, terms, words and a dense vector out.

With a text tower and dense order, the text's vector ranks, and the words that the best hits share
describe them. Without a tower, the concepts of the vocabulary that the text names rank,
beside named words. In modes that order by words alone, the words whose names are in the text are
searched for; if there is none and there is a tower, those with the most similar name.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.backbones.protocol import Floats
from bm25v.backbones.text import has_text_tower
from bm25v.errors import InvalidQuery
from bm25v.index.bm25 import Statistics
from bm25v.schema import show_value
from bm25v.search.concepts import ConceptTerm
from bm25v.search.query import Word
from bm25v.search.scoring import MODES, Mode
from bm25v.search.text_terms import Lexicon, describe_terms, describe_unknown, parse_text
from bm25v.store.base import View
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.concepts import Concepts
from bm25v.vocabulary.names import check_word, find_named_words, find_word
from bm25v.vocabulary.phrases import PhraseIndex

_LISTED = 8  # names in a note


class NamedVocabulary(NamedTuple):
    """A vocabulary, and the names of its words in one collection."""

    vocabulary: Vocabulary
    names: Mapping[int, str]
    own_names: Mapping[int, str]  # those of them that people gave in the collection

    def find_words(self, words: Iterable[Word]) -> tuple[int, ...]:
        """Return words by their numbers or names, each once."""
        return tuple(dict.fromkeys(map(self._find_word, words)))

    def _find_word(self, word: Word) -> int:
        if isinstance(word, str):
            return find_word(word, self.names, self.vocabulary.n_words)
        if isinstance(word, bool) or not isinstance(word, int | np.integer):
            raise InvalidQuery(f"{word!r} is not a word: give its number or its name")
        return check_word(int(word), self.vocabulary.n_words)


class TextMeaning(NamedTuple):
    """What a text stands for in a gallery."""

    words: list[int]
    dense_e: Floats | None
    no_dense: str  # the reason, if there is no dense vector
    notes: tuple[str, ...]  # for the user
    terms: tuple[ConceptTerm, ...] = ()  # that rank
    excluded_words: tuple[int, ...] = ()  # named words that hits must not have
    understood: tuple[str, ...] = ()
    not_understood: tuple[str, ...] = ()


NO_TEXT = TextMeaning([], None, "", ())


class SharedWord(NamedTuple):
    """A word that some images have more often than all images do."""

    word: int
    together: int  # how many of these images have it
    lift: float  # how many times as often as all images


def interpret_text(text: str, mode: Mode, named: NamedVocabulary, view: View) -> TextMeaning:
    """Return the words and the vector of a text, for a mode of search."""
    concepts = named.vocabulary.concepts
    if MODES[mode].by_words_alone:
        return _find_by_name(text, None, named, view)
    tower = None if mode == "concepts" else named.vocabulary.text_tower
    if tower is None:
        if concepts is None:
            return _find_by_name(text, None, named, view)
        return _find_concepts(text, concepts, named)
    (dense_e,) = tower.embed([text])
    if mode != "dense":
        return _find_by_name(text, dense_e, named, view)
    notes = () if concepts is None else tuple(_describe_by_table(text, concepts, named))
    return TextMeaning([], dense_e, "", notes)


def _describe_by_table(text: str, concepts: Concepts, named: NamedVocabulary) -> Iterator[str]:
    """Yield what the concepts of the vocabulary say about a text that a tower reads."""
    with suppress(InvalidQuery):  # a contradiction is for the tower to read
        parsed = parse_text(text, make_lexicon(concepts, named))
        if parsed.terms:
            by_name = describe_terms(parsed, concepts.table)
            yield f"the text tower orders the hits; by name, {by_name}"
        if parsed.unknown:
            yield f"no concept or word is named: {', '.join(parsed.unknown[:_LISTED])}"


def make_lexicon(concepts: Concepts, named: NamedVocabulary) -> Lexicon:
    own = PhraseIndex((name, word) for word, name in named.own_names.items())
    return Lexicon(concepts.table, index_names(concepts), own, named.vocabulary._name_phrases)


@lru_cache(maxsize=4)
def index_names(concepts: Concepts) -> PhraseIndex:
    named = enumerate(concepts.table.concepts)
    return PhraseIndex((name, i) for i, concept in named for name in concept.names)


def _find_concepts(text: str, concepts: Concepts, named: NamedVocabulary) -> TextMeaning:
    parsed = parse_text(text, make_lexicon(concepts, named))
    if not parsed.terms:
        reason = describe_unknown(parsed) if parsed.unknown else "it names nothing"
        raise InvalidQuery(
            f"the text {show_value(text)}: {reason}. Name what the image shows, such as 'cat', or "
            "name words with `bm25v words name`"
        )
    words = {
        is_excluded: sorted(
            {
                word
                for term in parsed.terms
                if term.is_excluded is is_excluded
                for word in term.words
            }
        )
        for is_excluded in (False, True)
    }
    unknown = (describe_unknown(parsed),) if parsed.unknown else ()
    return TextMeaning(
        words[False],
        None,
        "a text has no dense vector without a text tower",
        (describe_terms(parsed, concepts.table), *unknown),
        tuple(ConceptTerm.of(term, concepts) for term in parsed.terms if term.concepts),
        tuple(words[True]),
        tuple(f"without {t.label}" if t.is_excluded else t.label for t in parsed.terms),
        parsed.unknown,
    )


def find_shared_words(
    words_nk: NDArray[np.integer], tf_nk: NDArray[np.uint16], statistics: Statistics
) -> list[SharedWord]:
    """Return the words that some bags have more often than all images do, best first.

    A rare word that occurs by chance has a large lift and means little. So words are ordered by
    images · ln(lift), and a word must be in at least two of the bags.
    """
    together_v = np.bincount(words_nk[tf_nk > 0], minlength=statistics.n_words)
    candidates = np.flatnonzero(together_v >= 2)
    together = together_v[candidates]
    lift = together * statistics.n / (len(words_nk) * statistics.df_v[candidates])
    order = np.lexsort((candidates, -together * np.log(lift)))
    return [
        SharedWord(int(candidates[i]), int(together[i]), float(lift[i]))
        for i in order
        if lift[i] > 1
    ]


def _find_by_name(
    text: str, dense_e: Floats | None, named: NamedVocabulary, view: View
) -> TextMeaning:
    words = find_named_words(text, named.names)
    names = list(dict.fromkeys(named.names[word] for word in words))
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    note = f"searching for the named words: {', '.join(names[:_LISTED])}{more}"
    if not words:
        words, note = _find_similar_name(text, named, view)
    return TextMeaning(words, dense_e, "named words have no dense vector", (note,))


def _find_similar_name(text: str, named: NamedVocabulary, view: View) -> tuple[list[int], str]:
    """Return the words whose name is most similar to a text by the text tower, and a note."""
    df_v, vocabulary = view.statistics.df_v, named.vocabulary
    names = list(dict.fromkeys(name for word, name in named.names.items() if df_v[word]))
    tower = vocabulary.text_tower if names else None
    if tower is None:
        raise InvalidQuery(f"no word name matches {text!r}{_remedy(vocabulary.backbone_name)}")
    (text_e,), names_te = tower.embed([text]), tower.embed(names)
    cosines_t = names_te @ text_e
    best = int(cosines_t.argmax())
    words = [word for word, name in named.names.items() if name == names[best]]
    note = f"no word is named {text!r}; the most similar name is {names[best]!r}"
    return words, f"{note} (cosine {cosines_t[best]:.2f})"


def _remedy(backbone: str) -> str:
    name_words = "name words with `bm25v words name`"
    if has_text_tower(backbone):
        return f": {name_words}, or use mode 'dense', which searches by the text's vector"
    return (
        f", and the backbone {backbone} has no text tower: {name_words}, or use a vocabulary "
        "made with a SigLIP or CLIP model"
    )
