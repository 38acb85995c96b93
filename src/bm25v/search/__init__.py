"""A query in, results out."""

from bm25v.search.encoded import EncodedQuery
from bm25v.search.regions import Region
from bm25v.search.weights import AGAINST, LIKED, from_bags, steered

__all__ = ["AGAINST", "LIKED", "EncodedQuery", "Region", "from_bags", "steered"]
