"""The hits of a search as a page, a table (CSV) or JSON.

On the page each hit is a card that opens a panel: its explanation.
"""

import csv
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bm25v.display import count, format_json
from bm25v.explain.explanation import ExplainedHits, Explanation
from bm25v.explain.heatmaps import encode_jpeg, shrink
from bm25v.explain.sums import list_reasons, list_shares
from bm25v.progress import Progress, no_progress
from bm25v.render.commands import explain_command
from bm25v.render.explanation_page import describe, embed_photos
from bm25v.render.html import (
    PAGE_SUFFIXES,
    EmbeddedImage,
    check_output,
    embed_thumbnail,
    render,
    write_output,
)
from bm25v.search import Hit, Results
from bm25v.search.regions import Box, as_box

SUFFIXES = (*PAGE_SUFFIXES, ".csv", ".json")
EXPLAINED_HITS = 24  # whose panels have images: each is encoded again, and makes the file larger

_CARD_WORDS, _PANEL_WORDS, _QUERY_WORDS = 3, 6, 12  # that are shown
_HIT_SIDE, _QUERY_SIDE, _MAP_SIDE = 320, 480, 320  # pixels


def write_results(
    results: Results,
    path: Path,
    *,
    words: int | None = None,
    progress: Progress = no_progress,
) -> None:
    """Write results in the format of the suffix: a page, a table of hits (CSV), or JSON.

    `words` limits those of each hit in a table and JSON. A page needs the open gallery.
    """
    check_output(path, SUFFIXES)
    suffix = path.suffix.lower()
    if suffix == ".json":
        write_output(path, format_json(results.to_dict(words=words)) + "\n")
    elif suffix == ".csv":
        write_output(path, format_csv(results, words=words))
    else:
        explained = results[:EXPLAINED_HITS].explain(progress=progress)
        write_output(path, render_results(results, explained))


def format_csv(results: Results, *, words: int | None = None) -> bytes:
    """Return one line per hit, in UTF-8; bytes of a path that are not text stay as they are."""
    file = io.StringIO(newline="")
    table = csv.writer(file)
    table.writerow(("rank", "path", "score", "strength", "coverage", "words"))
    for hit in results:
        shown = (f"{word.label} ({word.contribution:.2f})" for word in hit.words[:words])
        figures = (f"{hit.score:.6f}", hit.strength or "", f"{hit.coverage:.6f}")
        table.writerow((hit.rank, hit.path, *figures, ", ".join(shown)))
    return file.getvalue().encode(errors="surrogateescape")


def render_results(results: Results, explained: ExplainedHits) -> str:
    """Return the page; hits that are not among those explained have a panel without photos."""
    explanations = {explanation.hit_path: explanation for explanation in explained.explanations}
    figures, text = list(_query_figures(explained)), explained.query.text
    return render(
        "results.html",
        title=_make_title(explained, figures),
        figures=figures,
        text=text,
        query_words=[] if explained.query.images or text else results.query[:_QUERY_WORDS],
        summary=_summarise(results),
        results=results,
        cards=[_make_card(hit, explanations.get(hit.path)) for hit in results],
    )


class _Figure(NamedTuple):
    role: str
    name: str
    image: EmbeddedImage
    region: Box | None = None


def _query_figures(explained: ExplainedHits) -> Iterator[_Figure]:
    query = explained.query
    for n, (source, pixels) in enumerate(zip(query.images, explained.query_images, strict=True)):
        name = Path(source).name if isinstance(source, str | os.PathLike) else ""
        photo = EmbeddedImage(encode_jpeg(shrink(pixels, side=_QUERY_SIDE)), f"The query {name}")
        yield _Figure("Query", name, photo, as_box(query.region) if n == 0 else None)
    others = {"More like": query.like, "Less like": (*query.unlike, *query.negative)}
    for role, sources in others.items():
        for source in sources:
            if isinstance(source, str | os.PathLike):
                name = Path(source).name
                yield _Figure(role, name, embed_thumbnail(str(source), side=_QUERY_SIDE, alt=name))


def _make_title(explained: ExplainedHits, figures: list[_Figure]) -> str:
    if explained.query.text is not None:
        return f"“{explained.query.text}”"
    if figures:
        more = f" and {count(len(figures) - 1, 'more image')}" if len(figures) > 1 else ""
        return f"Images like {figures[0].name or 'this one'}{more}"
    return "Images with these words"


def _summarise(results: Results) -> str:
    if not results:
        return f"No match: {results.no_match}"
    if results.is_weak and not results.not_understood:
        return "No good match. The closest are:"
    n_by_strength = {
        strength: sum(hit.strength == strength for hit in results)
        for strength in ("strong", "fair", "weak")
    }
    strengths = ", ".join(f"{n} {strength}" for strength, n in n_by_strength.items() if n)
    return count(len(results), "hit") + (f": {strengths}" if strengths else "")


def _make_card(hit: Hit, explanation: Explanation | None) -> dict[str, Any]:
    name = os.path.basename(hit.path)
    shares = [f"{label} {share:.0%}" for label, share in list_shares(hit)]
    if explanation is None:
        named = (w.name for w in list_reasons(hit) if w.name is not None and w.contribution > 0)
    else:
        named = (group.label for group in explanation.groups if group.kind == "words")
    return {
        "hit": hit,
        "image": embed_thumbnail(hit.path, side=_HIT_SIDE, alt=f"Hit {hit.rank}, {name}"),
        "words": shares or [*dict.fromkeys(named)][:_CARD_WORDS],
        "photos": list(embed_photos(explanation, side=_MAP_SIDE)) if explanation else [],
        "explained": describe(explanation, words=_PANEL_WORDS) if explanation else None,
        "command": None if explanation is None else explain_command(explanation),
    }
