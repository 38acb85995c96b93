"""A query and a hit in; why they match, and where, out.

`explanation` takes the score apart and finds each word in both pictures, `heatmaps` colours
pictures, `drawing` puts an explanation on one sheet, `report` makes a page of several searches,
`words` one about a vocabulary (from `samples` of its words, with `charts`).
Not this room's job: ranking, and deciding what a word is called.
"""

from bm25v.explain.explanation import Explanation, Part, explain

__all__ = ["Explanation", "Part", "explain"]
