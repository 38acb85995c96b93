"""Bags in, ranked rows out: exact top K by Okapi BM25 (never imports torch).

`bm25` holds the formula, its parameters and the plain reference; `searcher` the search; `block` the
inverted index of a range of rows; `kernels` every compiled loop. Files, images and dense vectors
are other packages' job. How the index works: docs/explanation/engine.md.
"""
