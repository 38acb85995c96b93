"""A text in, the concepts and the named words that it names out, and what is not understood.

Names are found longest first. "without a dog", "no dog" and "-dog" exclude; "a cat or a dog" is one
term. Words such as "a", "on" and "photo of" say nothing; every other word that is no name is
reported. Not this module's job: which images match.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bm25v.errors import InvalidQuery
from bm25v.schema import show_value
from bm25v.vocabulary.concepts import ConceptTable
from bm25v.vocabulary.phrases import ARTICLES, SMALL_WORDS, PhraseIndex, Token, split_text

_NEGATIONS = {"without", "no", "not", "except", "excluding", "minus"}
_ALTERNATIVES = {"or", "nor"}
_LISTED = 8  # unknown words in a message
_LISTED_CLASSES = 3  # of a concept: more of them show it well enough
_WITH_SIMILAR = 3  # unknown words that similar names are looked up for


class Term(NamedTuple):
    """A thing that a text names: one of some concepts, or words that people named."""

    label: str
    concepts: tuple[int, ...]  # any of them
    words: tuple[int, ...]
    is_excluded: bool


@dataclass(frozen=True)
class ParsedText:
    """The terms of a text, and the words that are none; `similar` has names like those."""

    terms: tuple[Term, ...]
    unknown: tuple[str, ...]
    similar: tuple[str, ...]


@dataclass(frozen=True)
class Lexicon:
    """The names that a text can have: people's own names of words count most, then concepts."""

    table: ConceptTable
    concepts: PhraseIndex
    own_words: PhraseIndex  # by people, in a gallery
    words: PhraseIndex  # by the vocabulary

    @property
    def longest(self) -> int:
        """How many tokens the longest name has."""
        return max(self.own_words.longest, self.concepts.longest, self.words.longest)

    def find(self, tokens: Sequence[Token], *, is_excluded: bool) -> Term | None:
        """Return what a run of tokens names; None if it is no name."""
        written = " ".join(token.text for token in tokens)
        words = self.own_words.find(tokens)
        if words:
            return Term(written, (), words, is_excluded)
        concepts = self.concepts.find(tokens)
        if concepts:
            return self._make_term(concepts, is_excluded)
        words = self.words.find(tokens)
        if not words and len(tokens) == 1:
            words = self.own_words.find_containing(tokens[0])
        return Term(written, (), words, is_excluded) if words else None

    def find_alone(self, token: Token, *, is_excluded: bool) -> Term | None:
        """Return what a word names if it is all there is: "Persian" is then the Persian cat."""
        concepts = self.concepts.find_first_word(token)
        return self._make_term(concepts, is_excluded) if concepts else None

    def _make_term(self, concepts: tuple[int, ...], is_excluded: bool) -> Term:
        labels = dict.fromkeys(self.table.concepts[concept].names[0] for concept in concepts)
        return Term(" or ".join(labels), concepts, (), is_excluded)


def parse_text(text: str, lexicon: Lexicon) -> ParsedText:
    """Return the terms of a text; raise `InvalidQuery` if they contradict each other.

    The text may have none: all of its words are then unknown, or say nothing.
    """
    tokens = split_text(text)
    terms, unknown = _read_tokens(tokens, lexicon)
    telling = [token for token in tokens if token.key not in SMALL_WORDS | _NEGATIONS]
    if not terms and len(telling) == 1:
        is_excluded = telling[0].is_negated or any(token.key in _NEGATIONS for token in tokens)
        term = lexicon.find_alone(telling[0], is_excluded=is_excluded)
        if term is not None:
            terms, unknown = [term], []
    _check_contradictions(terms, lexicon.table)
    similar = [
        name
        for token in unknown[:_WITH_SIMILAR]
        for index in (lexicon.own_words, lexicon.concepts, lexicon.words)
        for name in index.find_similar(token)
    ]
    return ParsedText(
        tuple(dict.fromkeys(terms)),
        tuple(dict.fromkeys(token.text for token in unknown)),
        tuple(dict.fromkeys(similar)),
    )


def _read_tokens(tokens: list[Token], lexicon: Lexicon) -> tuple[list[Term], list[Token]]:
    terms: list[Term] = []
    unknown: list[Token] = []
    negation: Token | None = None  # that the next name is meant by
    is_alternative = False
    position = 0
    while position < len(tokens):
        token = tokens[position]
        is_excluded = negation is not None or token.is_negated
        term, n_tokens = _find_longest(tokens[position:], lexicon, is_excluded)
        if term is not None:
            if is_alternative and terms and terms[-1].concepts and term.concepts:
                term = _join(terms.pop(), term)
            terms.append(term)
            negation, is_alternative = None, False
        elif token.key in _NEGATIONS:
            negation = token
        elif token.key in _ALTERNATIVES and terms:
            is_alternative = True
            negation = token if terms[-1].is_excluded else negation
        elif token.key in SMALL_WORDS - ARTICLES:
            if negation is not None and tokens[position - 1] is negation:
                unknown.append(negation)
            negation, is_alternative = None, False
        elif token.key not in ARTICLES:
            unknown.append(token)
        position += n_tokens
    if negation is not None and tokens[-1] is negation and negation.key in _NEGATIONS:
        unknown.append(negation)
    return terms, unknown


def _find_longest(
    tokens: Sequence[Token], lexicon: Lexicon, is_excluded: bool
) -> tuple[Term | None, int]:
    """Return the longest name at the start of some tokens, and how many tokens it has."""
    for n_tokens in range(min(lexicon.longest + 1, len(tokens)), 0, -1):  # "bull terrier" as two
        term = lexicon.find(tokens[:n_tokens], is_excluded=is_excluded)
        if term is not None:
            return term, n_tokens
    return None, 1


def _join(first: Term, second: Term) -> Term:
    concepts = dict.fromkeys((*first.concepts, *second.concepts))
    return Term(f"{first.label} or {second.label}", tuple(concepts), (), first.is_excluded)


def _check_contradictions(terms: Sequence[Term], table: ConceptTable) -> None:
    excluded = [term for term in terms if term.is_excluded]
    for term in terms:
        for other in excluded:
            if not term.is_excluded and _is_within(term, other, table):
                same = term.label == other.label
                kind = "" if same else f", and {term.label!r} is a kind of {other.label!r}"
                raise InvalidQuery(
                    f"the text asks for {term.label!r} and excludes {other.label!r}{kind}: "
                    "leave one of them out"
                )


def _is_within(term: Term, other: Term, table: ConceptTable) -> bool:
    if term.words or other.words:
        return bool(term.words) and set(term.words) <= set(other.words)
    return all(any(table.is_within(c, wide) for wide in other.concepts) for c in term.concepts)


def describe_terms(parsed: ParsedText, table: ConceptTable) -> str:
    """Return what was understood, for people."""

    def show(term: Term) -> str:
        if term.words:
            return f"{term.label} (a named word)"
        return f"{term.label}{_describe_classes(term, table)}"

    sought = ", ".join(show(term) for term in parsed.terms if not term.is_excluded)
    excluded = ", ".join(show(term) for term in parsed.terms if term.is_excluded)
    return "; ".join(
        part
        for part in (
            f"searching for: {sought}" if sought else "",
            f"without: {excluded}" if excluded else "",
        )
        if part
    )


def _describe_classes(term: Term, table: ConceptTable) -> str:
    """Return which classes a wide concept is known from, if these are few."""
    classes = sorted({c for concept in term.concepts for c in table.classes_below(concept)})
    if len(classes) > _LISTED_CLASSES or set(term.concepts) <= set(classes):
        return ""
    return f" (known from: {', '.join(table.concepts[c].names[0] for c in classes)})"


def describe_unknown(parsed: ParsedText, shown: Callable[[str], str] = show_value) -> str:
    """Return which words were not understood, with names like them."""
    listed = ", ".join(word[:40] for word in parsed.unknown[:_LISTED])
    n_more = len(parsed.unknown) - _LISTED
    more = f" and {n_more:,} more" if n_more > 0 else ""
    similar = f"; similar names: {', '.join(parsed.similar)}" if parsed.similar else ""
    return f"not understood: {listed}{more}{similar}"
