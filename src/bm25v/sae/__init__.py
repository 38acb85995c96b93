"""Sparse auto-encoders: patch features → codes, the few active visual words of each patch.

`model` encodes, with numpy only. `formats` reads auto-encoders that other projects trained. Not
this package's job: training (`bm25v.training`), bags and vocabulary folders (`bm25v.vocabulary`).
"""
