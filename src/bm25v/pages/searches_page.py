"""Several searches become one page: each query, its hits, and why the first ones match.

In: searches that were run already. Out: HTML. Not this module's job: searching.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bm25v.explanations.crops import cut_examples, encode_highlight, encode_jpeg
from bm25v.explanations.explanation import Explanation, Part
from bm25v.explanations.sums import percent_of, sum_up
from bm25v.pages.render import EmbeddedImage, embed_thumbnail, render
from bm25v.search import Hit, Results, WordContribution

TOP = 5  # words of an explanation that are shown
_ORDERS = {
    "words": "The best candidates of the index, sorted by all of their words (BM25)",
    "two-stage": "The best candidates by words (BM25), sorted by similarity (cosine)",
    "sparse": "Sorted by words (BM25)",
    "dense": "All images, sorted by similarity (cosine)",
    "concepts": "All images, sorted by the probability of what the text names",
    "hybrid": "The best candidates by words (BM25), sorted by similarity and words",
}
_ICON_SIDE, _QUERY_SIDE, _HIT_SIDE, _MAP_SIDE, _CROP_SIDE = 96, 440, 320, 220, 96  # pixels


@dataclass(frozen=True)
class LabelledSearch:
    """One search; `labels` has what the image at a path shows, where that is known."""

    query: str
    results: Results
    explanations: tuple[Explanation, ...] = ()  # of the first hits
    labels: Mapping[str, str] = field(default_factory=dict)

    def agrees(self, hit: Hit) -> bool | None:
        """Return whether a hit has the query's label; None if one of the labels is not known."""
        query_label, hit_label = self.labels.get(self.query), self.labels.get(hit.path)
        return None if query_label is None or hit_label is None else query_label == hit_label


def render_searches(
    title: str,
    searches: Sequence[LabelledSearch],
    *,
    lead: str = "",
    facts: Iterable[tuple[str, str]] = (),
    commands: Iterable[str] = (),
) -> str:
    """Return the page: a title, a sentence, facts as (value, label), searches, commands to try.

    >>> page = render_searches("Roses & more", [], facts=[("17 of 20", "first hits agree")])
    >>> "<h1>Roses &amp; more</h1>" in page, "<dd>17 of 20</dd>" in page
    (True, True)
    """
    return render(
        "searches.html",
        title=title,
        lead=lead,
        facts=list(facts),
        commands=list(commands),
        searches=[_describe_search(n, search) for n, search in enumerate(searches, start=1)],
    )


def describe_order(mode: str) -> str:
    """Return how the hits of a search are sorted."""
    return _ORDERS.get(mode, "Best hits first")


class _Row(NamedTuple):
    word: WordContribution
    contribution: float
    before: float  # the sum of the contributions above
    percent: str
    maps: list[EmbeddedImage]
    crops: list[EmbeddedImage]  # of other images that show the word


def _describe_search(number: int, search: LabelledSearch) -> dict[str, object]:
    name = Path(search.query).name
    marks = [mark for hit in search.results if (mark := search.agrees(hit)) is not None]
    return {
        "name": name,
        "label": search.labels.get(search.query),
        "icon": embed_thumbnail(search.query, side=_ICON_SIDE, alt=f"Query {number}, {name}"),
        "image": embed_thumbnail(search.query, side=_QUERY_SIDE, alt=f"The query, {name}"),
        "marks": marks,
        "order": describe_order(search.results.mode),
        "n_words": len(search.results.query),
        "hits": [_describe_hit(search, hit) for hit in search.results],
        "explanations": [_describe_explanation(e) for e in search.explanations],
    }


def _describe_hit(search: LabelledSearch, hit: Hit) -> dict[str, object]:
    name = Path(hit.path).name
    return {
        "rank": hit.rank,
        "name": name,
        "image": embed_thumbnail(hit.path, side=_HIT_SIDE, alt=f"Hit {hit.rank}, {name}"),
        "label": search.labels.get(hit.path),
        "agrees": search.agrees(hit),
        "cosine": _format_cosine(hit.dense),
        "bm25": hit.sparse,
        "n_words": len(hit.words),
    }


def _describe_explanation(explanation: Explanation) -> dict[str, object]:
    contributions = explanation.rounded_contributions()
    shown = explanation.parts[:TOP]
    cut = cut_examples((e for part in shown for e in part.examples), side=_CROP_SIDE)
    rows = [
        _Row(
            part.word,
            contributions[n],
            sum(contributions[:n]),
            percent_of(part.word.contribution, explanation.positive_sum),
            _make_maps(explanation, part),
            [
                EmbeddedImage(encode_jpeg(cut[e]), f"{part.word.label} in {Path(e.path).name}")
                for e in part.examples
                if e in cut
            ],
        )
        for n, part in enumerate(shown)
    ]
    return {
        "name": Path(explanation.hit_path).name,
        "title": explanation.title,
        "points": explanation.sparse,
        "positive_sum": explanation.positive_sum,
        "terms": list(sum_up(explanation.match)),
        "rows": rows,
        "n_more": len(contributions[TOP:]),
        "shown_sum": sum(contributions[:TOP]),
        "rest": sum(contributions[TOP:]),
    }


def _make_maps(explanation: Explanation, part: Part) -> list[EmbeddedImage]:
    query = explanation.query_images[part.best_query] if explanation.query_images else None
    pairs = ((query, part.in_query, "query"), (explanation.hit_image, part.in_hit, "hit"))
    strength = explanation.part_visibility(part)
    return [
        EmbeddedImage(
            encode_highlight(image, grid, side=_MAP_SIDE, strength=strength),
            f"Where {part.word.label} is in the {role}",
        )
        for image, grid, role in pairs
        if image is not None and grid is not None
    ]


def _format_cosine(cosine: float | None) -> str:
    return "none" if cosine is None else f"{cosine:.3f}"
