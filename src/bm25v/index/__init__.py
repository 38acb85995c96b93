"""Exact top K by Okapi BM25 over an inverted index. How it works: docs/explanation/engine.md."""
