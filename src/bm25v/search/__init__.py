"""A query becomes results: the only package that puts a search together."""

from bm25v.search.query import Query, QueryOptions
from bm25v.search.regions import Region
from bm25v.search.results import Hit, Match, QueryWord, Results, WordContribution
from bm25v.search.scoring import Mode

__all__ = [
    "Hit",
    "Match",
    "Mode",
    "Query",
    "QueryOptions",
    "QueryWord",
    "Region",
    "Results",
    "WordContribution",
]
