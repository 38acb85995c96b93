"""A person's wish in, weighted words out.

`weights` makes a query of pictures, examples and counter-examples, and steers it word by word;
`regions` keeps a part of a picture; `wish` is all of it, with what a picture must or must not have.
Not this room's job: statistics, scores, finding out which word a name means.
"""

from bm25v.query.regions import Region
from bm25v.query.weights import AGAINST, LIKED, Query, from_bag, from_bags, steered
from bm25v.query.wish import Wish

__all__ = ["AGAINST", "LIKED", "Query", "Region", "Wish", "from_bag", "from_bags", "steered"]
