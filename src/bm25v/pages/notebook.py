"""Values become HTML fragments for notebooks: results, hits, explanations, words.

In: a value. Out: a fragment that needs no script and no other file. Its style is limited to itself
and takes its colours from the notebook, light or dark. In place of an image that cannot be read
stands the reason. Not this module's job: complete pages.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bm25v import images
from bm25v.display import count
from bm25v.explanations.crops import (
    Grid,
    Pixels,
    crop_word,
    cut_examples,
    encode_highlight,
    encode_jpeg,
)
from bm25v.explanations.explanation import Explanation, Part
from bm25v.explanations.maps import Pin, combine_maps, pin_hit, pin_query
from bm25v.explanations.sums import round_to_sum, sum_up
from bm25v.explanations.word_statistics import ImageWithWord, WordInGallery, WordUse
from bm25v.pages.render import EmbeddedImage, embed_thumbnail, fixed, render
from bm25v.pages.searches_page import describe_order
from bm25v.search import Hit, Match, Results

MAX_HITS = 24  # that are shown: a notebook stores the pixels of each
MAX_WORDS = 12  # of a list

_HIT_SIDE, _CARD_SIDE, _PHOTO_SIDE, _CROP_SIDE, _WORD_SIDE = 192, 320, 320, 112, 112  # pixels
_HIT_WORDS, _CARD_WORDS, _QUERY_WORDS, _PARTS = 3, 8, 8, 5
_WORD_IMAGES = 8


def results_fragment(results: Results) -> str:
    """Return the hits as a grid of thumbnails, or the reason why there are none."""
    return render(
        "notebook_results.html",
        n_hits=len(results),
        order=describe_order(results.mode),
        query_words=results.query[:_QUERY_WORDS],
        n_more_words=len(results.query[_QUERY_WORDS:]),
        no_match=results.no_match,
        is_weak=results.is_weak,
        notes=results.notes,
        hits=[_describe_match(hit, _HIT_SIDE, _HIT_WORDS) for hit in results.hits[:MAX_HITS]],
        n_more_hits=len(results.hits[MAX_HITS:]),
    )


def match_fragment(match: Match) -> str:
    """Return one hit, or the match of one image, as a card.

    >>> from bm25v.search import WordContribution
    >>> word = WordContribution(7, "petal", 2.0, 3.0, 4.0, 1.5, 3.0)
    >>> scores = ("words", 3.0, 3.0, 1.0, "strong", 0.9)
    >>> fragment = match_fragment(Match("/photos/rose.jpg", *scores, (word,), 0.4, 3.0, 3.0, 20))
    >>> "rose.jpg" in fragment, "petal" in fragment, "+3.00" in fragment, "40%" in fragment
    (True, True, True, True)
    """
    return render("notebook_hit.html", hit=_describe_match(match, _CARD_SIDE, _CARD_WORDS))


def explanation_fragment(explanation: Explanation) -> str:
    """Return both photos with what matched, and what each word adds to the score."""
    contributions = explanation.rounded_contributions()
    shown = explanation.parts[:_PARTS]
    cut = cut_examples((e for part in shown for e in part.examples), side=_CROP_SIDE)
    rows = [
        {
            "number": n + 1,
            "word": part.word,
            "contribution": contributions[n],
            "before": sum(contributions[:n]),
            "crops": [
                EmbeddedImage(encode_jpeg(cut[e]), f"{part.word.label} in {Path(e.path).name}")
                for e in part.examples
                if e in cut
            ]
            or list(_crop_part(explanation, part)),
        }
        for n, part in enumerate(shown)
    ]
    return render(
        "notebook_explanation.html",
        path=explanation.hit_path,
        name=Path(explanation.hit_path).name,
        title=explanation.title,
        match=explanation.match,
        terms=list(sum_up(explanation.match)),
        photos=list(_show_photos(explanation)),
        rows=rows,
        n_more=len(contributions[_PARTS:]),
        shown_sum=sum(contributions[:_PARTS]),
        rest=sum(contributions[_PARTS:]),
        positive_sum=explanation.positive_sum,
        missing=explanation.missing[:_QUERY_WORDS],
        n_more_missing=len(explanation.missing[_QUERY_WORDS:]),
        notes=explanation.notes,
    )


def words_fragment(words: Sequence[WordInGallery]) -> str:
    """Return the first words of a list, each with the images where it is strongest."""
    shown = [_describe_word(word, word.best) for word in words[:MAX_WORDS]]
    return _render_words(shown, n_words=len(words), n_more=len(words[MAX_WORDS:]))


def word_fragment(word: WordInGallery) -> str:
    """Return one word with the images where it is strongest."""
    return _render_words([_describe_word(word, word.best)])


def word_use_fragment(use: WordUse) -> str:
    """Return one word with the images and the folder where it is strongest."""
    word = _describe_word(use.facts, use.images[:_WORD_IMAGES], of=use.n)
    if use.folders:
        first = use.folders[0]
        word["facts"] += [f"{first.lift:.1f} × as frequent in {first.name}"]
    return _render_words([word])


def _describe_match(match: Match, side: int, n_words: int) -> dict[str, Any]:
    contributions = round_to_sum([word.contribution for word in match.words], match.sparse)
    path = Path(match.path)
    return {
        "rank": match.rank if isinstance(match, Hit) else None,
        "name": path.name,
        "folder": str(path.parent),
        "image": embed_thumbnail(match.path, side=side, alt=path.name),
        "coverage": match.coverage,
        "figures": list(_figures(match)),
        "words": list(zip(match.words[:n_words], contributions, strict=False)),
        "n_more": len(contributions[n_words:]),
        "rest": sum(contributions[n_words:]),
    }


def _figures(match: Match) -> Iterator[tuple[str, str, str]]:
    """Yield a label, a value and what it means."""
    if match.strength is not None:
        yield "match", match.strength, "compared with the best hits of the gallery's own images"
    if match.mode not in ("words", "sparse"):
        yield "score", fixed(match.score, 3), match.formula
    by_words = "the sum of what the words add"
    if isinstance(match, Hit) and match.first_rank is not None:
        by_words += f"; rank {match.first_rank} in the first stage"
    yield "BM25", fixed(match.sparse), by_words
    yield (
        "coverage",
        f"{match.coverage:.0%}",
        "share of the query matched, rare words counting more",
    )


def _show_photos(explanation: Explanation) -> Iterator[dict[str, object]]:
    """Yield each image of the query, then the hit, with what matched."""
    in_queries, in_hit = combine_maps(explanation)
    paths, strength = dict(enumerate(explanation.query_paths)), explanation.visibility
    for n, (image, grid) in enumerate(zip(explanation.query_images, in_queries, strict=True)):
        highlighted = _highlight(image, grid, strength, "query")
        yield _show_photo("Query", paths.get(n, ""), highlighted, pin_query(explanation, n))
    if not explanation.query_images:
        text = explanation.text
        about = "only words, no image" if text is None else f"the text “{text}”"
        yield _show_photo("Query", "", EmbeddedImage(None, "The query", about), [])
    highlighted = EmbeddedImage(None, "The hit", "its file cannot be read")
    if explanation.hit_image is not None and in_hit is not None:
        highlighted = _highlight(explanation.hit_image, in_hit, strength, "hit")
    yield _show_photo("Hit", explanation.hit_path, highlighted, pin_hit(explanation))


def _show_photo(role: str, path: str, image: EmbeddedImage, pins: list[Pin]) -> dict[str, object]:
    shown = pins if image.bytes is not None else []
    return {"role": role, "path": path, "name": Path(path).name, "image": image, "pins": shown}


def _highlight(image: Pixels, grid: Grid, strength: float, role: str) -> EmbeddedImage:
    jpeg = encode_highlight(image, grid, side=_PHOTO_SIDE, strength=strength)
    return EmbeddedImage(jpeg, f"What matched in the {role}")


def _crop_part(explanation: Explanation, part: Part) -> Iterator[EmbeddedImage]:
    """Yield the part of the query, then of the hit, that has the word."""
    query = explanation.query_images[part.best_query] if explanation.query_images else None
    pairs = ((query, part.in_query, "query"), (explanation.hit_image, part.in_hit, "hit"))
    for image, grid, role in pairs:
        if image is not None and grid is not None and grid.any():
            crop = images.resize_image(crop_word(image, grid), width=_CROP_SIDE, height=_CROP_SIDE)
            yield EmbeddedImage(encode_jpeg(crop), f"{part.word.label} in the {role}")


def _describe_word(
    word: WordInGallery, uses: Sequence[ImageWithWord], of: int | None = None
) -> dict[str, Any]:
    n_images = count(word.df, "image") if of is None else f"{word.df:,} of {count(of, 'image')}"
    number = [] if word.name is None else [f"word {word.word}"]
    return {
        "label": word.label,
        "facts": [*number, f"in {n_images}", f"idf {word.idf:.2f}"],
        "images": [
            {
                "path": use.path,
                "tf": use.tf,
                "image": embed_thumbnail(use.path, side=_WORD_SIDE, alt=Path(use.path).name),
            }
            for use in uses
        ],
    }


def _render_words(
    words: Sequence[dict[str, Any]], *, n_words: int | None = None, n_more: int = 0
) -> str:
    return render("notebook_words.html", words=words, n_words=n_words, n_more=n_more)
