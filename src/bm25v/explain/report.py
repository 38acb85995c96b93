"""Searches as one page of HTML that needs nothing beside it: pictures, hits, and why."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bm25v import images
from bm25v.display import count
from bm25v.errors import ImageError
from bm25v.explain import crops, markup
from bm25v.explain.explanation import Explanation, Part, explain, percent_of
from bm25v.explain.markup import SCALE, bar, document, picture, text
from bm25v.gallery import Gallery, Hit, Results
from bm25v.gallery.gallery import Mode
from bm25v.vocabulary import Encoding

TOP = 5  # words an explanation shows
_ORDERS = {
    "two-stage": "The best by BM25, ordered by cosine",
    "sparse": "Ordered by BM25",
    "dense": "All pictures, ordered by cosine",
    "hybrid": "The best by BM25, ordered by cosine and BM25",
}
_HEADS = f"""<div class="heads"><div class="maps"><small>query</small><small>hit</small></div>
{SCALE}</div>"""
_HEAT_MAP = 220  # pixels of the longer side
_MARKS = {True: ("same", "✓", "the query's label"), False: ("other", "✗", "another label")}


@dataclass(frozen=True)
class Search:
    """One search as the page shows it; `labels` says what a path shows, where known."""

    query: str
    n_words: int  # of the query
    results: Results
    explanations: tuple[Explanation, ...] = ()  # of the first hits
    labels: Mapping[str, str] = field(default_factory=dict)

    def agrees(self, hit: Hit) -> bool | None:
        """Say whether a hit has the query's label; None if one of them is not known."""
        wanted, found = self.labels.get(self.query), self.labels.get(hit.path)
        return None if wanted is None or found is None else wanted == found


def search(
    gallery: Gallery,
    query: str,
    *,
    k: int = 5,
    mode: Mode = "two-stage",
    candidates: int = 200,
    explained: int = 1,
    labels: Mapping[str, str] | None = None,
    encoding: Encoding | None = None,
) -> Search:
    """Search with the picture at a path, encoded already or not, and explain the first hits."""
    encoding = encoding or gallery.vocabulary.encode(query)
    results = gallery.search_encoding(encoding, k=k, mode=mode, candidates=candidates)
    explanations = tuple(
        explain(gallery, query, hit.path, encoding=encoding) for hit in results.hits[:explained]
    )
    return Search(query, len(encoding.bag.words), results, explanations, labels or {})


def page(
    title: str,
    searches: Sequence[Search],
    *,
    lead: str = "",
    facts: Iterable[tuple[str, str]] = (),
) -> str:
    """Return the page: a title, a sentence, facts as (value, what it is), and the searches.

    >>> text = page("Roses & more", [], facts=[("17 of 20", "first hits agree")])
    >>> "<h1>Roses &amp; more</h1>" in text, "<dd>17 of 20</dd>" in text
    (True, True)
    """
    overview = "".join(_overview(n, one) for n, one in enumerate(searches, start=1))
    sections = "\n".join(_section(n, one) for n, one in enumerate(searches, start=1))
    body = f"""<header>
<h1>{text(title)}</h1>
{f'<p class="lead">{text(lead)}</p>' if lead else ""}
{markup.facts("facts", facts)}
{f'<nav aria-label="Queries">{overview}</nav>' if len(searches) > 1 else ""}
</header>
<main>
{sections}
</main>
<footer>
<h2>How to read this page</h2>
<p><b>BM25</b> is the sum of what the shared words give. A word gives more the rarer it is in the
gallery (idf) and the more of it there is in the hit (tf). <b>Cosine</b> compares the dense vectors
of both pictures; it stands beside the sum, not in it.</p>
<p>A picture glows where a word is active <span class="glow" aria-hidden="true"></span> from
faint to its strongest place in that picture; grey is where the word is not.</p>
</footer>"""
    return document(title, body, styles=["report.css"])


def _overview(number: int, one: Search) -> str:
    marks = [mark for hit in one.results if (mark := one.agrees(hit)) is not None]
    dots = "".join(f'<i class="{_MARKS[mark][0]}"></i>' for mark in marks)
    meaning = f'role="img" aria-label="{sum(marks)} of {len(marks)} hits have its label"'
    picture = _thumbnail(one.query, 96, f"Query {number}, {Path(one.query).name}")
    line = f'<span class="dots" {meaning}>{dots}</span>' if marks else ""
    return f'<a href="#query-{number}">{picture}{line}</a>'


def _section(number: int, one: Search) -> str:
    hits = "".join(_hit(one, hit) for hit in one.results)
    explanations = "".join(
        _explanation(rank, explanation, is_open=number == 1 and rank == 1)
        for rank, explanation in enumerate(one.explanations, start=1)
    )
    name, label = text(Path(one.query).name), one.labels.get(one.query)
    return f"""<section id="query-{number}">
<div class="search">
<figure class="query">
{_thumbnail(one.query, 440, f"The query, {Path(one.query).name}")}
<figcaption><small>Query {number}</small><h2>{name}</h2>
{f'<span class="label">{text(label)}</span>' if label else ""}</figcaption>
</figure>
<div>
<small>{_ORDERS.get(one.results.mode, "Hits, best first")}</small>
{f'<ol class="hits">{hits}</ol>' if hits else "<p>No picture shares a word with the query.</p>"}
</div>
</div>
{explanations}
</section>"""


def _hit(one: Search, hit: Hit) -> str:
    name, label = Path(hit.path).name, one.labels.get(hit.path)
    agrees = one.agrees(hit)
    kind, sign, meaning = ("", "", "label") if agrees is None else _MARKS[agrees]
    return f"""<li>
<div class="frame">{_thumbnail(hit.path, 320, f"Hit {hit.rank}, {name}")}</div>
<p class="name" title="{text(name)}"><span>{hit.rank}</span> {text(name)}</p>
{f'<p class="label {kind}" title="{meaning}">{sign} {text(label)}</p>' if label else ""}
<dl><div><dt>cosine</dt><dd>{_cosine(hit.dense)}</dd></div><div><dt>BM25</dt><dd>{hit.sparse:.2f}</dd>
</div><div><dt>words</dt><dd>{len(hit.words)} of {one.n_words}</dd></div></dl>
</li>"""


def _explanation(rank: int, explanation: Explanation, *, is_open: bool) -> str:
    name = text(Path(explanation.hit_path).name)
    rows, before = [], 0.0
    for part in explanation.parts[:TOP]:
        rows.append(_word(explanation, part, before))
        before += part.word.contribution
    n_words, n_more = len(explanation.parts), len(explanation.parts[TOP:])
    if n_more:
        rest = sum(explanation.rounded_contributions()[TOP:])
        more, value = count(n_more, "more word"), f"<b>+{rest:.2f}</b>"
        last = bar(explanation.sparse - rest, rest, explanation.sparse)
        rows.append(f'<li class="rest"><div><h3>{more} {value}</h3>{last}</div></li>')
    words = count(n_words, "shared word")
    return f"""<details{" open" * is_open}>
<summary>Why hit {rank}, {name}: <b>{words}</b> add up to <b>{explanation.sparse:.2f}</b></summary>
{_HEADS if rows else "<p>No shared words.</p>"}
<ol class="words">{"".join(rows)}</ol>
<p class="sum"><span>BM25 score</span> <b>{explanation.sparse:.2f}</b></p>
<p class="sum beside"><span>Cosine, beside the sum</span> <b>{_cosine(explanation.dense)}</b></p>
</details>"""


def _word(explanation: Explanation, part: Part, before: float) -> str:
    word, score = part.word, explanation.sparse
    places = (
        (explanation.query_images[part.best_query], part.in_query, "query"),
        (explanation.hit_image, part.in_hit, "hit"),
    )
    maps = "".join(
        picture(
            crops.encode_heat_map(image, grid, side=_HEAT_MAP),
            f"Where {word.label} is in the {which}",
        )
        for image, grid, which in places
        if image is not None and grid is not None
    )
    return f"""<li><div class="maps">{maps}</div>
<div><h3>{text(word.label)} <b>+{word.contribution:.2f}</b></h3>
{bar(before, word.contribution, score)}
<p>{percent_of(word.contribution, score)} of the score</p>
<small>idf {word.idf:.2f} · tf {word.query_tf:.2f} in the query, {word.tf:.2f} in the hit</small>
</div></li>"""


def _cosine(dense: float | None) -> str:
    return "none" if dense is None else f"{dense:.3f}"


def _thumbnail(path: str, side: int, alt: str) -> str:
    try:
        return picture(images.make_thumbnail(path, side=side), alt)
    except ImageError as error:
        return f'<p class="gone">{text(alt)}: {text(str(error))}</p>'
