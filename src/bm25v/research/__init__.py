"""What the paper measured: how good searches are, what they cost, and if explanations are faithful.

In: data sets, vocabularies, galleries. Out: numbers, tables, plots and reports. Nothing below this
package imports it; it needs the extra `research`. The order of the modules is that of the data:
`datasets` → `features` → `bags` → `systems` → `metrics` → `significance`; `evaluate`, `ablate` and
`report` run them. `bench` measures times.
"""
