"""A gallery in, groups of the same and nearly the same images out.

`similarity` compares two images by words, vectors and layout; `groups` makes groups of the similar
pairs. How well that works: docs/explanation/duplicates.md. Not this package's job: deleting
anything.
"""

from bm25v.duplicates.groups import Duplicate, DuplicateGroup, find_duplicates

__all__ = ["Duplicate", "DuplicateGroup", "find_duplicates"]
