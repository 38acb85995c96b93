"""A query and a hit become an explanation; a word becomes a portrait. Values, not pages.

`explanation` says why an image matches and where; `word_portrait` shows one word of a gallery,
`samples` holds examples of a vocabulary's words, `suggest` finds names for words. `heatmaps` and
`crops` make pixels, `drawing` puts an explanation on one image, `terminal` shows an image as text.
Not this package's job: ranking, and HTML (`bm25v.pages`).
"""

from bm25v.explanations.explanation import Explanation, Part, explain_hit

__all__ = ["Explanation", "Part", "explain_hit"]
