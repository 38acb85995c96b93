"""Why an image matches a query (`Explanation`) and what a word looks like (`WordPortrait`)."""

from bm25v.explain.explanation import ExplainedHits, Explanation
from bm25v.explain.groups import Part

__all__ = ["ExplainedHits", "Explanation", "Part"]
