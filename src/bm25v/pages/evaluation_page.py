"""A report as one page of HTML that needs nothing beside it."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bm25v.explain.markup import document, facts, text
from bm25v.pages import evaluation_quality as quality
from bm25v.pages import evaluation_settings as settings
from bm25v.pages import evaluation_words as words
from bm25v.pages.evaluation_markup import paragraph, section
from bm25v.pages.evaluation_quality import headline, title
from bm25v.pages.plots import share

if TYPE_CHECKING:
    from bm25v.research.evaluate import EvaluationResult
    from bm25v.research.report import Report

_HEADLINES = ("two-stage-200", "hybrid", "dense", "bm25v")
_STYLES = ("words.css", Path(__file__).with_name("evaluation.css"))  # charts, tables
_ABOUT = (
    "Which way to search finds pictures of the same class, how sure that is, and what it takes."
)
_LEGEND = """
<p><b>R@K</b> is the share of queries with a picture of their class among the first K answers; the
query itself is never one of them. <b>mAP</b> is the mean of the average precision, over the first
200 answers or, for landmarks, over all. Small figures are 95 % intervals: how much a mean varies
when queries are drawn again (bootstrap).</p>
<p><b>p</b> is how likely chance alone makes two systems differ as much over the same queries (a
paired sign-flip test). It is given for each comparison alone: of twenty that mean nothing, one is
below .05.</p>
<p><b>Operations</b> follow the paper: two for each number of a dense vector, five for each
picture that a word leads to. They are counts, not times.</p>"""


def page(report: "Report") -> str:
    """Return the page."""
    result = report.result
    body = f"""<header>
<small>Evaluation</small>
<h1>{text(result.name)}</h1>
<p class="lead">{_ABOUT}</p>
{facts("facts", _headlines(result))}
{facts("more", _details(report))}
<p class="learnt">Words learnt from: {text(result.vocabulary["learnt_from"])}.</p>
{_changed(report.changed_settings())}
</header>
<main>
{quality.systems(result)}
{quality.classes(result)}
{settings.ablations(report)}
{words.spread(report.zipf)}
{words.costs(report)}
{words.speeds(report)}
{_findings(result.problems)}
{_commands(report.commands)}
</main>
<footer>
<h2>How to read this page</h2>
{_LEGEND}
</footer>"""
    return document(f"Evaluation: {result.name}", body, styles=_STYLES, kind="evaluation")


def _headlines(result: "EvaluationResult") -> Iterator[tuple[str, str]]:
    figure = headline(result.metrics)
    for name in _HEADLINES:
        if name in result.systems:
            yield share(result.systems[name].metrics[figure].mean), f"{figure}, {title(name)}"


def _details(report: "Report") -> Iterator[tuple[str, str]]:
    result = report.result
    dataset, words = result.dataset, result.vocabulary
    yield f"{len(dataset.gallery):,}", "pictures"
    yield f"{len(dataset.queries):,}", "queries"
    yield f"{len({item.label for item in dataset.gallery}):,}", "classes"
    yield dataset.protocol, "protocol"
    yield words["backbone"], "backbone"
    yield words["name"], "vocabulary"
    yield words["fingerprint"], "its fingerprint"
    yield f"{words['words']:,}", "words there are"
    yield str(words["k_post"]), "words a picture (k_post)"
    yield report.version, "version of bm25v"


def _changed(settings: Mapping[str, str]) -> str:
    changes = ", ".join(f"{name} {value}" for name, value in settings.items())
    return paragraph(f"Settings changed: {text(changes)}.", "learnt") if changes else ""


def _findings(problems: Sequence[str]) -> str:
    listed = "".join(f"<li>{text(line)}</li>" for line in problems)
    shown = f'<ul class="plain">{listed}</ul>' if problems else paragraph("Nothing was found.")
    return section("data", "What is wrong with the data", shown)


def _commands(commands: Sequence[str]) -> str:
    listed = text("\n".join(commands))
    return section("repeat", "How to repeat this", f"<pre>{listed}</pre>")
