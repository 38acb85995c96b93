"""Pictures that are there more than once: the same file again, or nearly the same picture.

Groups are stars: each picture is the same or nearly the same as the first of its group. So a row
of pictures, each a little different from the one before, does not end up in one large group.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from bm25v.gallery.catalog import Catalog, ImageRecord
from bm25v.gallery.likeness import Likeness, Pair, Progress, near_pairs
from bm25v.gallery.snapshot import Snapshot
from bm25v.gallery.stars import stars

_SAME = Likeness(1.0, 1.0, 1.0)


class Duplicate(NamedTuple):
    """A picture of a group."""

    path: str
    size: int  # of the file, in bytes
    is_copy: bool  # it has the content of one that is listed before it
    likeness: Likeness  # to the first of the group


@dataclass(frozen=True)
class Group:
    """Pictures of which one would do."""

    pictures: tuple[Duplicate, ...]

    @property
    def kind(self) -> str:
        """Return "exact" if all have the same content, else "near"."""
        return "exact" if all(one.is_copy for one in self.pictures[1:]) else "near"

    def to_dict(self) -> dict[str, Any]:
        """Return the group as plain values."""
        pictures = [
            {"path": one.path, "size": one.size, "copy": one.is_copy, **one.likeness._asdict()}
            for one in self.pictures
        ]
        return {"kind": self.kind, "pictures": pictures}


Members = list[tuple[int, Likeness]]  # rows, the first of the group first


def find(
    snapshot: Snapshot, catalog: Catalog, *, near: bool, progress: Progress
) -> list[Group] | None:
    """Return groups of the same and, with `near`, nearly the same pictures, by their first rows.

    None if rows have new numbers by now.
    """
    with catalog.reading():
        if catalog.state().generation != snapshot.state.generation:
            return None
        entries = {entry.row: entry for entry in catalog.entries()}
    rows = snapshot.rows.tolist()
    if near:
        found = _near(snapshot, {row: entries[row] for row in rows}, progress)
    else:
        copies = _gathered((entries[row].content, row) for row in rows)
        found = [[(row, _SAME) for row in same] for same in copies if len(same) > 1]
    return [_group(members, entries) for members in sorted(found, key=lambda one: one[0][0])]


def _near(
    snapshot: Snapshot, entries: Mapping[int, ImageRecord], progress: Progress
) -> list[Members]:
    # Rows that are equal to the last bit are searched for and looked at once.
    equal = _gathered((_digest(snapshot, row), row) for row in entries)
    equal_to = {same[0]: same for same in equal}
    pairs = near_pairs(snapshot, {row: entries[row].path for row in equal_to}, progress)
    found: list[Members] = []
    for first, *others in stars(_both_ways(pairs)):
        members = [(row, _SAME) for row in equal_to.pop(first)]
        for other in others:
            likeness = pairs[min(first, other), max(first, other)]
            members += [(row, likeness) for row in equal_to.pop(other)]
        found.append(members)
    found += [[(row, _SAME) for row in same] for same in equal_to.values() if len(same) > 1]
    return found


def _both_ways(pairs: Mapping[Pair, Likeness]) -> dict[int, dict[int, float]]:
    near: defaultdict[int, dict[int, float]] = defaultdict(dict)
    for (low, high), likeness in pairs.items():
        near[low][high] = near[high][low] = likeness.cosine
    return dict(near)


def _digest(snapshot: Snapshot, row: int) -> bytes:
    digest = hashlib.blake2b(snapshot.bags[row].tobytes(), digest_size=16)
    digest.update(snapshot.dense_ne[row].tobytes())
    return digest.digest()


def _gathered(keyed_rows: Iterable[tuple[bytes, int]]) -> list[list[int]]:
    rows_of: defaultdict[bytes, list[int]] = defaultdict(list)
    for key, row in keyed_rows:
        rows_of[key].append(row)
    return list(rows_of.values())


def _group(members: Members, entries: Mapping[int, ImageRecord]) -> Group:
    pictures, contents = [], set()
    for row, likeness in members:
        entry = entries[row]
        pictures.append(Duplicate(entry.path, entry.size, entry.content in contents, likeness))
        contents.add(entry.content)
    return Group(tuple(pictures))
