"""Similar pairs in, groups out: each image is similar to the first one of its group.

So a series of images, each a little different from the one before, does not become one large group.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from bm25v.duplicates.similarity import Pair, Similarity, find_near_pairs
from bm25v.gallery.records import ImageRecord
from bm25v.gallery.selection import to_gallery_image
from bm25v.gallery.snapshot import Snapshot
from bm25v.gallery.store import GalleryStore
from bm25v.progress import Progress, no_progress

_IDENTICAL = Similarity(1.0, 1.0, 1.0, 1.0, 1.0)

Members = list[tuple[int, Similarity]]  # rows, the first of the group first
Partners = Mapping[int, Mapping[int, float]]  # each row's similar rows and their cosines


class Duplicate(NamedTuple):
    """An image of a group."""

    path: str
    size: int  # of the file, in bytes
    width: int | None  # in pixels; None if an older format has not stored it
    height: int | None
    date: datetime  # when it was taken, by its metadata, else the time of its file
    is_copy: bool  # an image listed before it has the same content
    similarity: Similarity  # to the first image of the group


@dataclass(frozen=True)
class DuplicateGroup:
    """Images that are the same, or nearly the same."""

    images: tuple[Duplicate, ...]

    def __repr__(self) -> str:
        return f"<DuplicateGroup: {len(self.images)} images ({self.kind}), {self.images[0].path} …>"

    @property
    def kind(self) -> str:
        """Return "exact" if all have the same content, else "near"."""
        return "exact" if all(image.is_copy for image in self.images[1:]) else "near"

    def to_dict(self) -> dict[str, Any]:
        """Return the group as plain values."""
        images = [
            {
                "path": image.path,
                "size": image.size,
                "width": image.width,
                "height": image.height,
                "date": image.date.isoformat(),
                "copy": image.is_copy,
                **image.similarity._asdict(),
            }
            for image in self.images
        ]
        return {"kind": self.kind, "pictures": images}


def find_duplicates(
    store: GalleryStore, *, near: bool = True, progress: Progress = no_progress
) -> list[DuplicateGroup]:
    """Return groups of the same and, with `near`, nearly the same images, by their first rows."""
    return store.read(lambda snapshot: _find_groups(store, snapshot, near, progress))


def _find_groups(
    store: GalleryStore, snapshot: Snapshot, near: bool, progress: Progress
) -> list[DuplicateGroup]:
    with store.catalog.transaction():
        store.catalog.check_generation(snapshot.state.generation)
        records = {record.row: record for record in store.catalog.records()}
    rows = snapshot.rows.tolist()
    if near:
        groups = _find_near(snapshot, {row: records[row] for row in rows}, progress)
    else:
        copies = _group_by_key((records[row].content, row) for row in rows)
        groups = [[(row, _IDENTICAL) for row in same] for same in copies if len(same) > 1]
    return [_to_group(members, records) for members in sorted(groups, key=lambda m: m[0][0])]


def _find_near(
    snapshot: Snapshot, records: Mapping[int, ImageRecord], progress: Progress
) -> list[Members]:
    # Rows with the same bits are searched for and compared once.
    equal = {rows[0]: rows for rows in _group_by_key((_digest(snapshot, r), r) for r in records)}
    pairs = find_near_pairs(snapshot, {row: records[row].path for row in equal}, progress)
    groups: list[Members] = []
    for first, *others in group_around_centres(_partners(pairs)):
        members = [(row, _IDENTICAL) for row in equal.pop(first)]
        for other in others:
            similarity = pairs[min(first, other), max(first, other)]
            members += [(row, similarity) for row in equal.pop(other)]
        groups.append(members)
    groups += [[(row, _IDENTICAL) for row in rows] for rows in equal.values() if len(rows) > 1]
    return groups


def group_around_centres(partners: Partners) -> list[list[int]]:
    """Put each row that has a partner into exactly one group, around a row similar to all others.

    The row with most partners comes first and takes all that have no group yet. A row that is left
    over takes its most similar partner out of another group, or joins it there if that group has
    only two. Within a group, rows follow by similarity to the first.

    >>> chain = {1: {2: 0.9}, 2: {1: 0.9, 3: 0.9}, 3: {2: 0.9, 4: 0.9}, 4: {3: 0.9}}
    >>> group_around_centres(chain)
    [[2, 1], [3, 4]]
    """
    order = sorted(partners, key=lambda r: (-len(partners[r]), -sum(partners[r].values()), r))
    centre_of: dict[int, int] = {}
    for row in order:
        free = [other for other in partners[row] if other not in centre_of]
        if row not in centre_of and free:
            centre_of |= dict.fromkeys([row, *free], row)
    for row in order:
        if row not in centre_of and partners[row]:
            partner = min(partners[row], key=lambda other: (-partners[row][other], other))
            group = [r for r, centre in centre_of.items() if centre == centre_of[partner]]
            moved = group if len(group) == 2 else [partner]
            centre_of |= dict.fromkeys([*moved, row], partner)
    members: dict[int, list[int]] = {}
    for row, centre in centre_of.items():
        members.setdefault(centre, []).append(row)
    return [
        [centre, *sorted(set(group) - {centre}, key=lambda r: (-partners[centre][r], r))]
        for centre, group in sorted(members.items())
    ]


def _partners(pairs: Mapping[Pair, Similarity]) -> dict[int, dict[int, float]]:
    partners: defaultdict[int, dict[int, float]] = defaultdict(dict)
    for (low, high), similarity in pairs.items():
        partners[low][high] = partners[high][low] = similarity.cosine
    return dict(partners)


def _digest(snapshot: Snapshot, row: int) -> bytes:
    digest = hashlib.blake2b(snapshot.bags[row].tobytes(), digest_size=16)
    digest.update(snapshot.dense_ne[row].tobytes())
    return digest.digest()


def _group_by_key(keyed_rows: Iterable[tuple[bytes, int]]) -> list[list[int]]:
    rows_by_key: defaultdict[bytes, list[int]] = defaultdict(list)
    for key, row in keyed_rows:
        rows_by_key[key].append(row)
    return list(rows_by_key.values())


def _to_group(members: Members, records: Mapping[int, ImageRecord]) -> DuplicateGroup:
    images, contents = [], set()
    for row, similarity in members:
        record = records[row]
        is_copy = record.content in contents
        facts = to_gallery_image(record)
        size = (facts.file_size, facts.width, facts.height)
        images.append(Duplicate(record.path, *size, facts.date, is_copy, similarity))
        contents.add(record.content)
    return DuplicateGroup(tuple(images))
