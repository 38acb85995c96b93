"""Makes the table of concepts from WordNet's noun files and a list of classes.

The concepts are the classes and what WordNet calls wider: "cat" above "tabby". Wider concepts that
nobody can see ("instrumentality") are left out. Names are WordNet's synonyms, without those that
usually mean something else: "toy" is also a synonym of "toy dog". The database files of WordNet 3.0
are needed (Debian: wordnet-base).
"""

from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bm25v.errors import InvalidOption
from bm25v.vocabulary.concepts import Concept, ConceptTable

FOLDER = Path("/usr/share/wordnet")
LICENCE = (
    "WordNet 3.0 Copyright 2006 by Princeton University. All rights reserved. Permission to use, "
    "copy, modify and distribute this software and database and its documentation for any purpose "
    "and without fee or royalty is hereby granted, provided that you agree to comply with the "
    "copyright notice and statements, including the disclaimer, and that the same appear on ALL "
    "copies of the software, database and documentation, including modifications that you make "
    'for internal use or for distribution. THIS SOFTWARE AND DATABASE IS PROVIDED "AS IS" AND '
    "PRINCETON UNIVERSITY MAKES NO REPRESENTATIONS OR WARRANTIES, EXPRESS OR IMPLIED. The name of "
    "Princeton University or Princeton may not be used in advertising or publicity pertaining to "
    "distribution of the software and/or database. Title to copyright in this software, database "
    "and any associated documentation shall at all times remain with Princeton University and "
    "LICENSEE agrees to preserve same. Licence: https://wordnet.princeton.edu/license-and-"
    "commercial-use"
)

# WordNet's lexicographer files, by number: what a concept may be, and what else can be seen.
_KINDS = {"05", "06", "10", "13", "17", "18", "20"}  # animals, artefacts, signs, food, nature …
_VISIBLE = _KINDS | {"03", "08"}  # also the roots of the hierarchy, and bodies
_ROOTS = {"n00015388", "n00021265", "n00007846", "n00017222"}  # animal, food, person, plant
_TOO_GENERAL = {
    "area", "associate", "attachment", "barrier", "circle", "commodity", "connection",
    "consumer goods", "contestant", "control", "conveyance", "covering", "device", "durables",
    "equipment", "establishment", "geographic point", "implement", "instrumentality", "ligament",
    "means", "measure", "mechanical device", "mechanism", "medium", "movable barrier",
    "obstruction", "part", "participant", "peer", "piece", "plant organ", "plant part", "point",
    "reproductive structure", "restraint", "sign", "signal", "structural member", "structure",
    "support", "supporting structure", "system", "unit", "visual signal", "ware",
}  # fmt: skip

_MORE_NAMES = {  # everyday names that WordNet does not have, or counts with another meaning
    "n02084071": ("puppy", "doggy"),
    "n02121808": ("kitten", "kitty"),
    "n02402425": ("cow", "bull"),
    "n02834778": ("bike",),
    "n02992529": ("smartphone", "mobile"),
    "n03691459": ("speaker",),
    "n04118776": ("ruler",),
    "n04404412": ("TV", "television set"),
    "n03710193": ("letterbox",),
}


class Synset(NamedTuple):
    """A meaning: its names, its kind, and the ids of the next wider meanings."""

    names: tuple[str, ...]
    kind: str  # the number of a lexicographer file
    hypernyms: tuple[str, ...]


class Senses(NamedTuple):
    """The meanings of a name, the most frequent first; some are counted in texts, at least once."""

    ordered: Sequence[str]
    n_counted: int


class WordNet(NamedTuple):
    synsets: Mapping[str, Synset]
    senses: Mapping[str, Senses]

    @classmethod
    def read(cls, folder: Path = FOLDER) -> "WordNet":
        try:
            data, index = (
                [
                    line
                    for line in (folder / name).read_text(encoding="ascii").split("\n")
                    if line[:1] > " "
                ]
                for name in ("data.noun", "index.noun")
            )
        except OSError as error:
            raise InvalidOption(
                f"{folder} has no WordNet ({error.strerror}: {error.filename}): give the folder of "
                "data.noun and index.noun; Debian's package is wordnet-base"
            ) from error
        return cls(
            dict(_parse_synset(line) for line in data), dict(_parse_senses(line) for line in index)
        )

    def ancestors(self, synset: str) -> dict[str, None]:
        """Return all wider meanings of one, the nearest first."""
        wider: dict[str, None] = {}
        level = [synset]
        while level:
            level = [h for s in level for h in self.synsets[s].hypernyms if h not in wider]
            wider.update(dict.fromkeys(level))
        return wider


def make_table(wordnet: WordNet, class_ids: Sequence[str]) -> ConceptTable:
    """Return the classes, in their order, and then their wider concepts, the narrowest first."""
    below: dict[str, set[str]] = {class_id: {class_id} for class_id in class_ids}
    for class_id in class_ids:
        for ancestor in wordnet.ancestors(class_id):
            below.setdefault(ancestor, set()).add(class_id)
    wider = [synset for synset in below if synset not in class_ids and _is_kept(wordnet, synset)]
    known = {*class_ids, *wider}
    names = {s: _list_names(wordnet, s, is_class=s in class_ids, known=known) for s in known}
    wider = sorted((s for s in wider if names[s]), key=lambda s: (len(below[s]), s))
    ids = [*class_ids, *wider]
    positions = {synset: position for position, synset in enumerate(ids)}
    columns: dict[frozenset[str], int] = {}
    for synset in ids:
        columns.setdefault(frozenset(below[synset]), len(columns))
    concepts = (
        Concept(
            synset,
            names[synset],
            tuple(sorted(positions[p] for p in _find_parents(wordnet, synset, positions))),
            columns[frozenset(below[synset])],
        )
        for synset in ids
    )
    return ConceptTable(len(class_ids), tuple(concepts))


def _is_kept(wordnet: WordNet, synset: str) -> bool:
    entry = wordnet.synsets[synset]
    return synset in _ROOTS or (entry.kind in _KINDS and entry.names[0] not in _TOO_GENERAL)


def _list_names(
    wordnet: WordNet, synset: str, *, is_class: bool, known: Container[str]
) -> tuple[str, ...]:
    """Return the names of a concept, without those that rather mean something else.

    The first name of a class always counts: "crane" is a bird and a machine. That of a wider
    concept counts if nothing else that can be seen has it more often. Other names count if they
    have several words, or if no meaning comes first that WordNet has counted, or that is `known`.
    """
    first, *others = wordnet.synsets[synset].names

    def is_most_visible(name: str) -> bool:
        visible = (s for s in wordnet.senses[_key(name)].ordered if s in known or is_visible(s))
        return next(visible) == synset

    def is_visible(sense: str) -> bool:
        return wordnet.synsets[sense].kind in _VISIBLE

    def is_usual(name: str) -> bool:
        senses = wordnet.senses[_key(name)]
        earlier = senses.ordered[: senses.ordered.index(synset)]
        n_counted = senses.n_counted
        return not any(i < n_counted or sense in known for i, sense in enumerate(earlier))

    is_named = is_class or " " in first or synset in _ROOTS or is_most_visible(first)
    usual = (name for name in others if " " in name or is_usual(name))
    return (*([first] if is_named else []), *usual, *_MORE_NAMES.get(synset, ()))


def _find_parents(wordnet: WordNet, synset: str, kept: Container[str]) -> set[str]:
    """Return the next wider meanings that are kept."""
    parents: set[str] = set()
    level = list(wordnet.synsets[synset].hypernyms)
    while level:
        parents |= {s for s in level if s in kept}
        level = [h for s in level if s not in kept for h in wordnet.synsets[s].hypernyms]
    return parents


def _parse_synset(line: str) -> tuple[str, Synset]:
    """Parse a line such as `02121620 05 n 02 cat 0 true_cat 0 011 @ 02120997 n 0000 … | gloss`."""
    fields = line.partition(" | ")[0].split()
    n_names = int(fields[3], 16)
    names = tuple(name.replace("_", " ") for name in fields[4 : 4 + 2 * n_names : 2])
    pointers = fields[5 + 2 * n_names :]
    pairs = zip(pointers[::4], pointers[1::4], strict=False)
    hypernyms = tuple(f"n{offset}" for symbol, offset in pairs if symbol in ("@", "@i"))
    return f"n{fields[0]}", Synset(names, fields[1], hypernyms)


def _parse_senses(line: str) -> tuple[str, Senses]:
    """Parse a line such as `cat n 8 5 @ ~ … 8 1 02121620 10153414 …`."""
    fields = line.split()
    ordered = [f"n{offset}" for offset in fields[-int(fields[2]) :]]
    return fields[0], Senses(ordered, int(fields[-int(fields[2]) - 1]))


def _key(name: str) -> str:
    return name.lower().replace(" ", "_")
