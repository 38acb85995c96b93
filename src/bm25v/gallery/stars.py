"""Pairs in, groups out, without chaining: every member is paired with the first of its group."""

from collections.abc import Mapping

Near = Mapping[int, Mapping[int, float]]  # each one's partners and how alike they are, both ways


def stars(near: Near) -> list[list[int]]:
    """Put each one that has a partner into exactly one group; the rest follow in order of likeness.

    Who has most partners comes first and takes all that are free. One that is left over takes its
    closest partner out of another group, or joins it there if that group has but two.

    >>> chain = {1: {2: 0.9}, 2: {1: 0.9, 3: 0.9}, 3: {2: 0.9, 4: 0.9}, 4: {3: 0.9}}
    >>> stars(chain)
    [[2, 1], [3, 4]]
    """
    order = sorted(near, key=lambda one: (-len(near[one]), -sum(near[one].values()), one))
    first_of: dict[int, int] = {}
    for one in order:
        free = [other for other in near[one] if other not in first_of]
        if one not in first_of and free:
            first_of |= dict.fromkeys([one, *free], one)
    for one in order:
        if one not in first_of and near[one]:
            partner = min(near[one], key=lambda other: (-near[one][other], other))
            group = [other for other, first in first_of.items() if first == first_of[partner]]
            moved = group if len(group) == 2 else [partner]
            first_of |= dict.fromkeys([*moved, one], partner)
    members: dict[int, list[int]] = {}
    for one, first in first_of.items():
        members.setdefault(first, []).append(one)
    return [
        [first, *sorted(set(group) - {first}, key=lambda one: (-near[first][one], one))]
        for first, group in sorted(members.items())
    ]
