"""What people hand over becomes a wish: pictures are encoded, regions cut, names become words."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from bm25v import bags, images, names
from bm25v.bags import Bag
from bm25v.errors import ImageError, WrongUse
from bm25v.query import Region, Wish, from_bags, regions, steered
from bm25v.query.weights import blended
from bm25v.sae.model import Codes
from bm25v.vocabulary import Encoding, Picture, Vocabulary

Asked = Picture | Encoding  # a picture, encoded already or not
Path = str | os.PathLike[str]
Word = int | str  # by its number or by its name


class Wanted(TypedDict, total=False):
    """How a search can be steered; `Gallery.search` says what each does."""

    region: Region | None
    must: Iterable[Word]
    without: Iterable[Word]
    boost: Mapping[Word, float] | None
    negative: Asked | Iterable[Asked] | None
    like: Path | Iterable[Path]
    unlike: Path | Iterable[Path]


class Example(NamedTuple):
    """What a wish takes of a picture, or of a part of one."""

    bag: Bag
    dense_e: NDArray[np.floating] | None


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
        return regions.fractions(region, images.size(picture))
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
    """Makes wishes for one gallery; `stored` finds the example of a path in it."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        word_names: Mapping[int, str],
        stored: Callable[[str], Example],
    ) -> None:
        self._vocabulary = vocabulary
        self._word_names = word_names
        self._stored = stored

    def wish(
        self,
        pictures: Asked | Iterable[Asked] | None,
        *,
        region: Region | None = None,
        must: Iterable[Word] = (),
        without: Iterable[Word] = (),
        boost: Mapping[Word, float] | None = None,
        negative: Asked | Iterable[Asked] | None = None,
        like: Path | Iterable[Path] = (),
        unlike: Path | Iterable[Path] = (),
    ) -> Wish:
        """Return the words, weighed, and the dense vector that all of it stands for."""
        asked, against = several(pictures), several(negative)
        region = without_pixels(region, asked)
        required, excluded = self._words(must), self._words(without)
        factors = self._factors(boost or {})
        liked = [self._stored(path) for path in absolute(like)]
        unliked = [self._stored(path) for path in absolute(unlike)]
        if not (asked or liked or required or factors):
            raise WrongUse("nothing to look for: give a picture, or words by must or boost")
        encodings = [encoded(self._vocabulary, picture) for picture in asked]
        examples = [Example(one.bag, one.dense_e) for one in encodings]
        codes = [one.codes for one in encodings]
        if region is not None:
            examples[0], codes[0] = self._part(encodings[0], region)
        for picture in against:
            encoding = encoded(self._vocabulary, picture)
            unliked.append(Example(encoding.bag, encoding.dense_e))
        query = from_bags(
            [one.bag for one in examples],
            liked=[one.bag for one in liked],
            against=[one.bag for one in unliked],
        )
        steered_query = steered(query, must=required, without=excluded, boost=factors)
        dense_e, no_dense = self._dense(examples, liked, unliked)
        return Wish(
            steered_query,
            must=required,
            without=excluded,
            boosted=tuple(factors),
            dense_e=dense_e,
            no_dense=no_dense,
            codes=tuple(codes),
        )

    def _words(self, given: Iterable[Word]) -> tuple[int, ...]:
        given = [given] if isinstance(given, int | str) else given
        return tuple(dict.fromkeys(self._word(word) for word in given))

    def _word(self, word: Word) -> int:
        n_words = self._vocabulary.n_words
        if isinstance(word, str):
            return names.find(word, self._word_names, n_words)
        return names.existing(int(word), n_words)

    def _factors(self, boost: Mapping[Word, float]) -> dict[int, float]:
        found: dict[int, float] = {}
        for given, factor in boost.items():
            word = self._word(given)
            if word in found:
                raise WrongUse(f"word {word} is boosted twice: give one factor")
            found[word] = float(factor)
        return found

    def _part(self, encoding: Encoding, region: Region) -> tuple[Example, Codes]:
        """Return what a region of a picture stands for, out of the whole picture's pass."""
        shares_p = regions.patch_shares(region, self._vocabulary.backbone.grid)
        codes = regions.within(encoding.codes, shares_p)
        bag = bags.pool(codes, k_post=self._vocabulary.k_post)
        if encoding.patches_pd is None:
            return Example(bag, None), codes
        mean_d = np.average(encoding.patches_pd, axis=0, weights=shares_p).astype(np.float32)
        return Example(bag, self._vocabulary.backbone.pooled(mean_d)), codes

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
            backbone = self._vocabulary.backbone_name
            return None, f"{backbone} gives a dense vector of whole pictures, not of a region"
        if len(pictures) == 1 and not good and not bad:
            return pictures[0].astype(np.float32), ""
        return blended(pictures, liked=good, against=bad), ""


def _named(picture: Picture, error: ImageError) -> ImageError:
    if isinstance(picture, str | os.PathLike):
        return ImageError(f"{os.fspath(picture)}: {error}")
    return error
