"""How many images remain if hits must have a word, or must not have it."""

from dataclasses import replace
from typing import NamedTuple

from bm25v.search.encode import encode
from bm25v.search.query import Query
from bm25v.search.text import NamedVocabulary
from bm25v.store.base import View


class Remaining(NamedTuple):
    """How many images a search allows: those that have a word, and those that do not have it."""

    must: int
    without: int


def count_remaining(query: Query, view: View, named: NamedVocabulary) -> Remaining:
    """Count the images that a query allows, and those if the first of its `must` was excluded."""
    condition = encode(query, view, named).filter
    group, *others = condition.must
    excluded = replace(condition, must=tuple(others), without=(*condition.without, *group))
    return Remaining(view.count(condition), view.count(excluded))
