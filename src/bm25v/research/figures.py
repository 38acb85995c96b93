"""Everything that an evaluation report shows, as values; `pages` makes HTML of it."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from bm25v.research import cost
from bm25v.research.ablations import Grid
from bm25v.research.cost import Growth, SystemCost, WordUsage
from bm25v.research.result import Result
from bm25v.research.settings import typed
from bm25v.research.zipf import ZipfFit


class Speed(NamedTuple):
    """How long one query takes one system."""

    system: str
    median_ms: float
    p95_ms: float


@dataclass(frozen=True)
class Speeds:
    """How long searches take, on one thread, with encoded queries."""

    machine: str
    queries: int
    candidates: int  # of the first stage
    systems: tuple[Speed, ...]


@dataclass(frozen=True)
class Report:
    """A page's worth of figures."""

    result: Result
    ablations: tuple[Grid, ...]  # of one setting each
    zipf: ZipfFit
    usages: tuple[WordUsage, ...]  # as it is, then projected
    growth: Growth
    dim: int  # of a dense vector
    bag_bytes: int  # of a picture on disk
    dense_bytes: int
    speeds: Speeds | None
    commands: tuple[str, ...]  # that give these figures again
    version: str

    def cost_tables(self) -> list[list[SystemCost]]:
        """Return what each system costs, for each of the usages."""
        return [cost.cost_table(usage, dim=self.dim) for usage in self.usages]

    def expected_words(self) -> list[float]:
        """Return how many words are expected in any image, for each of the usages."""
        return [
            float(cost.expected_active_words(usage.images, usage.image_words, usage.vocabulary))
            for usage in self.usages
        ]

    def changed_settings(self) -> dict[str, str]:
        """Return the settings that are not the default ones, as a person types them."""
        return {name: typed(value) for name, value in self.result.settings.changes.items()}

    def setting(self, name: str) -> str:
        """Return the value of a setting as a person types it."""
        return typed(getattr(self.result.settings, name) or self.result.vocabulary["k_post"])

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as plain values; of each query only what it adds to them."""
        return {
            "version": self.version,
            **self.result.to_dict(),
            "ablations": {
                grid.axes[0]: [cell.to_dict() for cell in grid.cells] for grid in self.ablations
            },
            "zipf": self.zipf.to_dict(),
            "cost": [
                {**usage.to_dict(), "systems": [line.to_dict() for line in lines]}
                for usage, lines in zip(self.usages, self.cost_tables(), strict=True)
            ],
            "growth": self.growth._asdict(),
            "bytes_on_disk": {"bags": self.bag_bytes, "dense": self.dense_bytes},
            "milliseconds": None if self.speeds is None else _times(self.speeds),
            "commands": list(self.commands),
        }


def _times(speeds: Speeds) -> dict[str, Any]:
    systems = {one.system: {"median": one.median_ms, "p95": one.p95_ms} for one in speeds.systems}
    return {**vars(speeds), "systems": systems}
