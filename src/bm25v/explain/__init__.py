"""A query and a hit in; why they match, and where, out.

`explanation` takes the score apart and finds each word in both pictures, `heatmaps` colours
pictures, `drawing` puts an explanation on one sheet (`lettering`), `page` on a page (`glowing`);
`sums` makes printed parts add up. `report` is a page of several searches, `words` one about a
vocabulary (from `samples` of its words, with `charts`). `portrait` looks at one word of a gallery,
`wordpage` makes a page of that, `suggest` finds names. `markup` and `look.css` are what all pages
share, `crops` the pictures in them. Not this room's job: ranking, and keeping names.
"""

from bm25v.explain.explanation import Explanation, Part, explain

__all__ = ["Explanation", "Part", "explain"]
