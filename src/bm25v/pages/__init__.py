"""Values in; self-contained HTML pages, and fragments for notebooks, out.

`explanation_page`, `word_page`, `vocabulary_page`, `searches_page` and `evaluation_page` prepare
plain values for the templates of the same names, `notebook` for those of the fragments; `render`
fills these in and escapes every value. `charts` draws SVG. `static/` holds a style sheet for pages,
one for notebooks, and the scripts. They become part of each page, so that it needs no network and
no other file. Not this package's job: measuring and searching.
"""
