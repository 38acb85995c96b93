"""`bm25v bench soak`: writers that are killed, and readers that check every answer.

`history` says what the gallery contains after each step, `writer` writes it, `reader` searches and
compares with `answers`, `journal` tells all of them how far the writer is, `run` starts and kills.
"""

from bm25v.research.bench.soak.report import SoakReport
from bm25v.research.bench.soak.run import run_soak

__all__ = ["SoakReport", "run_soak"]
