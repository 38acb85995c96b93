"""What the paper measured: how good searches are, what they cost, and if explanations are faithful.

The order of the modules is that of the data: `datasets` → `features` → `bags` → `systems` →
`metrics`; `evaluate`, `ablate` and `report` run them, and `tables` and `plots` write what they
return. `zipf` and `cost` count the words of a gallery, `tasks` measures searches by regions, by
text, and with nothing to find, `faithfulness` measures explanations.
"""
