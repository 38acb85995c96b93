"""The searching half of a gallery: pictures and words in, hits and their reasons out."""

import os
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Unpack

import numpy as np
from threadpoolctl import threadpool_limits

from bm25v.errors import WrongUse
from bm25v.gallery import matching, searching, wishes
from bm25v.gallery.matching import Matcher
from bm25v.gallery.reader import Reader
from bm25v.gallery.results import Hit, Match, QueryWord, Results
from bm25v.gallery.searching import Mode, Settings
from bm25v.gallery.snapshot import Snapshot
from bm25v.gallery.texts import Texts
from bm25v.gallery.wishes import Asked, Example, QueryOptions, Wishes, Words
from bm25v.search import EncodedQuery, Region, ranking
from bm25v.vocabulary import Encoding, ImageInput


class Searches(Reader):
    """Search a gallery, and take what was found apart."""

    def search(
        self,
        picture: Asked | Iterable[Asked] | None = None,
        *,
        region: Region | None = None,
        must: Iterable[int | str] = (),
        without: Iterable[int | str] = (),
        boost: Mapping[int | str, float] | None = None,
        negative: Asked | Iterable[Asked] | None = None,
        like: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
        unlike: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
        text: str | None = None,
        query_words: int | None = None,
        min_coverage: float = 0.0,
        k: int = 10,
        mode: Mode | None = None,
        candidates: int = 200,
    ) -> Results:
        """Return the k pictures most like the given one, or ones (paths, bytes or RGB arrays).

        region: only this part of the picture counts: a box (x, y, width, height), in pixels or,
            if no number is above 1, in fractions of the picture; or a mask over the picture.
        must, without: words, by number or name, that a hit has, or has not. A word that hits must
            have is asked for as well.
        boost: factors for the weights of words; 0 mutes one, below 0 it speaks against a picture.
            A word that the picture does not have is asked for.
        negative: counter-examples. What they have counts against a picture, by half.
        like, unlike: pictures of the gallery, as feedback on hits. Words of the liked ones count
            for a picture, by three quarters, words of the unliked ones against it, by half.
        text: what to look for in words, as one more picture. Hits are ordered by the cosine with
            its vector, if the backbone has a text tower, and explained by what the nearest ones
            share. In the other modes the visual words that are called so are asked for.
        query_words: ask with so many of the picture's words, rather than those that would be kept
            of it, and by how strong they are, rather than each alike. 64 find more by words.
        min_coverage: the least share of the query's IDF mass that a hit matches.
        mode: "two-stage" takes the best `candidates` by BM25 and orders them by cosine, "hybrid"
            by cosine and BM25 together; "sparse" ranks by BM25, "dense" by cosine over all
            pictures. The usual one is two-stage, or sparse if there is no dense vector (words
            alone; regions, with some backbones) or if words are boosted, else dense with a text.

        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> from bm25v.gallery import Gallery
        >>> folder = Path(tempfile.mkdtemp())
        >>> for colour in ("red", "blue"):
        ...     Image.new("RGB", (64, 64), colour).save(folder / f"{colour}.png")
        >>> gallery = Gallery.create(folder / "g", vocabulary="toy")
        >>> gallery.add(folder).added
        2
        >>> red = gallery.search(folder / "red.png", region=(0, 0, 0.5, 1))
        >>> word = red[0].words[0].word
        >>> [Path(hit.path).name for hit in gallery.search(must=[word])]
        ['red.png']
        >>> gallery.search(folder / "red.png", without=[word]).no_match
        '0 of 7 words shared with any picture that does not have word 163'
        """
        settings = Settings(k, mode, candidates, min_coverage)
        start = time.perf_counter()
        pictures, against = wishes.several(picture), wishes.several(negative)
        if not all(isinstance(one, Encoding) for one in (*pictures, *against)):
            self.vocabulary.backbone.load_weights()
        if text is not None and mode != "sparse":
            self.text_tower  # noqa: B018 - loads it
        self.snapshot()
        loaded = time.perf_counter()
        wish = self.wish(
            pictures,
            mode=mode,
            region=region,
            must=must,
            without=without,
            boost=boost,
            negative=against,
            like=like,
            unlike=unlike,
            text=text,
            query_words=query_words,
        )
        ms = {"load": (loaded - start) * 1e3, "encode": (time.perf_counter() - loaded) * 1e3}
        results = self.search_wish(wish, settings)
        return replace(results, ms=ms | results.ms)

    def search_encoding(
        self,
        encoding: Encoding | Iterable[Encoding] | None = None,
        *,
        min_coverage: float = 0.0,
        k: int = 10,
        mode: Mode | None = None,
        candidates: int = 200,
        **wanted: Unpack[QueryOptions],
    ) -> Results:
        """Search with pictures that are encoded already, steered like `search`."""
        wish = self.wish(encoding, mode=mode, **wanted)
        return self.search_wish(wish, Settings(k, mode, candidates, min_coverage))

    def wish(
        self,
        picture: Asked | Iterable[Asked] | None = None,
        *,
        mode: Mode | None = None,
        **wanted: Unpack[QueryOptions],
    ) -> EncodedQuery:
        """Return what `search` would look for: weighted words and a dense vector."""
        made = Wishes(self.vocabulary, self.word_names, self._stored, self._told)
        return made.wish(picture, mode=mode, **wanted)

    def search_wish(self, wish: EncodedQuery, settings: Settings | None = None) -> Results:
        """Search for what `wish` returned."""
        settings = settings or Settings()
        snapshot = self.snapshot()
        found = searching.search(snapshot, wish, settings)
        rows = found.rows.tolist()
        paths = self._catalog.paths_of(rows, snapshot.state.generation)
        if paths is None:  # compacted meanwhile
            return self.search_wish(wish, settings)
        names, statistics = self.word_names, snapshot.searcher.statistics
        matcher = Matcher(snapshot, wish, names)
        columns = (rows, paths, found.dense.tolist(), found.first_ranks.tolist())
        hits = [
            Hit(
                **vars(matcher.match(row, path, dense)),
                rank=rank,
                first_rank=None if found.mode == "dense" else first_rank,
                score=score,
            )
            for rank, (row, path, dense, first_rank, score) in enumerate(
                zip(*columns, found.scores.tolist(), strict=True), start=1
            )
        ]
        reason = None if hits else self._no_match(snapshot, wish, settings.min_coverage)
        return Results(
            mode=found.mode,
            hits=tuple(hits),
            ms=found.ms,
            query=matching.asked_words(wish.query, statistics, names),
            no_match=reason,
            notes=matching.notes(wish, statistics, names),
            sparse_factor=found.sparse_factor,
        )

    def search_many(
        self,
        pictures: Iterable[ImageInput | Encoding],
        *,
        k: int = 10,
        mode: Mode | None = None,
        candidates: int = 200,
    ) -> list[Results]:
        """Search with many pictures, or encodings, on all cores; each result is that of one search.

        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> from bm25v.gallery import Gallery
        >>> folder = Path(tempfile.mkdtemp())
        >>> Image.new("RGB", (64, 64), "red").save(folder / "red.png")
        >>> gallery = Gallery.create(folder / "g", vocabulary="toy")
        >>> gallery.add(folder / "red.png").added
        1
        >>> [len(results) for results in gallery.search_many([folder / "red.png"] * 3)]
        [1, 1, 1]
        """
        wanted = list(pictures)
        self.snapshot().searcher.prepare_for(len(wanted))

        def one(picture: ImageInput | Encoding) -> Results:
            if not isinstance(picture, Encoding):
                picture = self.vocabulary.encode(picture)
            return self.search_encoding(picture, k=k, mode=mode, candidates=candidates)

        if not all(isinstance(picture, Encoding) for picture in wanted):
            self.vocabulary.backbone.load_weights()
        with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(one, wanted))

    def match(self, wish: EncodedQuery | Encoding, path: str | os.PathLike[str]) -> Match:
        """Compare what is asked for with one picture of the gallery."""
        if isinstance(wish, Encoding):
            wish = self.wish(wish)
        snapshot, row, absolute = self._row_at(path)
        dense = float("nan")
        if wish.dense_e is not None:
            (dense,) = ranking.cosines(snapshot.dense_ne, wish.dense_e, np.array([row])).tolist()
        return Matcher(snapshot, wish, self.word_names).match(row, absolute, dense)

    def asked_words(self, wish: EncodedQuery) -> tuple[QueryWord, ...]:
        """Return the words of a wish, what counts most first."""
        statistics = self.snapshot().searcher.statistics
        return matching.asked_words(wish.query, statistics, self.word_names)

    def _no_match(self, snapshot: Snapshot, wish: EncodedQuery, min_coverage: float) -> str:
        def path_of(row: int) -> str:
            paths = self._catalog.paths_of([row], snapshot.state.generation)
            return paths[0] if paths else "compacted meanwhile"

        return matching.no_match(snapshot, wish, min_coverage, self.word_names, path_of)

    def _row_at(self, path: str | os.PathLike[str]) -> tuple[Snapshot, int, str]:
        (absolute,) = wishes.absolute(path)
        snapshot = self.snapshot()
        with self._catalog.reading():
            picture = self._catalog.at_path(absolute)
            was_removed = picture is None and self._catalog.was_removed(absolute)
            generation = self._catalog.state().generation
        if generation != snapshot.state.generation:  # compacted meanwhile
            return self._row_at(path)
        if picture is None or picture.row not in snapshot.rows:
            remedy = "it was removed; index it again" if was_removed else "index it first"
            raise WrongUse(f"{absolute} is not in {self.path}: {remedy}")
        return snapshot, picture.row, absolute

    def _told(self, text: str, mode: Mode, must: Words, without: Words) -> Example:
        """Return what a text stands for here."""
        backbone = self.vocabulary.backbone_name
        made = Texts(self.snapshot(), self.word_names, lambda: self.text_tower, backbone)
        return made.example(text, mode, must, without)

    def _stored(self, path: str) -> Example:
        """Return what the gallery knows of a picture in it; its file is not needed."""
        snapshot, row, _ = self._row_at(path)
        return Example(snapshot.bag(row), np.asarray(snapshot.dense_ne[row], np.float32))
