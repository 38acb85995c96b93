"""How many threads to use, and lazy attributes that threads share."""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar, overload

_T = TypeVar("_T")

# Linux: "quota period" or "max period", in microseconds. Other systems do not have this file.
CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def available_cpus() -> int:
    """Return how many CPUs this process may use: by its affinity and its container's limit.

    >>> 1 <= available_cpus() <= (os.cpu_count() or 1)
    True
    """
    try:
        cpus = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows: no affinity
        cpus = os.cpu_count() or 1
    with suppress(OSError, ValueError):  # there is no limit
        quota, period = CGROUP_LIMIT.read_text(encoding="ascii").split()
        cpus = min(cpus, -(-int(quota) // int(period)))
    return max(1, cpus)


class locked_cached_property(cached_property[_T]):  # noqa: N801 - named like functools' own
    """`functools.cached_property` that is computed once, even if two threads read it at once.

    >>> class Model:
    ...     @locked_cached_property
    ...     def weights(self) -> str:
    ...         print("loading")
    ...         return "the weights"
    >>> model = Model()
    >>> model.weights
    loading
    'the weights'
    >>> model.weights
    'the weights'
    """

    def __init__(self, compute: Callable[[Any], _T]) -> None:
        super().__init__(compute)
        self._once = threading.RLock()  # functools has none since Python 3.12

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> _T: ...
    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
        with self._once:
            return super().__get__(instance, owner)
