"""Why a search has no hits, for people."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bm25v.display import count, display_path, one_line, word_label
from bm25v.index.bm25 import Statistics
from bm25v.search.encode import EncodedQuery
from bm25v.store.base import Filter, View

Names = Mapping[int, str]

_LISTED, _LONGEST = 8, 200  # unknown words, and their characters


def explain_no_match(encoded: EncodedQuery, view: View, names: Names) -> str:
    """Return the reason why a search has no hits."""
    words, condition = encoded.positive_words, encoded.filter
    if view.statistics.n == 0:
        return "the gallery has no images"
    if encoded.not_understood and not encoded.understood:
        unknown = one_line(", ".join(encoded.not_understood[:_LISTED]))
        return f"nothing is known about {unknown[:_LONGEST]}"
    if encoded.offset:
        return f"there are no more hits after the first {encoded.offset:,}"
    required = _describe_words(condition, names)
    which = f" {condition.images.describe()}" if condition.images else ""
    which += f" that {required}" if required else ""
    if not view.count(condition):
        if view.count(replace(condition, own_paths=(), own_contents=())):
            return f"there is no other image{which} than those of the query"
        return _explain_filter(condition, which, view.full_statistics, names)
    if not len(words.words) and not encoded.has_images and not encoded.boosted:
        has_vector = encoded.dense_e is not None
        return f"the text {'has no visual words' if has_vector else 'names nothing to look for'}"
    if not len(words.words):
        return "the query has no words: the image has none, or all are muted"
    best = view.best_coverage(encoded)
    if best.share <= 0:
        return f"0 of {count(len(words.words), 'word')} shared with any image{which}"
    if best.share < encoded.min_coverage:
        closest = f"the best has {best.share:.2f}: {display_path(best.path)}"
        return f"no image{which} reaches a coverage of {encoded.min_coverage:g} ({closest})"
    return "in every image, the words that count against it outweigh those that count for it"


def _explain_filter(condition: Filter, which: str, statistics: Statistics, names: Names) -> str:
    for group in condition.must:
        if not statistics.df_v[list(group)].any():
            return f"no image has {_list_words(group, names, 'or')}"
    if condition.images:
        return f"no image{which}"
    if not condition.must:
        return f"every image has {_list_words(condition.without, names, 'or')}"
    return f"no image {_describe_words(condition, names)}"


def _describe_words(condition: Filter, names: Names) -> str:
    """Return which words images must have and not have."""
    groups = (_list_words(group, names, "or") for group in condition.must)
    required = f"has {' and '.join(groups)}" if condition.must else ""
    excluded = _list_words(condition.without, names, "or")
    if required and excluded:
        return f"{required} but not {excluded}"
    return required or (f"does not have {excluded}" if excluded else "")


def _list_words(words: Sequence[int], names: Names, conjunction: str = "and") -> str:
    """Return words as a list.

    >>> _list_words((3, 4, 7), {4: "striped ear"})
    'word 3, striped ear and word 7'
    """
    labels = list(dict.fromkeys(word_label(word, names.get(word)) for word in words))
    return f" {conjunction} ".join(filter(None, (", ".join(labels[:-1]), *labels[-1:])))
