"""Several processes that train together, started by `torchrun`; or just this one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import distributed

from bm25v.sae.batches import Patches


@dataclass(frozen=True)
class Processes:
    """This process's place among those of a run."""

    rank: int = 0
    n: int = 1

    @classmethod
    @contextmanager
    def join(cls, device: str) -> Iterator["Processes"]:
        """Join the others, if `torchrun` started any."""
        n = int(os.environ.get("WORLD_SIZE", "1"))
        if n == 1:
            yield cls()
            return
        distributed.init_process_group("nccl" if device.startswith("cuda") else "gloo")
        try:
            yield cls(distributed.get_rank(), n)
        finally:
            distributed.destroy_process_group()

    @property
    def is_first(self) -> bool:
        """Whether this is the one that writes files."""
        return self.rank == 0

    def part(self, batch: Patches) -> Patches:
        """Return this process's share of a batch."""
        return batch[self.rank :: self.n]

    def wait(self) -> None:
        """Wait until all have come this far."""
        if self.n > 1:
            distributed.barrier()
