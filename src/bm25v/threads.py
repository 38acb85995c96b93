"""How many threads to use, and lazy attributes that threads share.

The number of CPUs is that of the process, not of the machine: see `available_cpus`.
"""

import os
import threading
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar, overload

_T = TypeVar("_T")

# Linux: "quota period" or "max period", in microseconds. Other systems do not have this file.
_CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def available_cpus() -> int:
    """Return how many CPUs this process may use: by its affinity and its container's limit.

    >>> 1 <= available_cpus() <= (os.cpu_count() or 1)
    True
    """
    try:
        cpus = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows: no affinity
        cpus = os.cpu_count() or 1
    return max(1, min(cpus, _cgroup_cpus() or cpus))


def _cgroup_cpus() -> int | None:
    """Return the limit of the container, rounded up; None if there is none."""
    try:
        quota, period = _CGROUP_LIMIT.read_text(encoding="ascii").split()
        return -(-int(quota) // int(period))
    except (OSError, ValueError):
        return None


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
