"""How fast do patches become words? Both of our encoders against plain PyTorch, on one thread."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from bm25v.sae.int8 import Int8Encoder
from bm25v.sae.model import Codes, SparseAutoEncoder

PATCHES, DIM, WORDS = 729, 1152, 18_432  # SigLIP2-SO400M, as in the paper

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class WordTimes:
    """Seconds for one picture, medians of rounds taken in turn."""

    patches: int
    dim: int
    words: int
    numpy: float
    torch: float
    int8: float
    agreement: float  # share of the plain encoder's words that the int8 one finds

    @property
    def ratio(self) -> float:
        """How many times faster the int8 encoder is than the plain one."""
        return self.numpy / self.int8


def time_words(
    patches: int = PATCHES, dim: int = DIM, words: int = WORDS, *, k: int = 16, rounds: int = 5
) -> WordTimes:
    """Encode the same patches, each a sum of a few words and noise, in three ways."""
    sae, patches_pd = _planted(patches, dim, words, k)
    int8 = Int8Encoder(sae)
    ways: dict[str, Callable[[], object]] = {
        "numpy": lambda: sae.encode(patches_pd),
        "torch": _in_torch(sae, patches_pd),
        "int8": lambda: int8.encode(patches_pd),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            for _ in range(rounds + 1):
                for name, way in ways.items():
                    start = time.perf_counter()
                    way()
                    seconds[name].append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
    medians = {name: float(np.median(taken[1:])) for name, taken in seconds.items()}
    agreement = _agreement(sae.encode(patches_pd), int8.encode(patches_pd))
    return WordTimes(patches, dim, words, **medians, agreement=agreement)


def _planted(patches: int, dim: int, words: int, k: int) -> tuple[SparseAutoEncoder, Floats]:
    rng = np.random.default_rng(0)
    atoms_vd = rng.standard_normal((words, dim)).astype(np.float32)
    atoms_vd /= np.linalg.norm(atoms_vd, axis=1, keepdims=True)
    mixed_pd = 6 * atoms_vd[rng.integers(0, words, (patches, k // 2))].sum(axis=1)
    noise_pd = rng.standard_normal((patches, dim)).astype(np.float32)
    zeros_v, zeros_d = np.zeros(words, np.float32), np.zeros(dim, np.float32)
    sae = SparseAutoEncoder(np.ascontiguousarray(atoms_vd.T), zeros_v, atoms_vd, zeros_d, k)
    return sae, mixed_pd + noise_pd


def _in_torch(sae: SparseAutoEncoder, patches_pd: Floats) -> Callable[[], object]:
    weights_vd = torch.from_numpy(np.ascontiguousarray(sae.w_enc_dv.T))
    bias_v, x_pd = torch.from_numpy(sae.b_enc_v), torch.from_numpy(patches_pd)

    def encode() -> object:
        with torch.inference_mode():
            return torch.nn.functional.linear(x_pd, weights_vd, bias_v).relu().topk(sae.k)

    return encode


def _agreement(expected: Codes, found: Codes) -> float:
    rows = zip(expected.words_pk, found.words_pk, strict=True)
    return float(np.mean([np.isin(*row).mean() for row in rows]))
