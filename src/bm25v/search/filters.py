"""Which rows a query allows, how much of the query each row covers, and why nothing matched.

In: required and excluded words, a minimum coverage. Out: a flag for each row. Filters leave the
statistics unchanged: scores are those of an unfiltered search.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bm25v.display import count, display_path, word_label
from bm25v.gallery.catalog import Catalog
from bm25v.gallery.snapshot import Snapshot
from bm25v.index.bm25 import Statistics, WeightedWords
from bm25v.index.searcher import Searcher

if TYPE_CHECKING:
    from bm25v.search.encode import EncodedQuery

_ROUNDING = 1e-9  # of a sum of shares

Flags = NDArray[np.bool_]  # one for each row
Names = Mapping[int, str]


def find_rows(
    snapshot: Snapshot, *, must: Sequence[int] = (), without: Sequence[int] = ()
) -> NDArray[np.int64]:
    """Return the rows that have all of some words and none of others."""
    if not must and not without:
        return snapshot.rows
    return np.flatnonzero(flag_words(snapshot.searcher, must, without))


def flag_rows(searcher: Searcher, query: "EncodedQuery", min_coverage: float) -> Flags:
    """Return which rows a query allows."""
    flags = flag_words(searcher, query.must, query.without)
    if min_coverage > 0:
        flags &= coverages(searcher, query.positive_words) >= min_coverage - _ROUNDING
    return flags


def flag_words(searcher: Searcher, must: Sequence[int], without: Sequence[int]) -> Flags:
    """Return which rows have all of some words and none of others."""
    values = np.array([1.0] * len(must) + [-1.0] * len(without))
    return searcher.sum_values(np.array([*must, *without], dtype=np.int64), values) >= len(must)


def coverages(searcher: Searcher, words: WeightedWords) -> NDArray[np.float64]:
    """Return the share of a query's IDF mass that each row matches; below 0 for removed rows."""
    masses = searcher.statistics.idf_masses(words)
    return searcher.sum_values(words.words, masses) / (float(masses.sum()) or 1.0)


def explain_no_match(
    query: "EncodedQuery", min_coverage: float, snapshot: Snapshot, catalog: Catalog, names: Names
) -> str:
    """Return the reason why a search has no hits."""
    searcher, words = snapshot.searcher, query.positive_words
    if searcher.statistics.n == 0:
        return "the gallery has no images"
    rows = find_rows(snapshot, must=query.must, without=query.without)
    if not len(rows):
        return _explain_filters(query, searcher.statistics, names)
    condition = f" that {_describe_filters(query, names)}" if query.must or query.without else ""
    if not len(words.words):
        return "the query has no words: the image has none, or all are muted"
    coverage_n = coverages(searcher, words)
    best = int(rows[np.argmax(coverage_n[rows])])
    if coverage_n[best] <= 0:
        return f"0 of {count(len(words.words), 'word')} shared with any image{condition}"
    if coverage_n[best] < min_coverage:
        (path,) = catalog.paths_of([best], snapshot.state.generation)
        closest = f"the best has {coverage_n[best]:.2f}: {display_path(path)}"
        return f"no image{condition} reaches a coverage of {min_coverage:g} ({closest})"
    return "in every image, the words that count against it outweigh those that count for it"


def _explain_filters(query: "EncodedQuery", statistics: Statistics, names: Names) -> str:
    missing = [word for word in query.must if statistics.df_v[word] == 0]
    if missing:
        return f"no image has {_list_words(missing, names)}"
    if not query.must:
        return f"every image has {_list_words(query.without, names, 'or')}"
    return f"no image {_describe_filters(query, names)}"


def _describe_filters(query: "EncodedQuery", names: Names) -> str:
    """Return what images must and must not have."""
    required = f"has {_list_words(query.must, names)}" if query.must else ""
    excluded = _list_words(query.without, names, "or")
    if not excluded:
        return required
    return f"{required} but not {excluded}" if required else f"does not have {excluded}"


def _list_words(words: Sequence[int], names: Names, conjunction: str = "and") -> str:
    """Return words as a list.

    >>> _list_words((3, 4, 7), {4: "striped ear"})
    'word 3, striped ear and word 7'
    """
    labels = [word_label(word, names.get(word)) for word in words]
    return f" {conjunction} ".join(filter(None, (", ".join(labels[:-1]), *labels[-1:])))
