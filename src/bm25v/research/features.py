"""The pictures of a data set become features: once, whatever is then measured.

Features are patches in half precision and a dense vector. They are kept by the content of the
picture and by the backbone, so data sets share them, files may move, and an interrupted run goes
on. Not this room's job: words, which depend on settings (`words`).
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from bm25v.backbones import Backbone, Features
from bm25v.errors import EvaluationError, WrongUse
from bm25v.research.datasets import Dataset, Item, sifted
from bm25v.research.shots import Content, Shot, content, digest_of, prepared
from bm25v.research.store import FeatureStore, Shard
from bm25v.vocabulary import Vocabulary

_SHARD_BYTES = 64_000_000
_SHARD_PICTURES = 256  # at most: what a crash may cost

Progress = Callable[[str, int, int], None]
Patches = tuple[NDArray[np.int64], NDArray[np.float16]]  # which pictures, and their patches_npd


@dataclass(frozen=True)
class Extracted:
    """A data set and the features of its pictures, each distinct one once."""

    dataset: Dataset
    cache: Path
    backbone: str  # its fingerprint
    key: str  # of all features
    gallery_n: NDArray[np.int64]  # which features the pictures of the gallery have
    queries_q: NDArray[np.int64]  # … and the queries
    dense_ue: NDArray[np.float32]
    _patches: Callable[[], Iterator[Patches]] = field(repr=False)

    def __len__(self) -> int:
        return len(self.dense_ue)

    def patches(self) -> Iterator[Patches]:
        """Give the patches of all distinct pictures, some at a time, in no order."""
        return self._patches()


def default_cache() -> Path:
    """Return where features are kept unless told: in the user's cache folder."""
    import platformdirs

    return platformdirs.user_cache_path("bm25v") / "evaluation"


def extract(
    dataset: Dataset | Extracted,
    vocabulary: Vocabulary,
    *,
    cache: Path | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Extracted:
    """Return the features of a data set's pictures; those that cannot be read are left out.

    The backbone sees only pictures whose features are not in the cache. What it has extracted
    before is returned as it is, and no file is looked at.
    """
    if isinstance(dataset, Extracted):
        if dataset.backbone != vocabulary.backbone_fingerprint:
            raise WrongUse(
                f"features of {dataset.dataset.title} were extracted by another backbone than "
                f"{vocabulary.backbone_name}: hand over the data set itself"
            )
        return dataset
    if not dataset.queries:
        raise EvaluationError(
            f"{dataset.name} has no queries, only pictures to learn from: use it with bm25v train"
        )
    cache = cache or default_cache()
    shots = list(dict.fromkeys(Shot.of(item) for item in dataset.gallery + dataset.queries))
    with workers() as pool:
        contents = dict(zip(shots, pool.map(content, shots), strict=True))
    keys = {shot: found.key for shot, found in contents.items() if isinstance(found, Content)}
    store = FeatureStore(cache / "features" / vocabulary.backbone_fingerprint, keys.values())
    errors = _fill(store, keys, vocabulary, progress)
    left = sifted(dataset, _outcomes(contents, errors))
    places = {key: place for place, key in enumerate(dict.fromkeys(_keys_of(left, keys)))}
    known = {keys[shot]: shot for shot in shots if keys.get(shot) in places}

    def patches() -> Iterator[Patches]:
        missing = set(places)
        while missing:  # again where a shard turned out to be damaged
            lost = _fill(store, {known[key]: key for key in missing}, vocabulary, progress)
            for key, error in lost.items():
                raise EvaluationError(f"{known[key].path} cannot be read any more: {error}")
            for shard in store.shards(missing):
                rows = [row for row, key in enumerate(shard.keys) if key in missing]
                found = [shard.keys[row] for row in rows]
                missing.difference_update(found)
                yield np.array([places[key] for key in found]), shard.patches_npd[rows]

    return Extracted(
        dataset=left,
        cache=cache,
        backbone=vocabulary.backbone_fingerprint,
        key=digest_of(vocabulary.backbone_fingerprint.encode(), *places).hex(),
        gallery_n=_rows(left.gallery, keys, places),
        queries_q=_rows(left.queries, keys, places),
        dense_ue=np.stack([store.dense[key] for key in places]),
        _patches=patches,
    )


def _outcomes(
    contents: Mapping[Shot, Content | str], errors: Mapping[bytes, str]
) -> dict[Path, bytes | str]:
    """Return the digest of each file, or why it cannot be used."""
    outcomes: dict[Path, bytes | str] = {}
    for shot, found in contents.items():
        if isinstance(outcomes.get(shot.path), str):
            continue  # another part of it cannot be used
        outcome = found if isinstance(found, str) else errors.get(found.key, found.digest)
        outcomes[shot.path] = outcome
    return outcomes


def _keys_of(dataset: Dataset, keys: Mapping[Shot, bytes]) -> Iterator[bytes]:
    return (keys[Shot.of(item)] for item in dataset.gallery + dataset.queries)


def _rows(
    items: Sequence[Item], keys: Mapping[Shot, bytes], places: Mapping[bytes, int]
) -> NDArray[np.int64]:
    return np.array([places[keys[Shot.of(item)]] for item in items], dtype=np.int64)


def _fill(
    store: FeatureStore, keys: Mapping[Shot, bytes], vocabulary: Vocabulary, progress: Progress
) -> dict[bytes, str]:
    """Put features that are missing into the store; return the reasons where there are none."""
    unknown = {key: shot for shot, key in keys.items() if key not in store.dense}
    if not unknown:
        return {}
    backbone = vocabulary.backbone
    backbone.load()
    size = _shard_size(backbone)
    errors: dict[bytes, str] = {}
    waiting: dict[bytes, Features] = {}
    try:
        for done, (key, outcome) in enumerate(_described(unknown, backbone), start=1):
            progress("features", done, len(unknown))
            if isinstance(outcome, str):
                errors[key] = outcome
                continue
            waiting[key] = outcome
            if len(waiting) == size:
                store.add(_shard(waiting))
                waiting = {}
    finally:  # also of a run that was interrupted
        if waiting:
            store.add(_shard(waiting))
    return errors


def _shard_size(backbone: Backbone) -> int:
    n_patches = backbone.grid[0] * backbone.grid[1]
    return max(1, min(_SHARD_PICTURES, _SHARD_BYTES // (2 * n_patches * backbone.patch_dim)))


def _shard(features: Mapping[bytes, Features]) -> Shard:
    dense_ne = np.stack([one.dense_e for one in features.values()]).astype(np.float32)
    dense_ne /= np.maximum(np.linalg.norm(dense_ne, axis=1, keepdims=True), 1e-12)
    patches_npd = np.stack([one.patches_pd.astype(np.float16) for one in features.values()])
    return Shard(list(features), patches_npd, dense_ne)


def _described(
    shots: Mapping[bytes, Shot], backbone: Backbone
) -> Iterator[tuple[bytes, Features | str]]:
    """Give the features of pictures, or why there are none, in order."""
    listed = list(shots.items())
    chunks = [listed[i : i + backbone.batch] for i in range(0, len(listed), backbone.batch)]
    # One thread a picture: threads inside the matrix products would only wait for each other.
    with threadpool_limits(1, user_api="blas"), workers() as pool:
        described = pool.map(lambda chunk: _forward(chunk, backbone), chunks)
        for chunk, found in zip(chunks, described, strict=True):
            yield from zip((key for key, _ in chunk), found, strict=True)


def _forward(chunk: Iterable[tuple[bytes, Shot]], backbone: Backbone) -> list[Features | str]:
    ready = [prepared(key, shot, backbone) for key, shot in chunk]
    features = iter(backbone.forward_batch([one for one in ready if not isinstance(one, str)]))
    return [one if isinstance(one, str) else next(features) for one in ready]


@contextmanager
def workers() -> Iterator[ThreadPoolExecutor]:
    """Give a thread a core; an interruption does not wait for what has not begun."""
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
