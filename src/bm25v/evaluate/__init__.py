"""How good is a search: data sets and rankings become figures.

`datasets` reads published benchmarks, `metrics` and `revisited` judge rankings, `statistics` says
how sure the figures are, `trec` exchanges them with other tools, `zipf` looks at how words are
spread, `cost` at what a search takes. In: folders as they are published, rankings, document
frequencies. Out: numbers and charts. Not this room's job: making the rankings.
"""
