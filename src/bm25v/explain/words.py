"""A vocabulary as one page of HTML that needs nothing beside it: figures, charts, sample words."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from bm25v.errors import VocabularyError
from bm25v.explain import charts
from bm25v.explain.charts import percent
from bm25v.explain.markup import document, facts, picture, text
from bm25v.explain.samples import FILE_NAME, Example, Samples, SampleWord
from bm25v.vocabulary import Vocabulary

LOG_NAME = "training.jsonl"

_LISTED = 2000  # silent words at most
_FIGURES = """
<p>A picture is cut into patches, and each patch is described by its few strongest <b>visual
words</b>. <b>Explained variance</b> is how much of the patches the words can restore. A
<b>dead</b> word was no longer active when training ended. A <b>silent</b> one is active in none of
the patches looked at, a <b>dense</b> one in more than a tenth of them: the figures are of held-out
patches, the chart is of the sample it names. <b>Coherence</b> is how much each word's direction
resembles the one most like it, from 0 to 1.</p>"""
_PICTURES = """
<p>A frame marks the patch where the word is strongest. A picture glows where a word is active
<span class="glow" aria-hidden="true"></span> from faint to its strongest place; grey is where
the word is not.</p>"""

Points = list[tuple[int, float]]


def page(vocabulary: Vocabulary) -> str:
    """Return the page about a vocabulary, with what there is in its folder.

    >>> text = page(Vocabulary.load("toy"))
    >>> "<dd>192</dd>" in text, "No curve" in text, "No densities" in text
    (True, True, True)
    """
    folder = vocabulary.folder
    samples = _samples(vocabulary, folder) if folder else None
    points = read_log(folder / LOG_NAME) if folder else []
    body = f"""<header>
<small>Vocabulary</small>
<h1>{text(vocabulary.name)}</h1>
<p class="lead">{_lead(vocabulary)}</p>
{facts("facts", _headlines(vocabulary))}
{facts("more", _details(vocabulary))}
</header>
<main>
<section class="charts">
{_curve(vocabulary, points)}
{_histogram(samples)}
</section>
{_words(vocabulary, samples)}
</main>
<footer>
<h2>How to read this page</h2>
{_FIGURES}{_PICTURES if samples is not None else ""}
</footer>"""
    title = f"Visual words: {vocabulary.name}"
    return document(title, body, styles=["words.css"])


def read_log(path: Path) -> Points:
    """Return the unexplained share at each step; a run that went on may have logged some twice."""
    found: dict[int, float] = {}
    lines = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    for line in lines.splitlines():
        try:
            entry = json.loads(line)
            step, fvu = int(entry["step"]), float(entry["fvu"])
        except (KeyError, TypeError, ValueError):  # a line torn when a run was killed
            continue
        if math.isfinite(fvu):
            found[step] = fvu
    return sorted(found.items())


def _samples(vocabulary: Vocabulary, folder: Path) -> Samples | None:
    samples = Samples.load(folder)
    if samples is not None and len(samples.counts_v) != vocabulary.n_words:
        raise VocabularyError(f"{folder / FILE_NAME} is of another vocabulary: delete it")
    return samples


def _lead(vocabulary: Vocabulary) -> str:
    about = _part(vocabulary.report, "data").get("about")
    learnt = f" Learnt from: {text(str(about)).rstrip('.')}." if about else ""
    words = f"{vocabulary.n_words:,} visual words"
    return f"{words} for pictures as {text(vocabulary.backbone_name)} sees them.{learnt}"


def _headlines(vocabulary: Vocabulary) -> Iterator[tuple[str, str]]:
    training, data = (_part(vocabulary.report, name) for name in ("training", "data"))
    fvu, dead, pictures = training.get("fvu"), training.get("dead_share"), data.get("pictures")
    yield f"{vocabulary.n_words:,}", "words"
    if _is_number(fvu):
        yield f"{1 - fvu:.1%}", "of the variance explained"
    if _is_number(dead):
        yield f"{dead:.1%}", "dead words"
    if _is_number(pictures):
        yield f"{pictures:,}", "pictures to learn from"


def _details(vocabulary: Vocabulary) -> Iterator[tuple[str, str]]:
    training, data = (_part(vocabulary.report, name) for name in ("training", "data"))
    yield vocabulary.backbone_name, "backbone"
    yield str(vocabulary.sae.k), "words a patch (k)"
    yield str(vocabulary.k_post), "words a picture (k_post)"
    for part, key, about, form in (
        (data, "patches", "patches", "{:,}"),
        (training, "held_out_patches", "held-out patches", "{:,}"),
        (training, "l0", "active words a patch (L0)", "{:.1f}"),
        (training, "silent_share", "silent words", "{:.1%}"),
        (training, "dense_share", "dense words", "{:.1%}"),
        (training, "coherence", "coherence", "{:.2f}"),
    ):
        if _is_number(part.get(key)):
            yield form.format(part[key]), about
    yield vocabulary.fingerprint, "fingerprint"


def _curve(vocabulary: Vocabulary, points: Points) -> str:
    head = "<h2>Training</h2><p>Share of the variance left unexplained (FVU), step by step</p>"
    if not points:
        return _missing(head, "No curve", LOG_NAME)
    final = _part(vocabulary.report, "training").get("fvu")
    return f"<div>{head}{charts.curve(points, final if _is_number(final) else None)}</div>"


def _histogram(samples: Samples | None) -> str:
    head = "<h2>Density</h2><p>Words by the share of patches that activate them</p>"
    if samples is None:
        return _missing(head, "No densities", FILE_NAME)
    density_v = samples.counts_v / max(samples.patches, 1)
    silent = np.flatnonzero(samples.counts_v == 0)
    seen = f"Counted in {samples.patches:,} patches of {samples.pictures:,} random pictures."
    return f"""<div>{head}{charts.histogram(density_v)}
<small>{seen}</small>{_silent(silent.tolist()) if len(silent) else ""}</div>"""


def _silent(words: list[int]) -> str:
    more = f" and {len(words) - _LISTED:,} more" if len(words) > _LISTED else ""
    listed = ", ".join(map(str, words[:_LISTED])) + more
    return f"<details><summary>{len(words):,} silent words</summary><p>{listed}</p></details>"


def _words(vocabulary: Vocabulary, samples: Samples | None) -> str:
    head = "<h2>Sample words</h2>"
    if samples is None:
        return f"<section>{_missing(head, 'No sample words', FILE_NAME)}</section>"
    shown = "".join(_word(vocabulary, samples, word) for word in samples.words)
    return f"""<section>{head}
<p>From frequent to rare: where each word is in its best picture, then the places where it is
strongest in its {max((len(word.examples) for word in samples.words), default=0)} best pictures</p>
<ol class="samples">{shown}</ol></section>"""


def _word(vocabulary: Vocabulary, samples: Samples, word: SampleWord) -> str:
    name = vocabulary.word_names.get(word.word) or f"word {word.word}"
    share = percent(int(samples.counts_v[word.word]) / max(samples.patches, 1))
    heat_map = picture(word.heat_map, f"Where {name} is in its best picture")
    examples = "".join(_example(name, one) for one in word.examples)
    return f"""<li><div><h3>{text(name)}</h3>
<p><b>{share}</b> of patches</p>
<small>in {word.pictures:,} of {samples.pictures:,} pictures</small></div>
<div class="whole">{heat_map}</div><ol>{examples}</ol></li>"""


def _example(name: str, one: Example) -> str:
    left, top, width, height = (f"{100 * share:.1f}%" for share in one.patch)
    frame = f'<i style="left:{left};top:{top};width:{width};height:{height}"></i>'
    activation = f"activation {one.activation:.2f}"
    return f'<li title="{activation}">{picture(one.jpeg, f"{name}, {activation}")}{frame}</li>'


def _missing(head: str, what: str, file_name: str) -> str:
    return (
        f'<div>{head}<p class="missing">{what}: this vocabulary has no <code>{file_name}</code>. '
        "<code>bm25v train</code> leaves one in the folders it writes.</p></div>"
    )


def _part(report: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = report.get(name)
    return part if isinstance(part, Mapping) else {}


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and math.isfinite(value)
