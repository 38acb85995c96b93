"""Values in, self-contained HTML pages out.

`explanation_page`, `word_page`, `vocabulary_page`, `searches_page` and `evaluation_page` prepare
plain values for the templates of the same names; `render` fills these in and escapes every value.
`charts` draws SVG. `static/` holds the one style sheet and the scripts, which become part of each
page, so that a page needs no network and no other file. Not this package's job: measuring and
searching.
"""
