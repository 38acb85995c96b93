"""Every setting of a training run."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """How an auto-encoder is trained; the defaults are what was measured to work best.

    >>> Recipe().expansion, Recipe.paper().aux_weight
    (16, 0.0)
    """

    expansion: int = 16
    k: int = 16
    batch: int = 4096
    epochs: int = 5
    steps: int | None = None  # overrides epochs
    learning_rate: float = 4e-3
    warm_up: float = 0.05  # share of the steps
    l1: float = 1e-3
    aux_weight: float = 1 / 32
    aux_k: int | None = None  # None: half the feature dimensions
    dead_after: int = 10_000_000  # patches without firing, at most a tenth of the run
    held_out: float = 0.02  # share of the patches
    mean_activation: float = 1.0  # of active words: a term frequency then counts occurrences
    standardise: bool = True  # train on centred and scaled patches
    data_start: bool = True  # words start as directions of patches, the encoder as the decoder
    unit_rows: bool = True  # decoder rows keep length 1
    seed: int = 0

    @classmethod
    def paper(cls) -> "Recipe":
        """The paper's plain settings: MSE + λ·L1, Adam, cosine, nothing else."""
        return cls(
            learning_rate=1e-3,
            warm_up=0.0,
            aux_weight=0.0,
            standardise=False,
            data_start=False,
            unit_rows=False,
        )
