"""What a query rules out, how much of the query an image covers, and why nothing matched.

In: required and excluded words, what a collection selects by folder, date and size, a minimum
coverage. Out: a `RowFilter`, which each engine applies in its own way. Filters leave the statistics
unchanged: scores are those of an unfiltered search.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bm25v.display import count, display_path, word_label
from bm25v.errors import ImageError
from bm25v.index.bm25 import Statistics
from bm25v.search.contract import SearchEngine, View
from bm25v.search.query import Query, ReadImage, StoredImage, list_images
from bm25v.store.local.file_state import has_size_and_time, hash_image, read_file_state
from bm25v.vocabulary import Encoding

if TYPE_CHECKING:
    from bm25v.search.encode import EncodedQuery

_ROUNDING = 1e-9  # of a sum of shares

Names = Mapping[int, str]


@dataclass(frozen=True, eq=False)
class RowFilter:
    """Which images a query rules out, whatever their scores."""

    must: tuple[int, ...] = ()  # words
    without: tuple[int, ...] = ()
    selected: Any = None  # by folder, date and size, as the engine has it: rows; None: all images
    own: tuple[Any, ...] = ()  # the query's own images and their copies, as the engine has them

    def __bool__(self) -> bool:
        return bool(self.must or self.without or self.own) or self.selected is not None


def list_paths_of(query: Query) -> list[str]:
    if query.include_query:
        return []
    images = (image for image in list_images(query) if not isinstance(image, Encoding))
    return [os.fspath(image) for image in images if isinstance(image, str | os.PathLike)]


def find_contents(query: Query, engine: SearchEngine) -> set[bytes]:
    if query.include_query:
        return set()
    contents = {_find_content(image, engine) for image in list_images(query)}
    return {content for content in contents if content is not None}


def covers_enough(coverage: NDArray[np.float64], min_coverage: float) -> NDArray[np.bool_]:
    """Return which coverages reach a minimum, whatever rounding did to their sums."""
    return coverage >= min_coverage - _ROUNDING


def explain_no_match(encoded: "EncodedQuery", view: View, names: Names) -> str:
    """Return the reason why a search has no hits."""
    words, row_filter = encoded.positive_words, encoded.row_filter
    if view.statistics.n == 0:
        return "the gallery has no images"
    if encoded.offset:
        return f"there are no more hits after the first {encoded.offset:,}"
    words_condition = _describe_words(row_filter, names)
    condition = f" {encoded.selected_by}" if encoded.selected_by else ""
    condition += f" that {words_condition}" if words_condition else ""
    if not view.count_images(row_filter):
        if view.count_images(replace(row_filter, own=())):
            return f"there is no other image{condition} than those of the query"
        return _explain_filters(row_filter, condition, view.full_statistics, names)
    if not len(words.words):
        return "the query has no words: the image has none, or all are muted"
    best = view.find_best_coverage(encoded)
    if best.share <= 0:
        return f"0 of {count(len(words.words), 'word')} shared with any image{condition}"
    if best.share < encoded.min_coverage:
        closest = f"the best has {best.share:.2f}: {display_path(best.path)}"
        return f"no image{condition} reaches a coverage of {encoded.min_coverage:g} ({closest})"
    return "in every image, the words that count against it outweigh those that count for it"


def _find_content(image: ReadImage, engine: SearchEngine) -> bytes | None:
    if isinstance(image, bytes | np.ndarray):
        return hash_image(image)
    if isinstance(image, Encoding):
        return None
    record = engine.find_record(os.fspath(image))
    if record is not None and isinstance(image, StoredImage):
        return record.content
    if record is not None and has_size_and_time(record.path, record.size, record.mtime_ns):
        return record.content
    with suppress(ImageError):  # whoever needs the pixels reports it
        return read_file_state(os.fspath(image)).content
    return None if record is None else record.content


def _explain_filters(
    row_filter: RowFilter, condition: str, statistics: Statistics, names: Names
) -> str:
    missing = [word for word in row_filter.must if statistics.df_v[word] == 0]
    if missing:
        return f"no image has {_list_words(missing, names)}"
    if row_filter.selected is not None:
        return f"no image{condition}"
    if not row_filter.must:
        return f"every image has {_list_words(row_filter.without, names, 'or')}"
    return f"no image {_describe_words(row_filter, names)}"


def _describe_words(row_filter: RowFilter, names: Names) -> str:
    """Return which words images must have and not have."""
    required = f"has {_list_words(row_filter.must, names)}" if row_filter.must else ""
    excluded = _list_words(row_filter.without, names, "or")
    if required and excluded:
        return f"{required} but not {excluded}"
    return required or (f"does not have {excluded}" if excluded else "")


def _list_words(words: Sequence[int], names: Names, conjunction: str = "and") -> str:
    """Return words as a list.

    >>> _list_words((3, 4, 7), {4: "striped ear"})
    'word 3, striped ear and word 7'
    """
    labels = [word_label(word, names.get(word)) for word in words]
    return f" {conjunction} ".join(filter(None, (", ".join(labels[:-1]), *labels[-1:])))
