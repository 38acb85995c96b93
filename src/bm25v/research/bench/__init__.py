"""Measures the speed of bm25v on this machine, one module per `bm25v bench` command.

In: real images, or synthetic bags and vectors by the million. Out: times, and ratios of times
within one run; on a machine that also does other work, trust the ratios. Not this package's job:
retrieval quality, except for duplicates. `soak` checks answers and files instead of timing them.
"""
