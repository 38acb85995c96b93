"""Why an image matches a query (`Explanation`) and what a word looks like (`WordPortrait`)."""

from bm25v.explanations.explanation import Explanation, Part, explain_hit

__all__ = ["Explanation", "Part", "explain_hit"]
