"""The hits of one search become a page to look at, a table, or JSON.

In: `Results` of an open gallery. Out: HTML, or a file in the format that its suffix names. On the
page each hit is a card; it opens a panel with the words that it shares with the query, and where
they are in both images. Not this module's job: searching, and finding out where words are
(`bm25v.explanations`).
"""

import csv
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bm25v import images
from bm25v.display import count, format_json
from bm25v.errors import Bm25vError, WrongUse
from bm25v.explanations.crops import crop_word, encode_highlight, encode_jpeg, shrink
from bm25v.explanations.explanation import ExplainedHits, Explanation, Part
from bm25v.explanations.maps import combine_maps
from bm25v.files import replace_file
from bm25v.pages.render import EmbeddedImage, embed_thumbnail, fixed, render
from bm25v.pages.searches_page import describe_order
from bm25v.progress import Progress, no_progress
from bm25v.search import Hit, Results, WordContribution
from bm25v.search.regions import Box, as_box

PAGE_SUFFIXES = (".html", ".htm")
SUFFIXES = (*PAGE_SUFFIXES, ".csv", ".json")
EXPLAINED_HITS = 24  # whose panels have images: each is encoded again, and makes the file larger

_CARD_WORDS, _PANEL_WORDS, _QUERY_WORDS = 3, 6, 12  # that are shown
_HIT_SIDE, _QUERY_SIDE, _MAP_SIDE, _CROP_SIDE = 320, 480, 320, 96  # pixels
_CSV_COLUMNS = ("rank", "path", "score", "strength", "coverage", "words")

Command = Callable[[str], str]  # the path of a hit → the command that explains it


def check_output(path: Path) -> None:
    """Refuse a path that `write_results` cannot write to, before any work is done."""
    if path.suffix.lower() not in SUFFIXES:
        allowed = ", ".join(SUFFIXES)
        raise WrongUse(
            f"{path} has none of the possible endings: name a file that ends in {allowed}"
        )
    if not path.parent.is_dir():
        raise WrongUse(f"{path}: the folder {path.parent} does not exist: create it first")


def write_results(
    results: Results,
    path: Path,
    explain_hits: Callable[..., ExplainedHits] | None,
    *,
    command: Command | None = None,
    progress: Progress = no_progress,
) -> None:
    """Write results in the format of the suffix: a page, a table of hits (CSV), or JSON.

    A page needs `explain_hits`: the paths of hits → why these match.
    """
    check_output(path)
    suffix = path.suffix.lower()
    if suffix == ".json":
        content: str | bytes = format_json(results.to_dict()) + "\n"
    elif suffix == ".csv":
        content = format_csv(results)
    else:
        if explain_hits is None:
            raise WrongUse(f"{results!r} has no open gallery: save the results of a new search")
        hits = [hit.path for hit in results.hits[:EXPLAINED_HITS]]
        content = render_results(results, explain_hits(hits, progress=progress), command)
    try:
        replace_file(path, content)
    except OSError as error:
        raise Bm25vError(f"{path} cannot be written: {error.strerror}") from error


def format_csv(results: Results) -> bytes:
    """Return one line per hit, in UTF-8; bytes of a path that are not text stay as they are."""
    file = io.StringIO(newline="")
    table = csv.writer(file)
    table.writerow(_CSV_COLUMNS)
    for hit in results:
        words = ", ".join(f"{word.label} ({word.contribution:.2f})" for word in hit.words)
        figures = (f"{hit.score:.6f}", hit.strength or "", f"{hit.coverage:.6f}")
        table.writerow((hit.rank, hit.path, *figures, words))
    return file.getvalue().encode(errors="surrogateescape")


def render_results(
    results: Results, explained: ExplainedHits, command: Command | None = None
) -> str:
    """Return the page; hits that are not among those explained have a panel without images."""
    by_path = {explanation.hit_path: explanation for explanation in explained.explanations}
    figures = list(_query_figures(explained))
    return render(
        "results.html",
        title=_make_title(explained, figures),
        figures=figures,
        text=explained.query.text,
        query_words=[] if explained.query.images else results.query[:_QUERY_WORDS],
        summary=_summarise(results),
        is_weak=results.is_weak,
        order=describe_order(results.mode),
        notes=results.notes,
        hits=[_describe_hit(hit, by_path.get(hit.path), command) for hit in results],
    )


class _Figure(NamedTuple):
    role: str
    name: str
    image: EmbeddedImage
    region: Box | None = None


class _Row(NamedTuple):
    """One word; `before` is the sum of the contributions above it."""

    word: WordContribution
    contribution: float
    before: float
    crops: list[EmbeddedImage]


def _query_figures(explained: ExplainedHits) -> Iterator[_Figure]:
    """Yield every image that the query names."""
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
    if results.is_weak:
        return "No good match. The closest are:"
    n_by_strength = {
        strength: sum(hit.strength == strength for hit in results)
        for strength in ("strong", "fair", "weak")
    }
    strengths = ", ".join(f"{n} {strength}" for strength, n in n_by_strength.items() if n)
    return count(len(results), "hit") + (f": {strengths}" if strengths else "")


def _describe_hit(
    hit: Hit, explanation: Explanation | None, command: Command | None
) -> dict[str, Any]:
    path = Path(hit.path)
    words = [word.label for word in hit.words if word.contribution > 0]
    return {
        "rank": hit.rank,
        "path": hit.path,
        "name": path.name,
        "folder": path.parent.name,
        "image": embed_thumbnail(hit.path, side=_HIT_SIDE, alt=f"Hit {hit.rank}, {path.name}"),
        "strength": hit.strength,
        "score": fixed(hit.score, 2 if hit.mode in ("words", "sparse") else 3),
        "formula": hit.formula,
        "sparse": hit.sparse,
        "coverage": hit.coverage,
        "words": words[:_CARD_WORDS],
        "maps": [] if explanation is None else list(_make_maps(explanation)),
        "rows": _make_rows(hit, explanation),
        "n_more": len(hit.words[_PANEL_WORDS:]),
        "rest": sum(word.contribution for word in hit.words[_PANEL_WORDS:]),
        "positive_sum": sum(max(0.0, word.contribution) for word in hit.words),
        "notes": () if explanation is None else explanation.notes,
        "command": None if command is None else command(hit.path),
    }


def _make_maps(explanation: Explanation) -> Iterator[tuple[str, EmbeddedImage]]:
    """Yield each image of the query, then the hit, with what matched."""
    in_queries, in_hit = combine_maps(explanation)
    pairs = [("Query", *pair) for pair in zip(explanation.query_images, in_queries, strict=True)]
    if explanation.hit_image is not None and in_hit is not None:
        pairs.append(("Hit", explanation.hit_image, in_hit))
    for role, pixels, grid in pairs:
        strength = explanation.visibility
        highlighted = encode_highlight(pixels, grid, side=_MAP_SIDE, strength=strength)
        yield role, EmbeddedImage(highlighted, f"What matched in the {role.lower()}")


def _make_rows(hit: Hit, explanation: Explanation | None) -> list[_Row]:
    parts = {} if explanation is None else {part.word.word: part for part in explanation.parts}
    rows: list[_Row] = []
    for word in hit.words[:_PANEL_WORDS]:
        part = parts.get(word.word)
        crops = [] if part is None or explanation is None else list(_crop_part(explanation, part))
        before = rows[-1].before + rows[-1].contribution if rows else 0.0
        rows.append(_Row(word, word.contribution, before, crops))
    return rows


def _crop_part(explanation: Explanation, part: Part) -> Iterator[EmbeddedImage]:
    """Yield what the word is in the query, if it is in one of its images, and in the hit."""
    query = explanation.query_images[part.best_query] if explanation.query_images else None
    pairs = ((query, part.in_query, "query"), (explanation.hit_image, part.in_hit, "hit"))
    for pixels, grid, role in pairs:
        if pixels is not None and grid is not None and grid.any():
            crop = images.resize_image(crop_word(pixels, grid), width=_CROP_SIDE, height=_CROP_SIDE)
            yield EmbeddedImage(encode_jpeg(crop), f"{part.word.label} in the {role}")
