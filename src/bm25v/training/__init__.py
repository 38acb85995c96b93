"""A folder of pictures becomes a vocabulary.

`views` shows a picture in several ways, `extraction` puts the patches of all pictures into a
`store` on disk, `run` trains on it with `checkpoints` to go on from, `refit` fits a decoder anew.
In: pictures and a recipe. Out: a vocabulary folder. Not this room's job: the mathematics of a
step, which is `sae`'s.
"""

from bm25v.training.refit import refit_vocabulary
from bm25v.training.run import TrainingOptions, train_vocabulary

__all__ = ["TrainingOptions", "refit_vocabulary", "train_vocabulary"]
