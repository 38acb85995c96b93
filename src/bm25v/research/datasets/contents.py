"""Looks into every picture of a data set: can it be read, and is it there twice?"""

import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from bm25v import images
from bm25v.errors import EvaluationError, ImageError
from bm25v.research.datasets.dataset import Dataset, Item, report

_SIDE = 32  # small is quick, and only whether it works is of interest


def checked(
    dataset: Dataset, *, progress: Callable[[int, int], None] = lambda done, total: None
) -> Dataset:
    """Return a data set without its unreadable pictures, and with all that is wrong in `problems`.

    Every file is read and decoded once. Copies are reported and stay.
    """
    paths = list(dict.fromkeys(item.path for item in dataset.gallery + dataset.queries))
    outcomes: dict[Path, bytes | str] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = zip(paths, pool.map(_look, paths), strict=True)
        for done, (path, outcome) in enumerate(found, start=1):
            progress(done, len(paths))
            outcomes[path] = outcome
    return sifted(dataset, outcomes)


def sifted(dataset: Dataset, outcomes: Mapping[Path, bytes | str]) -> Dataset:
    """Do the same, given each picture's digest, or why it cannot be read."""
    digests = {path: found for path, found in outcomes.items() if isinstance(found, bytes)}
    errors = {path: found for path, found in outcomes.items() if isinstance(found, str)}
    gallery = [item for item in dataset.gallery if item.path in digests]
    queries = [item for item in dataset.queries if item.path in digests]
    if not gallery or (dataset.queries and not queries):
        path, error = next(iter(errors.items()))
        raise EvaluationError(
            f"{len(errors):,} of {len(outcomes):,} pictures in {dataset.folder} cannot be read, "
            f"which leaves {len(gallery):,} to search and {len(queries):,} queries; "
            f"{dataset.id_of(path)}: {error}"
        )
    unreadable = (f"{dataset.id_of(path)}: {error}" for path, error in errors.items())
    findings = dataset.findings + report("unreadable and left out", unreadable)
    left = replace(dataset, gallery=gallery, queries=queries)
    return replace(left, findings=findings + _copies(left, digests))


def _look(path: Path) -> bytes | str:
    """Return the digest of a picture's file, or why it cannot be read."""
    try:
        with images.open_stream(path) as stream:
            data = stream.read()
        images.decode_image(data, short_side=_SIDE)
    except (ImageError, OSError) as error:
        return str(error)
    return hashlib.blake2b(data, digest_size=16).digest()


def _copies(dataset: Dataset, digests: dict[Path, bytes]) -> list[str]:
    def grouped(items: Iterable[Item]) -> defaultdict[bytes, list[Item]]:
        groups: defaultdict[bytes, list[Item]] = defaultdict(list)
        for item in items:
            groups[digests[item.path]].append(item)
        return groups

    torn = []
    for alike in grouped(dataset.gallery + dataset.queries).values():
        by_label = {item.label: dataset.id_of(item.path) for item in alike}
        if len(by_label) > 1:
            torn.append(" = ".join(by_label.values()))
    searched = grouped(dataset.gallery)
    repeated = [
        dataset.id_of(query.path)
        for query in dataset.queries
        if any(item.path != query.path for item in searched[digests[query.path]])
    ]
    return [
        *report("the same content in several classes", torn),
        *report("queries with a copy in the gallery", repeated),
    ]
