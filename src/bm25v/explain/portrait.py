"""One word of a gallery, looked at: its pictures and where it is in them, its place, its company.

Only term frequencies are stored. Where a word is in a picture is found by encoding the file again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import WrongUse
from bm25v.explain.charts import Span, spans
from bm25v.gallery import Gallery
from bm25v.gallery.reading import Read, read_files
from bm25v.gallery.usage import Use, WordFacts, WordUses
from bm25v.sae.model import Codes
from bm25v.vocabulary import Vocabulary, names
from bm25v.vocabulary import bag as bags

TOP, MIDDLE, RANDOM = 12, 6, 6  # pictures shown
PLACED = 32  # random pictures that say where in a picture the word is
NEIGHBOURS = 8
LIFT = 1.1  # least of a companion: a word that is almost everywhere comes with all others

_KEPT = 2_000  # files whose words are kept for the next portraits

Grid = NDArray[np.float32]  # (rows, columns): how active a word is at each patch


class Sight(NamedTuple):
    """A picture that has a word, and where; `problem` says why that cannot be seen."""

    path: str
    tf: float
    grid: Grid | None
    problem: str | None = None


class Relative(NamedTuple):
    """A word beside another one: `value` is a lift over chance, or a cosine of directions."""

    facts: WordFacts
    value: float
    best: Sight


@dataclass(frozen=True)
class Portrait:
    """All that a word's page shows."""

    uses: WordUses
    top: tuple[Sight, ...]  # the pictures with most of it
    middle: tuple[Sight, ...]  # those around the median
    random: tuple[Sight, ...]
    companions: tuple[Relative, ...]  # words in the same pictures
    neighbours: tuple[Relative, ...]  # words whose directions are like its own
    place: Grid  # where in a picture it is, on average
    placed: int  # pictures that average is of

    @property
    def spread(self) -> list[Span]:
        """How many pictures have how much of it."""
        return spans([use.tf for use in self.uses.uses])

    def to_dict(self) -> dict[str, Any]:
        """Return what is known of the word as plain values."""
        facts, uses = self.uses.facts, self.uses
        shown = {"top": self.top, "middle": self.middle, "random": self.random}
        together = {one.word: one.together for one in uses.companions}
        return {
            "word": facts.word,
            "name": facts.name,
            "df": facts.df,
            "pictures": uses.n,
            "idf": facts.idf,
            "tf": [span._asdict() for span in self.spread],
            **{kind: [_plain(sight) for sight in sights] for kind, sights in shown.items()},
            "companions": [
                {**_named(one), "together": together[one.facts.word], "lift": one.value}
                for one in self.companions
            ],
            "neighbours": [{**_named(one), "cosine": one.value} for one in self.neighbours],
            "place": self.place.tolist(),
            "purity": uses.purity,
            "folders": [folder._asdict() for folder in uses.folders],
        }


def portraits(
    gallery: Gallery,
    words: Sequence[int],
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Portrait]:
    """Look at words one after the other; a word that is in no picture is refused before the first.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> folder = Path(tempfile.mkdtemp())
    >>> Image.new("RGB", (64, 64), "red").save(folder / "red.png")
    >>> gallery = Gallery.create(folder / "g", vocabulary="toy")
    >>> gallery.add(folder / "red.png").added
    1
    >>> (facts, *_) = gallery.words()
    >>> (portrait,) = portraits(gallery, [facts.word])
    >>> portrait.uses.facts.df, portrait.top[0].grid.shape
    (1, (7, 7))
    """
    studio = _Studio(gallery, words, best=1)
    for done, word in enumerate(words):
        progress(done, len(words))
        yield studio.portrait(word)
    progress(len(words), len(words))


def strongest(
    gallery: Gallery, words: Sequence[int], best: int
) -> Iterator[tuple[int, list[Sight]]]:
    """Give each word with the pictures that have most of it, and where it is in them."""
    studio = _Studio(gallery, words, best=best)
    for word in words:
        yield word, studio.strongest(word)


class _Studio:
    """Makes portraits; files that several of them show are encoded once."""

    def __init__(self, gallery: Gallery, words: Sequence[int], *, best: int) -> None:
        self._gallery = gallery
        self._vocabulary: Vocabulary = gallery.vocabulary
        self._facts = {one.word: one for one in gallery.words(best=best)}
        self._seen: dict[str, Codes | str] = {}
        for word in words:
            if names.check_word(word, self._vocabulary.n_words) not in self._facts:
                raise WrongUse(
                    f"word {word} is in none of the {len(gallery):,} pictures of {gallery.path}: "
                    "bm25v words lists those that are"
                )

    def strongest(self, word: int) -> list[Sight]:
        best = self._facts[word].best
        self._look(use.path for use in best)
        return [self._sight(use, word) for use in best]

    def portrait(self, word: int) -> Portrait:
        uses = self._gallery.uses(word)
        chosen = _chosen(uses.uses, seed=word)
        companions = [
            (self._facts[one.word], one.lift) for one in uses.companions if one.lift >= LIFT
        ]
        near = nearest(self._vocabulary, word, among=self._facts)
        neighbours = [(self._facts[other], cosine) for other, cosine in near]
        related = [facts.best[0] for facts, _ in (*companions, *neighbours)]
        self._look(use.path for use in (*chosen.all, *related))
        place, placed = self._place([self._sight(use, word) for use in chosen.placed])
        return Portrait(
            uses,
            tuple(self._sight(use, word) for use in chosen.top),
            tuple(self._sight(use, word) for use in chosen.middle),
            tuple(self._sight(use, word) for use in chosen.random),
            tuple(self._relative(*one) for one in companions),
            tuple(self._relative(*one) for one in neighbours),
            place,
            placed,
        )

    def _relative(self, facts: WordFacts, value: float) -> Relative:
        return Relative(facts, value, self._sight(facts.best[0], facts.word))

    def _look(self, paths: Iterable[str]) -> None:
        wanted = set(paths)
        if len(self._seen) > _KEPT:
            self._seen.clear()
        new = sorted(wanted - self._seen.keys())
        for path, outcome in read_files(new, self._vocabulary, lambda content: False):
            if isinstance(outcome, Read) and outcome.encoding is not None:
                self._seen[path] = outcome.encoding.codes
            else:
                self._seen[path] = str(outcome)

    def _sight(self, use: Use, word: int) -> Sight:
        codes = self._seen[use.path]
        if isinstance(codes, str):
            return Sight(*use, None, codes)
        grid = bags.word_activations(codes, word).reshape(self._vocabulary.backbone.grid)
        if not grid.any():
            return Sight(*use, None, "has changed since it was indexed: the word is gone from it")
        return Sight(*use, grid)

    def _place(self, sights: Sequence[Sight]) -> tuple[Grid, int]:
        """Return the mean of where a word is; each picture counts the same."""
        grids = [sight.grid / sight.grid.sum() for sight in sights if sight.grid is not None]
        if not grids:
            return np.zeros(self._vocabulary.backbone.grid, dtype=np.float32), 0
        return np.mean(grids, axis=0, dtype=np.float32), len(grids)


class _Chosen(NamedTuple):
    top: Sequence[Use]
    middle: Sequence[Use]
    random: Sequence[Use]
    placed: Sequence[Use]

    @property
    def all(self) -> list[Use]:
        return [*self.top, *self.middle, *self.random, *self.placed]


def _chosen(uses: Sequence[Use], seed: int) -> _Chosen:
    """Choose pictures of all strengths; the random ones are the same every time."""
    middle = range(TOP, len(uses))[max(0, len(uses) // 2 - MIDDLE // 2 - TOP) :][:MIDDLE]
    order = np.random.default_rng(seed).permutation(len(uses)).tolist()
    random = [place for place in order if place >= TOP and place not in middle][:RANDOM]
    return _Chosen(
        uses[:TOP],
        [uses[place] for place in middle],
        [uses[place] for place in sorted(random)],
        [uses[place] for place in order[:PLACED]],
    )


def nearest(vocabulary: Vocabulary, word: int, among: Iterable[int]) -> list[tuple[int, float]]:
    """Return those of some words whose decoder directions are most like a word's, with cosines.

    >>> (other, cosine), *_ = nearest(Vocabulary.load("toy"), 4, among=range(192))
    >>> other != 4, 0 < cosine < 1
    (True, True)
    """
    others = np.array(sorted(set(among) - {word}), dtype=np.int64)
    w_dec_vd = vocabulary.sae.w_dec_vd[[word, *others]]
    w_dec_vd /= np.maximum(np.linalg.norm(w_dec_vd, axis=1, keepdims=True), 1e-12)
    cosines = w_dec_vd[1:] @ w_dec_vd[0]
    best = np.argsort(-cosines, kind="stable")[:NEIGHBOURS]
    return [(int(others[i]), float(cosines[i])) for i in best]


def _plain(sight: Sight) -> dict[str, Any]:
    return {"path": sight.path, "tf": sight.tf, "problem": sight.problem}


def _named(relative: Relative) -> dict[str, Any]:
    facts = relative.facts
    return {"word": facts.word, "name": facts.name, "df": facts.df}
