"""Searches as one page of HTML that needs nothing beside it: pictures, hits, and why."""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bm25v import images
from bm25v.errors import ImageError
from bm25v.explain.drawing import remainder
from bm25v.explain.explanation import Explanation, Part, explain
from bm25v.explain.heatmaps import overlay
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
_HEADS = '<div class="heads"><div class="maps"><small>query</small><small>hit</small></div></div>'
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
    shown_facts = "".join(f"<div><dt>{_text(w)}</dt><dd>{_text(v)}</dd></div>" for v, w in facts)
    overview = "".join(_overview(n, one) for n, one in enumerate(searches, start=1))
    sections = "\n".join(_section(n, one) for n, one in enumerate(searches, start=1))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{_text(title)}</title>
<style>
{Path(__file__).with_name("report.css").read_text(encoding="utf-8")}</style>
</head>
<body>
<header>
<h1>{_text(title)}</h1>
{f'<p class="lead">{_text(lead)}</p>' if lead else ""}
{f'<dl class="facts">{shown_facts}</dl>' if shown_facts else ""}
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
</footer>
</body>
</html>
"""


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
    name, label = _text(Path(one.query).name), one.labels.get(one.query)
    return f"""<section id="query-{number}">
<div class="search">
<figure class="query">
{_thumbnail(one.query, 440, f"The query, {Path(one.query).name}")}
<figcaption><small>Query {number}</small><h2>{name}</h2>
{f'<span class="label">{_text(label)}</span>' if label else ""}</figcaption>
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
<p class="name" title="{_text(name)}"><span>{hit.rank}</span> {_text(name)}</p>
{f'<p class="label {kind}" title="{meaning}">{sign} {_text(label)}</p>' if label else ""}
<dl><div><dt>cosine</dt><dd>{_cosine(hit.dense)}</dd></div><div><dt>BM25</dt><dd>{hit.sparse:.2f}</dd>
</div><div><dt>words</dt><dd>{len(hit.words)} of {one.n_words}</dd></div></dl>
</li>"""


def _explanation(rank: int, explanation: Explanation, *, is_open: bool) -> str:
    name = _text(Path(explanation.hit_path).name)
    rows, before = [], 0.0
    for part in explanation.parts[:TOP]:
        rows.append(_word(explanation, part, before))
        before += part.word.contribution
    n_words, n_more = len(explanation.parts), len(explanation.parts[TOP:])
    if n_more:
        rest = remainder(explanation, top=TOP)
        more = f"{n_more} more word{'s' * (n_more > 1)}"
        value = f"<b>+{rest:.2f}</b>"
        bar = _bar(explanation.sparse - rest, rest, explanation.sparse)
        rows.append(f'<li class="rest"><div><h3>{more} {value}</h3>{bar}</div></li>')
    words = f"{n_words} shared word{'s' * (n_words != 1)}"
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
        (explanation.query_images[part.query], part.in_query, "query"),
        (explanation.hit_image, part.in_hit, "hit"),
    )
    maps = "".join(
        _picture(_heat_map(image, grid), f"Where {word.label} is in the {which}")
        for image, grid, which in places
        if image is not None and grid is not None
    )
    return f"""<li><div class="maps">{maps}</div>
<div><h3>{_text(word.label)} <b>+{word.contribution:.2f}</b></h3>
{_bar(before, word.contribution, score)}
<p>{100 * word.contribution / (score or 1):.0f}% of the score</p>
<small>idf {word.idf:.2f} · tf {word.query_tf:.2f} in the query, {word.tf:.2f} in the hit</small>
</div></li>"""


def _bar(before: float, value: float, whole: float) -> str:
    start, size = (100 * part / (whole or 1) for part in (before, value))
    return f'<div class="bar" style="--start:{start:.2f}%;--size:{size:.2f}%"><i></i></div>'


def _cosine(dense: float | None) -> str:
    return "none" if dense is None else f"{dense:.3f}"


def _heat_map(image_hwc: NDArray[np.uint8], grid: NDArray[np.float32]) -> bytes:
    height, width = image_hwc.shape[:2]
    scale = 220 / max(width, height)
    size = max(8, round(width * scale)), max(8, round(height * scale))
    small = np.array(Image.fromarray(image_hwc).resize(size, Image.Resampling.BICUBIC))
    file = io.BytesIO()
    Image.fromarray(overlay(small, grid)).save(file, "JPEG", quality=80)
    return file.getvalue()


def _thumbnail(path: str, side: int, alt: str) -> str:
    try:
        return _picture(images.thumbnail(path, side=side), alt)
    except ImageError as error:
        return f'<p class="gone">{_text(alt)}: {_text(str(error))}</p>'


def _picture(jpeg: bytes, alt: str) -> str:
    data = base64.b64encode(jpeg).decode()
    return f'<img src="data:image/jpeg;base64,{data}" alt="{_text(alt)}">'


def _text(text: str) -> str:
    """Escape for HTML; file names that are not Unicode lose what is not."""
    return escape(text.encode(errors="replace").decode())
