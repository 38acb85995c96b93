"""What the paper measured: how good searches are, what they cost, and if explanations are faithful.

The order of the modules is that of the data: `datasets` → `features` → `bags` → `systems` →
`metrics` → `significance`; `evaluate`, `ablate` and `report` run them.
"""
