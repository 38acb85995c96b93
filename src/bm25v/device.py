"""The first stage of many queries at once on a device, by torch: sparse × dense products.

As in the paper, the saturations of all words of all images are a sparse matrix, the weights of a
batch of queries a dense one, and their product has the scores. It is computed in float32; a bound
of its error decides which rows are scored again by the formula, so that results are those of
`Searcher.search` to the last bit.
"""

import logging
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from bm25v.errors import InvalidOption, MissingExtra
from bm25v.index.bm25 import saturation
from bm25v.index.searcher import QueryTerms, Ranked, Searcher, SearchRequest, top_positions
from bm25v.search.encode import EncodedQuery
from bm25v.store.base import Candidates
from bm25v.store.local.snapshot import Snapshot
from bm25v.vocabulary.bag import dequantise

_log = logging.getLogger(__name__)

_SCORES_AT_ONCE = 1 << 26  # of a batch: 256 MB
_LARGEST_BATCH = 1024
_EPSILON = 2.0**-24  # largest relative error of rounding to float32
_ROUNDINGS = 4  # of each product and its factors, with a reserve
_UNDERFLOW = 1e-35  # more than is lost where products are too small for float32


class DeviceSearcher:
    """The bags of a searcher on a device of torch, such as "cuda"."""

    def __init__(self, searcher: Searcher, device: str) -> None:
        try:
            import torch
        except ImportError as error:
            raise MissingExtra("a search on a device", "train") from error
        self.searcher, self._torch = searcher, torch
        try:
            self._device = torch.device(device)
            torch.empty(1, device=self._device)
        except (RuntimeError, AssertionError) as error:  # torch without CUDA raises the second
            raise InvalidOption(
                f"device {device!r} cannot be used by torch here: give 'cpu', or leave it out"
            ) from error
        try:
            self._matrix_nv = self._make_matrix()
            self._removed_n = torch.from_numpy(~searcher.live_n).to(self._device)
        except RuntimeError as error:
            self._check_memory(error, can_retry=False)

    @property
    def nbytes(self) -> int:
        matrix = self._matrix_nv
        parts = (matrix.crow_indices(), matrix.col_indices(), matrix.values(), self._removed_n)
        return sum(int(part.nbytes) for part in parts)

    def find_candidates(self, view: Snapshot, encoded: Sequence[EncodedQuery]) -> list[Candidates]:
        """Return the candidates of each query, as the view itself finds them."""
        plans = list(map(view.plan, encoded))
        requests = [plan for plan in plans if isinstance(plan, SearchRequest)]
        ranked = iter(self.search_many(requests))
        return [
            view.accept(next(ranked)) if isinstance(plan, SearchRequest) else view.images(plan)
            for plan in plans
        ]

    def search_many(self, requests: Sequence[SearchRequest]) -> list[Ranked]:
        """Return the k best rows of each query; batches are smaller if memory is short."""
        results: list[Ranked] = []
        size = max(1, min(_LARGEST_BATCH, _SCORES_AT_ONCE // max(1, len(self.searcher.live_n))))
        while len(results) < len(requests):
            batch = requests[len(results) : len(results) + size]
            try:
                results += self._search_batch(batch)
            except RuntimeError as error:
                self._check_memory(error, can_retry=size > 1)
                size = max(1, min(size, len(batch)) // 2)
                _log.warning("%s is short of memory: %s queries at once", self._device, size)
        return results

    def _check_memory(self, error: RuntimeError, *, can_retry: bool) -> None:
        """Raise an error, unless it is that of an allocator and smaller batches can be tried."""
        is_memory = isinstance(error, self._torch.OutOfMemoryError)
        if not is_memory and "can't allocate memory" not in str(error):
            raise error
        if not can_retry:
            n = len(self.searcher.live_n)
            raise InvalidOption(
                f"{self._device} has not enough memory for {n:,} images: search without a device"
            ) from error
        if self._device.type == "cuda":
            self._torch.cuda.empty_cache()

    def _make_matrix(self) -> Any:
        """Return the saturation of each word in each row, as a sparse matrix."""
        words_nk, tf_nk = self.searcher.bags
        statistics, parameters = self.searcher.statistics, self.searcher.parameters
        norms = statistics.length_norms(tf_nk.sum(axis=1, dtype=np.int64), parameters)
        is_used_nk = tf_nk > 0
        starts = np.zeros(len(words_nk) + 1, dtype=np.int64)
        np.cumsum(is_used_nk.sum(axis=1), out=starts[1:])
        rows, slots = np.nonzero(is_used_nk)
        values = saturation(dequantise(tf_nk[rows, slots]), norms[rows], parameters)
        index_type = np.int32 if len(rows) < 2**31 else np.int64
        indices = (starts.astype(index_type), words_nk[rows, slots].astype(index_type))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that such matrices are a beta version
            return self._torch.sparse_csr_tensor(
                *map(self._torch.from_numpy, (*indices, values.astype(np.float32))),
                size=(len(words_nk), statistics.n_words),
                device=self._device,
            )

    def _search_batch(self, batch: Sequence[SearchRequest]) -> list[Ranked]:
        torch = self._torch
        terms = [QueryTerms.prepare(r.words, self.searcher.statistics) for r in batch]
        weights_vq = np.zeros((self.searcher.statistics.n_words, len(terms)), dtype=np.float32)
        for number, query in enumerate(terms):
            weights_vq[query.words, number] = query.term_weights[1:]
        scores_qn = (self._matrix_nv @ torch.from_numpy(weights_vq).to(self._device)).T.contiguous()
        scores_qn.masked_fill_(self._removed_n, -torch.inf)
        for scores_n, request in zip(scores_qn, batch, strict=True):
            if request.allowed_n is not None:
                forbidden_n = torch.from_numpy(~request.allowed_n).to(self._device)
                scores_n.masked_fill_(forbidden_n, -torch.inf)
        n_top = min(scores_qn.shape[1], max(request.k for request in batch))
        top_qk = torch.topk(scores_qn, n_top, dim=1).values.cpu().numpy()
        results = []
        for request, query, scores_n, top_k in zip(batch, terms, scores_qn, top_qk, strict=True):
            # A score is the sum of at most k_post products, and no product is larger than the
            # largest saturation times its weight.
            k_post = self.searcher.bags[0].shape[1]
            largest = float(np.sort(np.abs(query.term_weights))[-k_post:].sum())
            magnitude = largest * self.searcher.parameters.largest_saturation
            error = magnitude * (k_post + _ROUNDINGS) * _EPSILON + _UNDERFLOW
            threshold = float(top_k[request.k - 1]) - 2 * error if n_top >= request.k else 0.0
            if not threshold > error:  # rows without a word of the query may reach it
                ranked = self.searcher.search(request.words, request.k, among=request.allowed_n)
                results.append(ranked)
                continue
            rows = torch.nonzero(scores_n >= threshold)[:, 0].cpu().numpy()
            exact_rows, exact = self.searcher.score_rows(rows, query)
            best = top_positions(exact_rows, exact, request.k)
            results.append(Ranked(exact_rows[best], exact[best]))
        return results
