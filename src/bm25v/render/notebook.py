"""HTML fragments that notebooks show of results, hits, explanations and words.

A fragment needs no script and no other file; its style is limited to itself.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

from bm25v.display import count
from bm25v.explain.explanation import Explanation
from bm25v.explain.sums import list_reasons, list_shares, round_to_sum
from bm25v.explain.words import ImageWithWord, WordInGallery, WordUse
from bm25v.render.explanation_page import describe, embed_highlights
from bm25v.render.html import embed_thumbnail, fixed, render, weigh
from bm25v.search import Hit, Match, Results

MAX_HITS = 24  # that are shown: a notebook stores the pixels of each
MAX_WORDS = 12  # of a list

_HIT_SIDE, _CARD_SIDE, _PHOTO_SIDE, _WORD_SIDE = 192, 320, 320, 112  # pixels
_HIT_WORDS, _CARD_WORDS, _QUERY_WORDS, _PARTS = 3, 8, 8, 12
_WORD_IMAGES = 8


def results_fragment(results: Results) -> str:
    """Return the hits as a grid of thumbnails, or the reason why there are none."""
    words = () if results.understood else results.query
    chips = (
        ("Query", list(map(weigh, words[:_QUERY_WORDS])), len(words[_QUERY_WORDS:])),
        ("Understood", results.understood, 0),
        ("Not understood", results.not_understood, 0),
    )
    return render(
        "notebook_results.html",
        results=results,
        chips=chips,
        hits=[_describe_match(hit, _HIT_SIDE, _HIT_WORDS) for hit in results.hits[:MAX_HITS]],
        n_more_hits=len(results.hits[MAX_HITS:]),
    )


def match_fragment(match: Match) -> str:
    card = _describe_match(match, _CARD_SIDE, _CARD_WORDS)
    return render("notebook_results.html", results=None, hits=[card])


def explanation_fragment(explanation: Explanation) -> str:
    photos = list(embed_highlights(explanation, side=_PHOTO_SIDE))
    values = describe(explanation, words=_PARTS)
    return render("notebook_explanation.html", photos=photos, **values)


def words_fragment(words: Sequence[WordInGallery]) -> str:
    shown = [_describe_word(word, word.best) for word in words[:MAX_WORDS]]
    return _render_words(shown, n_words=len(words), n_more=len(words[MAX_WORDS:]))


def word_fragment(word: WordInGallery) -> str:
    return _render_words([_describe_word(word, word.best)])


def word_use_fragment(use: WordUse) -> str:
    word = _describe_word(use.facts, use.images[:_WORD_IMAGES], of=use.n)
    if use.folders:
        first = use.folders[0]
        word["facts"] += [f"{first.lift:.1f} × as frequent in {first.name}"]
    return _render_words([word])


def _describe_match(match: Match, side: int, n_words: int) -> dict[str, Any]:
    words = list_reasons(match)
    contributions = round_to_sum([word.contribution for word in words], match.sparse)
    return {
        "rank": match.rank if isinstance(match, Hit) else None,
        "path": match.path,
        "image": embed_thumbnail(match.path, side=side, alt=os.path.basename(match.path)),
        "coverage": None if match.text else match.coverage,
        "figures": list(_figures(match)),
        "words": list(zip(words[:n_words], contributions, strict=False)),
        "n_more": len(contributions[n_words:]),
        "rest": sum(contributions[n_words:]),
    }


def _figures(match: Match) -> Iterator[tuple[str, str, str]]:
    """Yield a label, a value and what it means."""
    if match.strength is not None:
        yield "match", match.strength, "compared with the best hits of the gallery's own images"
    if not match.by_words_alone:
        yield "score", fixed(match.score, match.digits), match.formula
    if match.text:
        yield from ((label, f"{share:.0%}", "of the score") for label, share in list_shares(match))
        return
    by_words = "the sum of what the words add"
    if isinstance(match, Hit) and match.first_rank is not None:
        by_words += f"; rank {match.first_rank} in the first stage"
    yield "BM25", fixed(match.sparse), by_words
    yield (
        "coverage",
        f"{match.coverage:.0%}",
        "share of the query matched, rare words counting more",
    )


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
                "image": embed_thumbnail(use.path, side=_WORD_SIDE, alt=os.path.basename(use.path)),
            }
            for use in uses
        ],
    }


def _render_words(
    words: Sequence[dict[str, Any]], *, n_words: int | None = None, n_more: int = 0
) -> str:
    return render("notebook_words.html", words=words, n_words=n_words, n_more=n_more)
