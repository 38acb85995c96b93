"""Bags in, ranked rows out: exact Okapi BM25 over an inverted index.

`reference` is the plain formula, the oracle of all else. `statistics` are the live counts, `block`
the inverted index, `searcher` the exact top-K, `contributions` a score taken apart; the compiled
loops are in `scoring`, `inverting` and `kernels`. Never imports torch. Not this room's job: files,
pictures, dense vectors.
"""
