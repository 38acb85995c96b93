"""What people hand over becomes a wish: pictures are encoded, regions cut, names become words."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from bm25v import images
from bm25v.errors import ImageError, WrongUse
from bm25v.gallery.searching import Mode
from bm25v.sae.model import Codes
from bm25v.search import EncodedQuery, Region, from_bags, regions, steered
from bm25v.search.weights import blended
from bm25v.vocabulary import Encoding, ImageInput, Vocabulary, names
from bm25v.vocabulary import bag as bags
from bm25v.vocabulary.bag import Bag

Asked = ImageInput | Encoding  # a picture, encoded already or not
Path = str | os.PathLike[str]
Word = int | str  # by its number or by its name
Words = tuple[int, ...]


class QueryOptions(TypedDict, total=False):
    """How a search can be steered; `Gallery.search` says what each does."""

    region: Region | None
    must: Iterable[Word]
    without: Iterable[Word]
    boost: Mapping[Word, float] | None
    negative: Asked | Iterable[Asked] | None
    like: Path | Iterable[Path]
    unlike: Path | Iterable[Path]
    text: str | None
    query_words: int | None


class Example(NamedTuple):
    """What a wish takes of a picture, of a part of one, or of a text."""

    bag: Bag
    dense_e: NDArray[np.floating] | None
    no_dense: str = ""  # why there is none
    note: str = ""


def several(pictures: Asked | Iterable[Asked] | None) -> list[Asked]:
    """Return one picture, several or none as a list.

    >>> several("a.jpg"), several(["a.jpg", b"bytes"]), several(None)
    (['a.jpg'], ['a.jpg', b'bytes'], [])
    """
    if pictures is None:
        return []
    if isinstance(pictures, str | os.PathLike | bytes | np.ndarray | Encoding):
        return [pictures]
    return list(pictures)


def absolute(given: Path | Iterable[Path]) -> list[str]:
    """Return one path or several as absolute ones."""
    given = [given] if isinstance(given, str | os.PathLike) else given
    return [os.path.abspath(path) for path in given]


def without_pixels(region: Region | None, pictures: Sequence[Asked]) -> Region | None:
    """Return a region as shares of the one picture that it is of."""
    if region is None:
        return None
    if len(pictures) != 1:
        raise WrongUse(f"a region with {len(pictures)} pictures: it needs exactly one")
    (picture,) = pictures
    if not regions.is_in_pixels(region):
        return region
    if isinstance(picture, Encoding):
        raise WrongUse("a region in pixels of an encoded picture: give fractions between 0 and 1")
    if isinstance(picture, np.ndarray):
        return regions.fractions(region, (picture.shape[1], picture.shape[0]))
    try:
        return regions.fractions(region, images.read_size(picture))
    except ImageError as error:
        raise _named(picture, error) from error


def encoded(vocabulary: Vocabulary, picture: Asked) -> Encoding:
    """Return a picture's encoding; one that cannot be read is named."""
    if isinstance(picture, Encoding):
        return picture
    try:
        return vocabulary.encode(picture)
    except ImageError as error:
        raise _named(picture, error) from error


class Wishes:
    """Makes wishes for one gallery, which knows the examples of paths and of texts."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        word_names: Mapping[int, str],
        stored: Callable[[str], Example],
        told: Callable[[str, Mode, Words, Words], Example],
    ) -> None:
        self._vocabulary = vocabulary
        self._word_names = word_names
        self._stored = stored
        self._told = told

    def wish(
        self,
        pictures: Asked | Iterable[Asked] | None,
        *,
        mode: Mode | None = None,
        region: Region | None = None,
        must: Iterable[Word] = (),
        without: Iterable[Word] = (),
        boost: Mapping[Word, float] | None = None,
        negative: Asked | Iterable[Asked] | None = None,
        like: Path | Iterable[Path] = (),
        unlike: Path | Iterable[Path] = (),
        text: str | None = None,
        query_words: int | None = None,
    ) -> EncodedQuery:
        """Return the words, weighed, and the dense vector that all of it stands for.

        Only the words of a text depend on the order that is asked for.
        """
        asked, against = several(pictures), several(negative)
        region = without_pixels(region, asked)
        required, excluded = self._words(must), self._words(without)
        factors = self._factors(boost or {})
        liked = [self._stored(path) for path in absolute(like)]
        unliked = [self._stored(path) for path in absolute(unlike)]
        if not (asked or liked or required or factors or text is not None):
            raise WrongUse("nothing to look for: give a picture, a text, or words by must or boost")
        if query_words is not None and query_words < 1:
            raise WrongUse(f"query_words = {query_words}: ask with at least one word")
        encodings = [encoded(self._vocabulary, picture) for picture in asked]
        examples = [Example(self._bag(one, query_words), one.dense_e) for one in encodings]
        codes = [one.codes for one in encodings]
        if region is not None:
            examples[0], codes[0] = self._part(encodings[0], region, query_words)
        if text is not None:
            order = mode or ("sparse" if factors else "dense")
            examples.append(self._told(text, order, required, excluded))
        for picture in against:
            encoding = encoded(self._vocabulary, picture)
            unliked.append(Example(self._bag(encoding, query_words), encoding.dense_e))
        query = from_bags(
            [one.bag for one in examples],
            liked=[one.bag for one in liked],
            against=[one.bag for one in unliked],
            by_strength=query_words is not None,
        )
        steered_query = steered(query, must=required, without=excluded, boost=factors)
        dense_e, no_dense = self._dense(examples, liked, unliked)
        return EncodedQuery(
            steered_query,
            must=required,
            without=excluded,
            boosted=tuple(factors),
            dense_e=dense_e,
            no_dense=no_dense,
            codes=tuple(codes),
            text=text,
            notes=tuple(one.note for one in examples if one.note),
        )

    def _words(self, given: Iterable[Word]) -> tuple[int, ...]:
        given = [given] if isinstance(given, int | str) else given
        return tuple(dict.fromkeys(self._word(word) for word in given))

    def _word(self, word: Word) -> int:
        n_words = self._vocabulary.n_words
        if isinstance(word, str):
            return names.find_word(word, self._word_names, n_words)
        return names.check_word(int(word), n_words)

    def _factors(self, boost: Mapping[Word, float]) -> dict[int, float]:
        found: dict[int, float] = {}
        for given, factor in boost.items():
            word = self._word(given)
            if word in found:
                raise WrongUse(f"word {word} is boosted twice: give one factor")
            found[word] = float(factor)
        return found

    @staticmethod
    def _bag(encoding: Encoding, query_words: int | None) -> Bag:
        if query_words is None:
            return encoding.bag
        return bags.pool_codes(encoding.codes, k_post=query_words)

    def _part(
        self, encoding: Encoding, region: Region, query_words: int | None
    ) -> tuple[Example, Codes]:
        """Return what a region of a picture stands for, out of the whole picture's pass."""
        shares_p = regions.patch_shares(region, self._vocabulary.backbone.grid)
        codes = regions.within(encoding.codes, shares_p)
        bag = bags.pool_codes(codes, k_post=query_words or self._vocabulary.k_post)
        backbone = self._vocabulary.backbone
        dense_e = None
        if encoding.patches_pd is not None:
            mean_d = np.average(encoding.patches_pd, axis=0, weights=shares_p)
            dense_e = backbone.pool_dense(mean_d.astype(np.float32))
        reason = f"{backbone.name} gives a dense vector of whole pictures, not of a region"
        return Example(bag, dense_e, no_dense=reason), codes

    def _dense(
        self, asked: list[Example], liked: list[Example], unliked: list[Example]
    ) -> tuple[NDArray[np.float32] | None, str]:
        if not asked and not liked:
            return None, "words have no dense vector"
        pictures, good, bad = (
            [one.dense_e for one in kind if one.dense_e is not None]
            for kind in (asked, liked, unliked)
        )
        if len(pictures) < len(asked):
            return None, next(one.no_dense for one in asked if one.dense_e is None)
        if len(pictures) == 1 and not good and not bad:
            return pictures[0].astype(np.float32), ""
        return blended(pictures, liked=good, against=bad), ""


def _named(picture: ImageInput, error: ImageError) -> ImageError:
    if isinstance(picture, str | os.PathLike):
        return ImageError(f"{os.fspath(picture)}: {error}")
    return error
