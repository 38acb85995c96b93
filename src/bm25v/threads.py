"""How many threads to use: the CPUs that this process may use, not those of the machine."""

import os
from pathlib import Path

_CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")  # "quota period" or "max period", in microseconds


def available_cpus() -> int:
    """Return how many CPUs this process may use: by its affinity and its container's limit.

    >>> 1 <= available_cpus() <= (os.cpu_count() or 1)
    True
    """
    try:
        cpus = len(os.sched_getaffinity(0))
    except AttributeError:  # only Linux has it
        cpus = os.cpu_count() or 1
    return max(1, min(cpus, _cgroup_cpus() or cpus))


def _cgroup_cpus() -> int | None:
    """Return the limit of the container, rounded up; None if there is none."""
    try:
        quota, period = _CGROUP_LIMIT.read_text().split()
        return -(-int(quota) // int(period))
    except (OSError, ValueError):
        return None
