"""A text in, words and a dense vector out.

With a text tower and dense order, the text's vector ranks, and the words that the nearest images
share explain the hits. In the other modes the words whose names are in the text are searched for;
if there is none and there is a tower, those with the most similar name.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.backbones.protocol import Floats
from bm25v.backbones.text import has_text_tower
from bm25v.errors import WrongUse
from bm25v.gallery.snapshot import Snapshot
from bm25v.gallery.store import GalleryStore
from bm25v.index.bm25 import Statistics
from bm25v.index.searcher import top_positions
from bm25v.search.filters import RowFilter
from bm25v.search.query import Mode
from bm25v.search.ranking import cosines
from bm25v.vocabulary.names import find_named_words

NEAREST = 10  # images whose words explain a text

_LISTED = 8  # names in a note


class TextMeaning(NamedTuple):
    """What a text stands for in a gallery."""

    words: list[int]
    dense_e: Floats | None
    no_dense: str  # the reason, if there is no dense vector
    note: str  # for the user


class SharedWord(NamedTuple):
    """A word that some images have more often than all images do."""

    word: int
    together: int  # how many of these images have it
    lift: float  # how many times as often as all images


def interpret_text(
    text: str,
    mode: Mode,
    store: GalleryStore,
    snapshot: Snapshot,
    row_filter: RowFilter,
) -> TextMeaning:
    """Return the words and the vector of a text, for a mode of search."""
    tower = None if mode in ("sparse", "words") else store.text_tower
    if tower is None:
        return _find_by_name(text, None, store, snapshot)
    (dense_e,) = tower.embed([text])
    if mode != "dense":
        return _find_by_name(text, dense_e, store, snapshot)
    nearest = _nearest_rows(snapshot, dense_e, row_filter)
    k_post = snapshot.bags.dtype["words"].shape[0]
    bags = snapshot.bags[nearest]
    shared = find_shared_words(bags["words"], bags["tf"], snapshot.searcher.statistics)[:k_post]
    note = (
        f"a text has no visual words of its own: those shown are shared by the {len(nearest)} "
        "images nearest to it"
    )
    return TextMeaning([word.word for word in shared], dense_e, "", note)


def find_shared_words(
    words_nk: NDArray[np.integer], tf_nk: NDArray[np.uint16], statistics: Statistics
) -> list[SharedWord]:
    """Return the words that some bags have more often than all images do, best first.

    A rare word that occurs by chance has a large lift and means little. So words are ordered by
    images · ln(lift), and a word must be in at least two of the bags.
    """
    together_v = np.bincount(words_nk[tf_nk > 0], minlength=statistics.n_words)
    candidates = np.flatnonzero(together_v >= 2)
    together = together_v[candidates]
    lift = together * statistics.n / (len(words_nk) * statistics.df_v[candidates])
    order = np.lexsort((candidates, -together * np.log(lift)))
    return [
        SharedWord(int(candidates[i]), int(together[i]), float(lift[i]))
        for i in order
        if lift[i] > 1
    ]


def _nearest_rows(snapshot: Snapshot, dense_e: Floats, row_filter: RowFilter) -> NDArray[np.int64]:
    """Return the rows nearest to a vector: at most half of the gallery, or they would be all."""
    k = min(NEAREST, max(1, snapshot.searcher.statistics.n // 2))
    rows = np.flatnonzero(row_filter.flag_rows(snapshot)) if row_filter else snapshot.rows
    similarities = cosines(snapshot.dense_ne, dense_e, rows, compiled=snapshot.searcher.has_index)
    return rows[top_positions(rows, similarities, k)]


def _find_by_name(
    text: str, dense_e: Floats | None, store: GalleryStore, snapshot: Snapshot
) -> TextMeaning:
    word_names = store.word_names
    words = find_named_words(text, word_names)
    names = list(dict.fromkeys(word_names[word] for word in words))
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    note = f"searching for the named words: {', '.join(names[:_LISTED])}{more}"
    if not words:
        words, note = _find_similar_name(text, store, snapshot)
    return TextMeaning(words, dense_e, "named words have no dense vector", note)


def _find_similar_name(text: str, store: GalleryStore, snapshot: Snapshot) -> tuple[list[int], str]:
    """Return the words whose name is most similar to a text by the text tower, and a note."""
    df_v, word_names = snapshot.searcher.statistics.df_v, store.word_names
    names = list(dict.fromkeys(name for word, name in word_names.items() if df_v[word]))
    tower = store.text_tower if names else None
    if tower is None:
        raise WrongUse(f"no word name matches {text!r}{_remedy(store.vocabulary.backbone_name)}")
    (text_e,), names_te = tower.embed([text]), tower.embed(names)
    cosines_t = names_te @ text_e
    best = int(cosines_t.argmax())
    words = [word for word, name in word_names.items() if name == names[best]]
    note = f"no word is named {text!r}; the most similar name is {names[best]!r}"
    return words, f"{note} (cosine {cosines_t[best]:.2f})"


def _remedy(backbone: str) -> str:
    name_words = "name words with `bm25v words name`"
    if has_text_tower(backbone):
        return f": {name_words}, or use mode 'dense', which searches by the text's vector"
    return (
        f", and the backbone {backbone} has no text tower: {name_words}, or use a vocabulary "
        "made with a SigLIP or CLIP model"
    )
