"""What a gallery and a collection of another engine have in common."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Self, Unpack

from bm25v.errors import InvalidQuery
from bm25v.explain.engine_words import describe_word, list_words
from bm25v.explain.explanation import Explanation, explain_hit, explain_hits
from bm25v.explain.word_statistics import WordList, WordOrder, WordUse
from bm25v.images import ImageInput
from bm25v.progress import Progress, no_progress
from bm25v.search import engine
from bm25v.search.contract import SearchEngine
from bm25v.search.query import Query, QueryImage, QueryOptions
from bm25v.search.results import Match, Results, let_explain
from bm25v.store.local.indexing import IndexReport
from bm25v.store.local.store import GalleryInfo
from bm25v.vocabulary import Encoding, Vocabulary

PathInput = str | os.PathLike[str]
NamedImages = Mapping[str, ImageInput] | Iterable[tuple[str, ImageInput]]


class Searchable(ABC):
    """A collection of images that can be searched, explained and changed."""

    def __init__(self, engine: SearchEngine) -> None:
        self.engine = engine

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.engine.read(lambda view: view.statistics.n)

    @abstractmethod
    def close(self) -> None:
        """Release what is open; the collection cannot be used afterwards."""

    @abstractmethod
    def add(
        self,
        images: NamedImages,
        *,
        workers: int | None = None,
        timeout: float = 0.0,
        progress: Progress = no_progress,
    ) -> IndexReport:
        """Add images from memory with ids, or replace those that have these ids."""

    @abstractmethod
    def remove(
        self,
        paths: PathInput | Iterable[PathInput],
        *,
        recursive: bool = True,
        timeout: float = 0.0,
    ) -> int:
        """Remove images, by path or id, or all images in a folder; return how many there were."""

    @abstractmethod
    def name_words(self, names: Mapping[int, str | None]) -> None:
        """Name words, or clear their names with None; if one change is wrong, none is made."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary that its bags were made with, loaded on first use."""
        return self.engine.vocabulary

    @property
    def word_names(self) -> Mapping[int, str]:
        """The names of words: those given in this collection, else those of the vocabulary."""
        return self.engine.word_names

    def search(
        self,
        query: Query | QueryImage | Iterable[QueryImage] | None = None,
        **options: Unpack[QueryOptions],
    ) -> Results:
        """Return the images most similar to an image, or to several; `Query` has all options.

        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> from bm25v import Gallery
        >>> folder = Path(tempfile.mkdtemp())
        >>> for colour in ("red", "blue"):
        ...     Image.new("RGB", (64, 64), colour).save(folder / f"{colour}.png")
        >>> gallery = Gallery.create(folder / "g", vocabulary="toy")
        >>> gallery.add(folder).added
        2
        >>> red = gallery.search(folder / "red.png", region=(0, 0, 0.5, 1), include_query=True)
        >>> word = red[0].words[0].word
        >>> [Path(hit.path).name for hit in gallery.search(must=word)]
        ['red.png']
        >>> gallery.search(folder / "red.png", without=word, mode="words").no_match
        '0 of 7 words shared with any image that does not have word 163'
        """
        checked = as_query(query, options)
        return self._let_explain(checked, engine.search(self.engine, checked))

    def search_many(
        self, queries: Iterable[Query | QueryImage], **options: Unpack[QueryOptions]
    ) -> list[Results]:
        """Search with many images or queries on all CPUs; each result is that of `search`.

        The options are those of the images; a `Query` has its own.
        """
        checked = as_queries(queries, options)
        return self._let_explain_all(checked, engine.search_many(self.engine, checked))

    def _let_explain_all(self, queries: list[Query], results: list[Results]) -> list[Results]:
        return list(map(self._let_explain, queries, results))

    def _let_explain(self, query: Query, results: Results) -> Results:
        one, several = partial(self.explain, query), partial(explain_hits, self.engine, query)
        return let_explain(results, one, several)

    def match(
        self,
        query: Query | QueryImage | Iterable[QueryImage] | None,
        path: PathInput,
        **options: Unpack[QueryOptions],
    ) -> Match:
        """Return how one image compares with a query."""
        return engine.match_path(self.engine, as_query(query, options), os.fspath(path))

    def explain(
        self,
        query: Query | QueryImage | Iterable[QueryImage] | None,
        hit: PathInput,
        *,
        encoding: Encoding | None = None,
        image: ImageInput | None = None,
        **options: Unpack[QueryOptions],
    ) -> Explanation:
        """Return why an image matches a query: which words, and where.

        `encoding` saves encoding the query's image again. `image` is that of the hit, if it was
        added from memory, or if its file is not here any more.
        """
        checked = as_query(query, options)
        return explain_hit(self.engine, checked, os.fspath(hit), encoding=encoding, image=image)

    def words(
        self,
        *,
        best: int = 3,
        sort: WordOrder = "word",
        offset: int = 0,
        limit: int | None = None,
    ) -> WordList:
        """Return the words in use, or some of them, each with images where it is strongest."""
        return list_words(self.engine, best=best, sort=sort, offset=offset, limit=limit)

    def word(self, word: int) -> WordUse:
        """Return what is known about one word."""
        return describe_word(self.engine, word)

    def info(self) -> GalleryInfo:
        """Return facts about the collection."""
        return self.engine.info()


def as_query(
    query: Query | QueryImage | Iterable[QueryImage] | None, options: QueryOptions
) -> Query:
    if not isinstance(query, Query):
        return Query.of(query, **options)
    if options:
        raise InvalidQuery(f"{', '.join(options)} beside a Query: set them in the Query")
    return query


def as_queries(queries: Iterable[Query | QueryImage], options: QueryOptions) -> list[Query]:
    return [q if isinstance(q, Query) else Query.of(q, **options) for q in queries]
