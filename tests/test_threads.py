"""The number of threads follows what the process may use; lazy values are computed once."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bm25v import threads


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux has affinities")
def test_the_affinity_of_the_process_limits_the_threads() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert threads.available_cpus() == 1
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize(
    ("limit", "expected"), [("50000 100000", 1), ("max 100000", 4), ("300000 100000", 3)]
)
def test_the_limit_of_a_container_counts(
    limit: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text(limit)
    monkeypatch.setattr(threads, "CGROUP_LIMIT", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3}, raising=False)
    assert threads.available_cpus() == expected


def test_threads_that_ask_at_once_share_one_value() -> None:
    class Lazy:
        calls = 0

        @threads.locked_cached_property
        def value(self) -> object:
            self.calls += 1
            time.sleep(0.05)
            return object()

    lazy, other = Lazy(), Lazy()
    with ThreadPoolExecutor(4) as pool:
        values = set(pool.map(lambda _: lazy.value, range(4)))
    assert (len(values), lazy.calls) == (1, 1)
    assert other.value is not lazy.value
