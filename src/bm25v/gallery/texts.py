"""What a text asks for: a vector, by the backbone's text tower, and words, which it has none of.

Ordered by the cosine of that vector, a text gets the words that the pictures nearest to it share
more than all pictures do: they explain the hits, and do not rank them. In the other orders it gets
the words that people, or the vocabulary, call so, and these find; if none is called so, and there
is a tower, those whose name is nearest to it.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from bm25v.backbones.protocol import Floats
from bm25v.backbones.text import TextTower, has_text_tower
from bm25v.errors import WrongUse
from bm25v.gallery import searching
from bm25v.gallery.searching import Mode, Settings
from bm25v.gallery.snapshot import Snapshot
from bm25v.gallery.usage import telling
from bm25v.gallery.wishes import Example
from bm25v.index.bm25 import WeightedWords
from bm25v.search import EncodedQuery
from bm25v.vocabulary import names as tables
from bm25v.vocabulary.bag import Bag

NEAREST = 10  # pictures whose words explain a text

_LISTED = 8  # names in a note


class Texts:
    """Makes examples of texts for one gallery; `tower` is called if there is a need for it."""

    def __init__(
        self,
        snapshot: Snapshot,
        names: Mapping[int, str],
        tower: Callable[[], TextTower | None],
        backbone: str,
    ) -> None:
        self._snapshot, self._names = snapshot, names
        self._tower, self._backbone = tower, backbone

    def example(
        self, text: str, mode: Mode, must: tuple[int, ...] = (), without: tuple[int, ...] = ()
    ) -> Example:
        """Return what a text stands for in an order of hits."""
        if not text.strip():
            raise WrongUse("an empty text: write what to look for")
        tower = None if mode == "sparse" else self._tower()
        if tower is None:
            return self._by_name(text, None)
        (dense_e,) = tower.embed([text])
        if mode != "dense":
            return self._by_name(text, dense_e)
        nearest = self._nearest(dense_e, must, without)
        note = (
            f"a text has no words: those shown are what the {len(nearest)} pictures nearest to it "
            "share more than others do"
        )
        k_post = self._snapshot.bags.dtype["words"].shape[0]
        shared = telling(self._snapshot.bags[nearest], self._snapshot.searcher.statistics)[:k_post]
        return Example(_bag([one.word for one in shared]), dense_e, note=note)

    def _nearest(
        self, dense_e: Floats, must: tuple[int, ...], without: tuple[int, ...]
    ) -> NDArray[np.int64]:
        """Return the nearest pictures; of few, not more than half, or they would be all."""
        k = min(NEAREST, max(1, self._snapshot.searcher.statistics.n // 2))
        wish = EncodedQuery(
            WeightedWords(*np.empty((3, 0))), must=must, without=without, dense_e=dense_e
        )
        return searching.search(self._snapshot, wish, Settings(k=k, mode="dense")).rows

    def _by_name(self, text: str, dense_e: Floats | None) -> Example:
        words = tables.find_named_words(text, self._names)
        names = list(dict.fromkeys(self._names[word] for word in words))
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        note = f"words called so: {', '.join(names[:_LISTED])}{more}"
        if not words:
            words, note = self._nearly(text)
        reason = "words that are called so have no dense vector"
        return Example(_bag(words), dense_e, no_dense=reason, note=note)

    def _nearly(self, text: str) -> tuple[list[int], str]:
        """Return the words of the name that means most the same, by the tower."""
        df_v = self._snapshot.searcher.statistics.df_v
        names = list(dict.fromkeys(name for word, name in self._names.items() if df_v[word]))
        tower = self._tower() if names else None
        if tower is None:
            raise WrongUse(f"no word is called {text!r} or a part of it{self._remedy()}")
        (text_e,), names_te = tower.embed([text]), tower.embed(names)
        cosines_t = names_te @ text_e
        best = int(cosines_t.argmax())
        words = [word for word, name in self._names.items() if name == names[best]]
        note = f"no word is called {text!r}; the nearest name is {names[best]!r}"
        return words, f"{note} (cosine {cosines_t[best]:.2f})"

    def _remedy(self) -> str:
        name = "name words with `bm25v words name`"
        if has_text_tower(self._backbone):
            return f": {name}, or take mode 'dense', which searches by the text's vector"
        return (
            f", and the backbone {self._backbone} has no text tower: {name}, or take a vocabulary "
            "made with a SigLIP or CLIP model"
        )


def _bag(words: list[int]) -> Bag:
    """Return words that are asked for and are nowhere in a picture."""
    return Bag(np.array(sorted(words), dtype=np.int32), np.zeros(len(words), dtype=np.uint16))
