"""What a run has done and what went wrong, as plain values."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bm25v.display import file_size
from tests.soak.child import NOTHING, Usage

_LEAKED_BYTES = 32_000_000  # more memory than this at the end than at the start is a leak
_LEAKED_FILES = 8


class Problem(NamedTuple):
    """Something that must not happen, and how to see it again.

    `History(seed, n_images).at(step)` is what the gallery should contain, and
    `random_action(seed, reader, action, n_images)` has the queries.
    """

    text: str
    seed: int
    step: int  # the last one that had begun
    reader: int | None = None
    action: int | None = None

    def __str__(self) -> str:
        reader = "" if self.reader is None else f", reader {self.reader}, action {self.action}"
        return f"{self.text} (seed {self.seed}, step {self.step}{reader})"


@dataclass
class ReaderReport:
    """What one reader did; usage is the highest of the first and of the last quarter."""

    searches: Counter[str] = field(default_factory=Counter)  # by mode
    batches: int = 0  # calls of search_many
    verifications: int = 0
    opened: int = 0  # times that it opened the gallery
    slowest_ms: float = 0.0
    usage_at_start: Usage = NOTHING
    usage_at_end: Usage = NOTHING

    def to_dict(self) -> dict[str, Any]:
        usages = {key: getattr(self, key)._asdict() for key in ("usage_at_start", "usage_at_end")}
        return {**vars(self), "searches": dict(self.searches), **usages}


def find_leaks(report: ReaderReport) -> Iterator[str]:
    """Yield what a reader uses more of at the end than at the start."""
    start, end = report.usage_at_start, report.usage_at_end
    if end.memory_bytes > start.memory_bytes + _LEAKED_BYTES:
        yield f"memory grew from {file_size(start.memory_bytes)} to {file_size(end.memory_bytes)}"
    if end.open_files > start.open_files + _LEAKED_FILES:
        yield f"open files grew from {start.open_files} to {end.open_files}"


@dataclass
class SoakReport:
    seed: int
    n_images: int
    seconds: float = 0.0
    is_interrupted: bool = False
    commits: int = 0
    compactions: int = 0
    repeated: int = 0  # commits and compactions that were begun again after a kill
    kills: Counter[str] = field(default_factory=Counter)  # by signal
    interrupted_commits: int = 0  # and compactions, by a kill
    kept_commits: int = 0  # of these, how many had taken effect
    readers: list[ReaderReport] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def searches(self) -> Counter[str]:
        return sum((reader.searches for reader in self.readers), Counter())

    def to_dict(self) -> dict[str, Any]:
        return {
            **vars(self),
            "kills": dict(self.kills),
            "searches": dict(self.searches),
            "readers": [reader.to_dict() for reader in self.readers],
            "problems": [problem._asdict() for problem in self.problems],
        }
