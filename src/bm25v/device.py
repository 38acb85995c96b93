"""The first stage of many queries at once on a device, by torch: sparse × dense products.

In: a searcher and queries with their k. Out: for each what `Searcher.search` returns, to the last
bit. As in the paper, the saturations of all words of all images are a sparse matrix, the weights of
a batch of queries a dense one, and their product has the scores. It is computed in float32; a bound
of its error decides which rows are scored again by the formula. Not this module's job: the second
stage. torch is imported here only, when a device is asked for.
"""

import logging
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import MissingExtra, WrongUse
from bm25v.index.bm25 import saturation
from bm25v.index.searcher import (
    QueryTerms,
    Ranked,
    Searcher,
    SearchRequest,
    top_positions,
)
from bm25v.vocabulary.bag import dequantise

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)

_SCORES_AT_ONCE = 1 << 26  # of a batch: 256 MB
_LARGEST_BATCH = 1024
_SPARE_ROWS = 64  # more rows than k, so that scores near the k-th are among them
_EPSILON = 2.0**-24  # largest relative error of rounding to float32
_ROUNDINGS = 4  # of each product and its factors, with a reserve
_UNDERFLOW = 1e-35  # more than is lost where products are too small for float32
_CHUNK_ROWS = 65_536


class DeviceSearcher:
    """The bags of a searcher on a device. It is valid as long as the searcher is."""

    def __init__(self, searcher: Searcher, device: str) -> None:
        self._torch = _import_torch()
        self._searcher = searcher
        self._device = self._find_device(device)
        self._k_post = searcher.bags[0].shape[1]
        try:
            self._matrix_nv = self._make_matrix()
            removed_n = self._torch.from_numpy(~searcher.live_n)
            self._removed_n = None if searcher.live_n.all() else removed_n.to(self._device)
        except RuntimeError as error:
            if not _is_out_of_memory(error):
                raise
            raise self._too_large() from error

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        matrix = self._matrix_nv
        parts = (matrix.crow_indices(), matrix.col_indices(), matrix.values(), self._removed_n)
        return sum(int(part.nbytes) for part in parts if part is not None)

    def search_many(self, requests: Sequence[SearchRequest]) -> list[Ranked]:
        """Return the k best rows of each query, as `Searcher.search` does.

        If the device has not enough memory for a batch, smaller ones are tried.
        """
        results: list[Ranked] = []
        size = max(1, min(_LARGEST_BATCH, _SCORES_AT_ONCE // max(1, len(self._searcher.live_n))))
        while len(results) < len(requests):
            batch = requests[len(results) : len(results) + size]
            try:
                results += self._search_batch(batch)
            except RuntimeError as error:
                if not _is_out_of_memory(error):
                    raise
                if size == 1:
                    raise self._too_large() from error
            else:
                continue
            if self._device.type == "cuda":
                self._torch.cuda.empty_cache()
            size = max(1, min(size, len(batch)) // 2)
            _log.warning(
                "%s is short of memory: %s queries at once from now on", self._device, size
            )
        return results

    def _find_device(self, name: str) -> "torch.device":
        try:
            device = self._torch.device(name)
            self._torch.empty(1, device=device)
        except (RuntimeError, AssertionError) as error:  # torch without CUDA raises the second
            raise WrongUse(
                f"device {name!r} cannot be used by torch here: give 'cpu', or leave it out"
            ) from error
        return device

    def _too_large(self) -> WrongUse:
        n = len(self._searcher.live_n)
        return WrongUse(
            f"{self._device} has not enough memory for {n:,} images: search without a device"
        )

    def _make_matrix(self) -> Any:
        """Return the saturation of each word in each row, as a sparse matrix."""
        torch, (words_nk, tf_nk) = self._torch, self._searcher.bags
        n = len(words_nk)
        is_used_nk = tf_nk > 0
        starts = np.zeros(n + 1, dtype=np.int64)
        np.cumsum(is_used_nk.sum(axis=1), out=starts[1:])
        index_type = np.int32 if starts[-1] < 2**31 else np.int64
        values = np.empty(starts[-1], dtype=np.float32)
        words = np.empty(starts[-1], dtype=index_type)
        for first in range(0, n, _CHUNK_ROWS):
            chunk = slice(first, first + _CHUNK_ROWS)
            part = slice(starts[first], starts[min(first + _CHUNK_ROWS, n)])
            tf_ck, is_used_ck = tf_nk[chunk], is_used_nk[chunk]
            lengths = tf_ck.sum(axis=1, dtype=np.int64)
            norms = self._searcher.statistics.length_norms(lengths, self._searcher.parameters)
            with np.errstate(invalid="ignore"):  # 0 / 0 in an empty bag with b = 1
                saturations_ck = saturation(
                    dequantise(tf_ck), norms[:, None], self._searcher.parameters
                )
            values[part] = saturations_ck[is_used_ck]
            words[part] = words_nk[chunk][is_used_ck]
        arrays = (starts.astype(index_type), words, values)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that such matrices are a beta version
            return torch.sparse_csr_tensor(
                *(torch.from_numpy(array) for array in arrays),
                size=(n, self._searcher.statistics.n_words),
                device=self._device,
            )

    def _search_batch(self, batch: Sequence[SearchRequest]) -> list[Ranked]:
        terms = [QueryTerms.prepare(r.words, self._searcher.statistics) for r in batch]
        scores_qn = self._score(terms, batch)
        n = scores_qn.shape[1]
        n_top = min(n, max(request.k for request in batch) + _SPARE_ROWS)
        top_scores, top_rows = self._torch.topk(scores_qn, n_top, dim=1)
        tops = zip(top_scores.cpu().numpy(), top_rows.cpu().numpy(), strict=True)
        results = []
        for number, (request, query, (scores, rows)) in enumerate(
            zip(batch, terms, tops, strict=True)
        ):
            threshold = self._threshold(query, scores, request.k)
            if threshold is None:
                results.append(
                    self._searcher.search(request.words, request.k, among=request.allowed_n)
                )
                continue
            if n_top < n and scores[-1] >= threshold:  # more rows are near the k-th
                above = scores_qn[number] >= threshold
                rows = self._torch.nonzero(above)[:, 0].cpu().numpy()
            else:
                rows = rows[scores >= threshold]
            exact_rows, exact = self._searcher.score_rows(np.sort(rows), query)
            best = top_positions(exact_rows, exact, request.k)
            results.append(Ranked(exact_rows[best], exact[best]))
        return results

    def _score(self, terms: Sequence[QueryTerms], batch: Sequence[SearchRequest]) -> "torch.Tensor":
        """Return the scores of all rows for each query; those of rows it may not find are -inf."""
        torch = self._torch
        weights_vq = np.zeros((self._searcher.statistics.n_words, len(terms)), dtype=np.float32)
        for number, query in enumerate(terms):
            weights_vq[query.words, number] = query.term_weights[1:]
        scores_nq = self._matrix_nv @ torch.from_numpy(weights_vq).to(self._device)
        scores_qn = scores_nq.T.contiguous()
        del scores_nq
        if self._removed_n is not None:
            scores_qn.masked_fill_(self._removed_n, -torch.inf)
        for number, request in enumerate(batch):
            if request.allowed_n is not None:
                ruled_out_n = torch.from_numpy(~request.allowed_n).to(self._device)
                scores_qn[number].masked_fill_(ruled_out_n, -torch.inf)
        return scores_qn

    def _threshold(self, query: QueryTerms, scores: NDArray[np.float32], k: int) -> float | None:
        """Return a score that the k best rows reach; None if rows without a word may reach it.

        A score is the sum of at most `k_post` products, and no product is larger than the largest
        saturation times its weight.
        """
        largest = np.sort(np.abs(query.term_weights))[-self._k_post :].sum()
        magnitude = float(largest) * self._searcher.parameters.largest_saturation
        error = magnitude * (self._k_post + _ROUNDINGS) * _EPSILON + _UNDERFLOW
        if len(scores) < k:
            return None
        threshold = float(scores[k - 1]) - 2 * error
        return threshold if threshold > error else None


class SearchOnDevice:
    """Finds candidates for `search.engine` on a device; keeps the matrix of the last searcher."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._last: tuple[Searcher, DeviceSearcher] | None = None

    def __call__(self, searcher: Searcher, requests: Sequence[SearchRequest]) -> list[Ranked]:
        """Return what the searcher returns for each request."""
        last = self._last
        if last is None or last[0] is not searcher:
            self._last = None  # free the memory of the device first
            self._last = last = (searcher, DeviceSearcher(searcher, self._device))
        return last[1].search_many(requests)


def _import_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingExtra("a search on a device", "train") from error
    return torch


def _is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether an error is that of an allocator: of a GPU, or of the main memory."""
    import torch

    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
