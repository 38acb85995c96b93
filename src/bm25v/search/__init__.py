"""A query in, results out: the only package that puts a search together.

`query` holds every option, `encode` turns images and text into weighted words, `filters` rules rows
out, `engine` runs the two stages over the index, `ranking` computes cosines, `results` holds the
hits. Not this package's job: storage (`gallery`) and the index itself (`index`).
"""

from bm25v.search.query import Mode, Query, QueryOptions
from bm25v.search.regions import Region
from bm25v.search.results import Hit, Match, QueryWord, Results, WordContribution

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
