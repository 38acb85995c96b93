"""Do scores hang on the patches that explanations name?

An explanation says where the words are that make a hit. If that is so, hiding these patches takes
the score away, and showing them alone gives it back, sooner than with any other patches. `hiding`
alters pixels, `pairs` draws what is explained, `orders` says which patches come first, `measure`
takes every altered picture through the backbone again, `result` sums up, `tables` and `plot` show.
Not this room's job: making explanations (`explain`).
"""

from bm25v.research.faithfulness.measure import measure
from bm25v.research.faithfulness.result import Faithfulness

__all__ = ["Faithfulness", "measure"]
