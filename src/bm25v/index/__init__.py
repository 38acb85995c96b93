"""Bags in, ranked rows out: exact Okapi BM25 over an inverted index.

`reference` is the plain formula, the oracle of all else. `statistics` are the live counts,
`postings` the inverted index, `kernels` its compiled loops, `searcher` the exact top-K, and
`contributions` a score taken apart. Never imports torch. Not this room's job: files, pictures,
dense vectors.
"""
