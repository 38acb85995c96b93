"""The part of a report's page about what other settings would do."""

from typing import TYPE_CHECKING

from bm25v.explain.markup import text
from bm25v.pages import plots
from bm25v.pages.evaluation_markup import paragraph, plot, section, table
from bm25v.pages.evaluation_quality import COLOURS, headline
from bm25v.pages.plots import share

if TYPE_CHECKING:
    from bm25v.research.ablate import AblationResult
    from bm25v.research.report import Report

_TRIALS = {
    "k_post": "How many words are kept of a picture",
    "k_query": "How many words of the query are asked for",
    "scoring": "How words are compared: by BM25, or in other ways",
}
_TRIED = ("R@1", "R@10", "R@100", "mAP", "mAP easy", "mAP medium", "mAP hard")


def ablations(report: "Report") -> str:
    """Return what other settings would do to BM25-V and to what follows it."""
    if not report.ablations:
        return ""
    parts = "".join(_ablation(report, grid) for grid in report.ablations)
    about = "One setting changed at a time; the line that stands out is used in the rest."
    return section(
        "settings", "What settings do", paragraph(about), f'<div class="charts">{parts}</div>'
    )


def _ablation(report: "Report", grid: "AblationResult") -> str:
    (axis,) = grid.axes
    figure = headline(list(grid.dense))
    columns = [("bm25v", one) for one in grid.dense if one in _TRIED] + [("two-stage", figure)]
    values = [cell.values[axis] for cell in grid.trials]
    rows = [
        [
            text(value),
            *(share(cell.metrics[system][one]) for system, one in columns),
            f"{cell.postings:,.0f}",
        ]
        for value, cell in zip(values, grid.trials, strict=True)
    ]
    used = report.setting(axis)
    heads = [text(axis), *(one for _, one in columns[:-1]), f"{figure}, two-stage", "postings read"]
    listed = table(heads, rows, chosen=values.index(used) if used in values else None)
    about = _TRIALS.get(axis, "")
    if not all(value.isdecimal() for value in values) or len(values) < 2:
        return f'<div class="wide"><h3>{text(axis)}</h3><p>{text(about)}</p>{listed}</div>'
    lines = [
        plots.Line(
            f"{one}, two-stage" if system == "two-stage" else one,
            [(int(cell.values[axis]), cell.metrics[system][one]) for cell in grid.trials],
            f"s{number % COLOURS}",
        )
        for number, (system, one) in enumerate(columns)
    ]
    shares = [value for line in lines for _, value in line.points]
    places = [(int(value), value) for value in values]
    x = plots.Axis(axis, min(places)[0], max(places)[0], places, is_log=True)
    y = plots.linear("recall", min(shares), max(shares))
    return f"{plot(axis, about, lines, x, y)}<div>{listed}</div>"
