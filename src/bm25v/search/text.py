"""A text in, terms, words and a dense vector out.

With a text tower and dense order, the text's vector ranks, and the words that the nearest images
share explain the hits. Without a tower, the concepts of the vocabulary that the text names rank,
beside named words. In modes that order by words alone, the words whose names are in the text are
searched for; if there is none and there is a tower, those with the most similar name.
"""

from collections.abc import Iterator
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
from bm25v.search.contract import Found, SearchEngine, View
from bm25v.search.filters import RowFilter
from bm25v.search.scoring import MODES, Mode
from bm25v.search.text_terms import Lexicon, describe_terms, describe_unknown, parse_text
from bm25v.vocabulary.concepts import Concepts
from bm25v.vocabulary.names import find_named_words
from bm25v.vocabulary.phrases import PhraseIndex

NEAREST = 10  # images whose words explain a text

_LISTED = 8  # names in a note


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


def interpret_text(
    text: str,
    mode: Mode,
    engine: SearchEngine,
    view: View,
    row_filter: RowFilter,
) -> TextMeaning:
    """Return the words and the vector of a text, for a mode of search."""
    if MODES[mode].by_words_alone:
        return _find_by_name(text, None, engine, view)
    tower = None if mode == "concepts" else engine.text_tower
    if tower is None:
        if engine.vocabulary.concepts is None:
            return _find_by_name(text, None, engine, view)
        return _find_concepts(text, engine.vocabulary.concepts, engine)
    (dense_e,) = tower.embed([text])
    if mode != "dense":
        return _find_by_name(text, dense_e, engine, view)
    nearest = view.find_nearest(n_nearest(view), row_filter, dense_e=dense_e)
    words = share_words(view, nearest)
    note = (
        f"a text has no visual words of its own: those shown are shared by the "
        f"{len(nearest.rows)} images nearest to it"
    )
    return TextMeaning(words, dense_e, "", (note, *_describe_by_table(text, engine)))


def _describe_by_table(text: str, engine: SearchEngine) -> Iterator[str]:
    """Yield what the concepts of the vocabulary say about a text that a tower reads."""
    concepts = engine.vocabulary.concepts
    if concepts is not None:
        with suppress(InvalidQuery):  # a contradiction is for the tower to read
            parsed = parse_text(text, make_lexicon(concepts, engine))
            if parsed.terms:
                by_name = describe_terms(parsed, concepts.table)
                yield f"the text tower orders the hits; by name, {by_name}"
            if parsed.unknown:
                yield f"no concept or word is named: {', '.join(parsed.unknown[:_LISTED])}"


def make_lexicon(concepts: Concepts, engine: SearchEngine) -> Lexicon:
    own_names = engine.own_names
    own = PhraseIndex((name, word) for word, name in own_names.items())
    return Lexicon(concepts.table, index_names(concepts), own, engine.vocabulary_names)


@lru_cache(maxsize=4)
def index_names(concepts: Concepts) -> PhraseIndex:
    named = enumerate(concepts.table.concepts)
    return PhraseIndex((name, i) for i, concept in named for name in concept.names)


def _find_concepts(text: str, concepts: Concepts, engine: SearchEngine) -> TextMeaning:
    parsed = parse_text(text, make_lexicon(concepts, engine))
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


def share_words(view: View, nearest: Found) -> list[int]:
    """Return the words that the nearest images share; see `find_shared_words`."""
    words_nk, tf_nk = nearest.images.index_bags(nearest.rows)
    shared = find_shared_words(words_nk, tf_nk, view.statistics)[: words_nk.shape[1]]
    return [word.word for word in shared]


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


def n_nearest(view: View) -> int:
    """Return how many images explain a text: at most half of the gallery, or they would be all."""
    return min(NEAREST, max(1, view.statistics.n // 2))


def _find_by_name(
    text: str, dense_e: Floats | None, engine: SearchEngine, view: View
) -> TextMeaning:
    word_names = engine.word_names
    words = find_named_words(text, word_names)
    names = list(dict.fromkeys(word_names[word] for word in words))
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    note = f"searching for the named words: {', '.join(names[:_LISTED])}{more}"
    if not words:
        words, note = _find_similar_name(text, engine, view)
    return TextMeaning(words, dense_e, "named words have no dense vector", (note,))


def _find_similar_name(text: str, engine: SearchEngine, view: View) -> tuple[list[int], str]:
    """Return the words whose name is most similar to a text by the text tower, and a note."""
    df_v, word_names = view.statistics.df_v, engine.word_names
    names = list(dict.fromkeys(name for word, name in word_names.items() if df_v[word]))
    tower = engine.text_tower if names else None
    if tower is None:
        raise InvalidQuery(
            f"no word name matches {text!r}{_remedy(engine.vocabulary.backbone_name)}"
        )
    (text_e,), names_te = tower.embed([text]), tower.embed(names)
    cosines_t = names_te @ text_e
    best = int(cosines_t.argmax())
    words = [word for word, name in word_names.items() if name == names[best]]
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
