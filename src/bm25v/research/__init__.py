"""How good is a search: data sets and vocabularies become figures.

`datasets` reads published benchmarks, `features` and `words` describe their pictures once,
`systems` rank them, `run` and `ablations` put that together, `tables` prints it. `metrics` and
`revisited` judge rankings, `statistics` says how sure the figures are, `trec` exchanges them with
other tools. `zipf` looks at how words are spread, `cost` at what a search takes, `report` puts all
of it on one page. In: folders as they are published, vocabularies, galleries. Out: numbers, charts
and pages. Not this room's job: seconds (`bench`).
"""
