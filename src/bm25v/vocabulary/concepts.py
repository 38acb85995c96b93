"""What a text can name: concepts, each with names, wider concepts and a direction.

A concept is one direction and one bias over the dense vector of an image: their sum is the log-odds
that the image shows it. Several concepts may share a direction: "penguin" and "king penguin" do, if
the classifier that taught them knows no other penguin. The files of concepts are in a vocabulary's
folder, which anybody may have written.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from bm25v.display import first_line
from bm25v.errors import VocabularyError
from bm25v.files import make_folder, read_limited, replace_file
from bm25v.schema import TABLE as JSON_OBJECT
from bm25v.schema import SchemaError, check_values, listing, parse_object, show_value, text, whole

FORMAT = 1
TABLE = "concepts.json"
WEIGHTS = "concepts.safetensors"

_MAX_BYTES = 16_000_000
_MAX_CONCEPTS = 100_000
_MAX_NAME = 100
_REMEDY = "restore the folder, or delete both files of concepts to search without them"


class Concept(NamedTuple):
    """What a text can name."""

    id: str  # of its source, such as "n02121620" of WordNet
    names: tuple[str, ...]  # the first one is shown
    parents: tuple[int, ...]  # positions of the next wider concepts
    column: int  # its direction


@dataclass(frozen=True)
class ConceptTable:
    """The concepts, and how they are related; the first `n_classes` are those of the teacher.

    >>> names = ("cat", "tabby", "Persian cat")
    >>> table = ConceptTable(2, (
    ...     Concept("1", ("tabby",), (2,), 0), Concept("2", ("Persian cat",), (2,), 1),
    ...     Concept("3", ("cat",), (), 2)))
    >>> table.classes_below(2), table.is_within(0, 2), table.is_within(2, 0)
    ((0, 1), True, False)
    """

    n_classes: int
    concepts: tuple[Concept, ...]

    @property
    def n_columns(self) -> int:
        return 1 + max((concept.column for concept in self.concepts), default=-1)

    def ancestors(self, concept: int) -> frozenset[int]:
        """Return all wider concepts."""
        return self._ancestors[concept]

    def is_within(self, concept: int, other: int) -> bool:
        """Return whether a concept is another one, or a kind of it."""
        return concept == other or other in self._ancestors[concept]

    def classes_below(self, concept: int) -> tuple[int, ...]:
        """Return the classes that are a concept, or a kind of it, ascending."""
        return self._classes[concept]

    @cached_property
    def _ancestors(self) -> tuple[frozenset[int], ...]:
        """Raise `CycleError` if a concept is wider than itself."""
        known: dict[int, frozenset[int]] = {}
        parents = {i: concept.parents for i, concept in enumerate(self.concepts)}
        for i in TopologicalSorter(parents).static_order():
            known[i] = frozenset(parents[i]).union(*(known[p] for p in parents[i]))
        return tuple(known[i] for i in range(len(self.concepts)))

    @cached_property
    def _classes(self) -> tuple[tuple[int, ...], ...]:
        below: list[list[int]] = [[] for _ in self.concepts]
        for position in range(self.n_classes):
            for concept in (position, *self._ancestors[position]):
                below[concept].append(position)
        return tuple(map(tuple, below))


@dataclass(frozen=True, eq=False)
class Concepts:
    """The concepts of a vocabulary with their directions."""

    table: ConceptTable
    weights_ce: NDArray[np.float32]
    biases_c: NDArray[np.float32]
    sources: Mapping[str, str]  # what the names and the directions come from, with licences

    def __repr__(self) -> str:
        return f"<Concepts: {len(self.table.concepts):,}, {self.table.n_columns:,} directions>"


_NAME = text(
    lambda value: 0 < len(value.strip()) <= _MAX_NAME and value.isprintable(),
    f"a text of 1 to {_MAX_NAME} printable characters",
)
_SCHEMA = {
    "backbone": _NAME,
    "classes": whole(0, _MAX_CONCEPTS),
    "sources": JSON_OBJECT,
    "concepts": listing(JSON_OBJECT),
}


def read_concepts(folder: Path, *, backbone_fingerprint: str) -> Concepts | None:
    """Return the concepts in a vocabulary's folder; None if it has none."""
    path = folder / TABLE
    if not path.is_file() and not (folder / WEIGHTS).is_file():
        return None
    try:
        content = read_limited(path, _MAX_BYTES)
    except OSError as error:
        raise VocabularyError(f"{path} cannot be read ({error.strerror}): {_REMEDY}") from error
    except ValueError as error:
        _refuse(path, str(error))
    with _report_problems(path):
        table, values = _parse_table(content)
        backbone = values["backbone"]
        if backbone != backbone_fingerprint:
            raise SchemaError(
                f"it is for another backbone ({show_value(backbone)}, not {backbone_fingerprint})"
            )
    weights_ce, biases_c = _read_weights(folder, table.n_columns)
    return Concepts(table, weights_ce, biases_c, values["sources"])


def write_concepts(folder: Path, concepts: Concepts, *, backbone_fingerprint: str) -> None:
    """Write the concepts into a vocabulary's folder; weights are stored as float16."""
    from safetensors.numpy import save

    content = _format_table(concepts, backbone_fingerprint)
    with _report_problems(folder / TABLE):
        _parse_table(content)
    halves = {
        "weights": np.ascontiguousarray(concepts.weights_ce, np.float16),
        "biases": concepts.biases_c.astype(np.float16),
    }
    make_folder(folder)
    (folder / TABLE).unlink(missing_ok=True)
    replace_file(folder / WEIGHTS, save(halves))
    replace_file(folder / TABLE, content)


def _parse_table(content: bytes) -> tuple[ConceptTable, dict[str, Any]]:
    values = parse_object(content)
    check_values(values, {"format": whole(1)})
    if values["format"] > FORMAT:
        raise VocabularyError(
            f"{TABLE} has format {show_value(values['format'])}, this bm25v reads up to {FORMAT}: "
            "upgrade bm25v"
        )
    check_values(values, _SCHEMA)
    if not all(isinstance(source, str) for source in values["sources"].values()):
        raise SchemaError("sources has a value that is not a text")
    entries, n_classes = values["concepts"], values["classes"]
    if not n_classes <= len(entries) <= _MAX_CONCEPTS:
        raise SchemaError(f"it has {len(entries):,} concepts and {n_classes:,} classes")
    rules = {
        "id": _NAME,
        "names": listing(_NAME),
        "parents": listing(whole(0, len(entries) - 1)),
        "column": whole(0, _MAX_CONCEPTS),
    }
    concepts = []
    for position, entry in enumerate(entries):
        check_values(entry, rules, within=f"concepts, entry {position}: ")
        names, parents = tuple(entry["names"]), tuple(entry["parents"])
        if not names:
            raise SchemaError(f"concepts, entry {position}: names is empty")
        concepts.append(Concept(entry["id"], names, parents, entry["column"]))
    table = ConceptTable(n_classes, tuple(concepts))
    if len({concept.column for concept in concepts}) != table.n_columns:
        raise SchemaError("columns are not numbered without gaps")
    try:
        for position in range(len(concepts)):
            table.ancestors(position)
    except CycleError as error:
        position = error.args[1][0]
        raise SchemaError(f"concepts, entry {position}: its parents lead back to itself") from error
    return table, values


def _read_weights(folder: Path, n_columns: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    from safetensors import SafetensorError, safe_open

    path = folder / WEIGHTS
    if not path.is_file():
        _refuse(path, "it is missing, or not a file")
    try:
        with safe_open(path, framework="numpy") as file:
            names = set(file.keys())
            if names != {"weights", "biases"}:
                _refuse(path, f"it has {show_value(sorted(names))}, not weights and biases")
            for name in ("weights", "biases"):
                if file.get_slice(name).get_dtype() not in ("F16", "F32"):
                    _refuse(path, f"{name} are not float16")
            weights, biases = (file.get_tensor(n) for n in ("weights", "biases"))
    except (OSError, MemoryError, SafetensorError) as error:
        _refuse(path, f"it cannot be read ({first_line(str(error))[:200]!r})")
    if weights.ndim != 2 or weights.shape[0] != n_columns or biases.shape != (n_columns,):
        shapes = f"{weights.shape} and {biases.shape}"
        _refuse(path, f"its shapes are {shapes}, and {TABLE} has {n_columns:,} columns")
    if not all(np.all(np.abs(array) <= 1e4) for array in (weights, biases)):
        _refuse(path, "it has values that are not finite, or too large")
    return weights.astype(np.float32), biases.astype(np.float32)


def _format_table(concepts: Concepts, backbone_fingerprint: str) -> bytes:
    """Return the table as JSON, one concept a line."""
    head = {
        "format": FORMAT,
        "backbone": backbone_fingerprint,
        "classes": concepts.table.n_classes,
        "sources": dict(concepts.sources),
    }
    start = json.dumps(head, indent=2, ensure_ascii=False).removesuffix("\n}")
    entries = (json.dumps(c._asdict(), ensure_ascii=False) for c in concepts.table.concepts)
    lines = ",\n".join(f"    {entry}" for entry in entries)
    return f'{start},\n  "concepts": [\n{lines}\n  ]\n}}\n'.encode()


@contextmanager
def _report_problems(path: Path) -> Iterator[None]:
    try:
        yield
    except SchemaError as error:
        _refuse(path, str(error))


def _refuse(path: Path, problem: str) -> NoReturn:
    raise VocabularyError(f"{path}: {problem}: {_REMEDY}")
