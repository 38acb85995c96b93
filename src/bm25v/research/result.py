"""What was measured, and under which circumstances."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bm25v.index.searcher import Ranked
from bm25v.research.datasets import Dataset
from bm25v.research.settings import Settings
from bm25v.research.statistics import Comparison, Interval
from bm25v.vocabulary import Vocabulary


@dataclass(frozen=True)
class Measured:
    """What one system is worth."""

    about: str  # how it was set up
    figures: dict[str, Interval]
    against_dense: dict[str, Comparison]  # by figure; empty for dense itself, and without it
    classes: dict[str, dict[str, float]]  # empty unless asked for
    answers: Sequence[Ranked] = field(repr=False, default=())

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values: the means first, by figure."""
        means = {name: one.mean for name, one in self.figures.items()}
        ci = {name: [one.low, one.high] for name, one in self.figures.items()}
        found: dict[str, Any] = {**means, "ci": ci}
        if self.against_dense:
            found["against_dense"] = {
                name: one._asdict() for name, one in self.against_dense.items()
            }
        if self.classes:
            found["classes"] = self.classes
        return {**found, "about": self.about}


@dataclass(frozen=True)
class Result:
    """What several systems are worth on one data set."""

    dataset: Dataset
    problems: list[str]
    vocabulary: dict[str, Any]
    settings: Settings
    unanswerable: int  # queries without a right answer in the gallery; they count as missed
    systems: dict[str, Measured]

    @property
    def name(self) -> str:
        """What to call the data set."""
        return self.dataset.title

    @property
    def figures(self) -> list[str]:
        """The names of what was measured."""
        return list(next(iter(self.systems.values())).figures)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "dataset": self.name,
            "queries": len(self.dataset.queries),
            "gallery": len(self.dataset.gallery),
            "systems": {name: system.to_dict() for name, system in self.systems.items()},
            "protocol": self.dataset.protocol,
            "unanswerable": self.unanswerable,
            "problems": self.problems,
            "vocabulary": self.vocabulary,
            "settings": {**vars(self.settings), "k_post": self.vocabulary["k_post"]},
        }


def vocabulary_facts(vocabulary: Vocabulary, settings: Settings) -> dict[str, Any]:
    """Return which words were used, by which backbone, and what they were learnt from."""
    learnt_from = vocabulary.report.get("data", {}).get("about") or "not stated"
    return {
        "name": vocabulary.name,
        "fingerprint": vocabulary.fingerprint,
        "backbone": vocabulary.backbone_name,
        "words": vocabulary.n_words,
        "k": vocabulary.sae.k,
        "k_post": settings.k_post or vocabulary.k_post,
        "learnt_from": learnt_from,
    }
