"""The part of a report's page about words: how they are spread, and what they cost."""

from typing import TYPE_CHECKING

import numpy as np

from bm25v.explain.markup import text
from bm25v.pages import plots
from bm25v.pages.evaluation_markup import paragraph, plot, section, table
from bm25v.pages.plots import share

if TYPE_CHECKING:
    from bm25v.research.cost import Growth
    from bm25v.research.report import Report
    from bm25v.research.zipf import ZipfFit

_TIMED = {
    "first-stage": "BM25-V, first stage",
    "two-stage": "Two-stage",
    "dense": "Dense scan",
    "hnsw": "HNSW",
}


def spread(zipf: "ZipfFit") -> str:
    """Return how often words are used, by rank."""
    ranks = _thinned(zipf.active_words)
    first = max(1.0, (zipf.scale / zipf.images) ** (1 / zipf.alpha)) if zipf.alpha > 0 else 1.0
    lines = [
        plots.Line("words", [(rank, float(zipf.df_r[rank - 1])) for rank in ranks], "s1 dots"),
        plots.Line(
            f"power law, α = {zipf.alpha:.2f}",
            [(at, zipf.scale * at**-zipf.alpha) for at in (first, float(zipf.active_words))],
            "s0",
            is_marked=False,
        ),
    ]
    x = plots.logarithmic("rank of the word", 1, zipf.active_words)
    y = plots.logarithmic("pictures with the word", 0.8, zipf.images)
    drawn = plot("Pictures with a word", "Words from frequent to rare", lines, x, y)
    rows = [
        ["exponent α", f"{zipf.alpha:.2f}", "1.20 to 2.32"],
        ["R² of the fit", share(zipf.r2), ".917 to .973"],
        ["words in any picture", f"{zipf.active_words:,}", "527 to 3,240"],
        ["… in over half of the pictures", f"{zipf.head:.2%}", "0.25% to 1.83%"],
        ["… in less than a tenth", f"{zipf.tail:.1%}", ""],
        ["… with an IDF above 2", f"{zipf.high_idf:.1%}", "96% to 99.7%"],
    ]
    figures = table(["", "here", "in the paper's seven sets"], rows)
    about = "Few words are common and most are rare: one that two pictures share says much."
    return section(
        "words",
        "How words are spread",
        paragraph(about),
        f'<div class="charts">{drawn}<div>{figures}</div></div>',
    )


def costs(report: "Report") -> str:
    """Return what a search takes in bytes and operations, here and in larger galleries."""
    here = report.usages[0]
    rows = [
        [
            text(line.system),
            f"{line.bytes_per_image:,.0f}",
            f"{line.compression:.1f}×",
            f"{line.operations:,.0f}",
            "" if line.counted is None else f"{line.counted:,.0f}",
        ]
        for line in report.cost_tables()[0]
    ]
    heads = ["system", "bytes a vector", "compression", "operations, expected", "counted"]
    size = report.bag_bytes + report.dense_bytes
    about = (
        f"Bytes and operations as the paper counts them. Expected is its formula, in which all "
        f"active words are equally frequent: {here.expected_postings:,.0f} postings a query. "
        f"Counted is what the queries read: {here.postings:,.0f}. On disk bm25v takes {size:,} "
        f"bytes a picture, {report.bag_bytes:,} for its bag and {report.dense_bytes:,} for its "
        "dense vector in half precision."
    )
    return section(
        "cost",
        "What a search takes",
        paragraph(about),
        table(heads, rows),
        f'<div class="charts">{_growth(report.growth)}{_projections(report)}</div>',
    )


def _growth(growth: "Growth") -> str:
    measured = list(zip(growth.sizes, growth.measured, strict=True))
    expected = list(zip(growth.sizes, growth.expected, strict=True))
    lines = [
        plots.Line("measured", measured, "s0"),
        plots.Line("expected if pictures drew words evenly", expected, "s1", is_marked=False),
    ]
    x = plots.logarithmic("pictures", 1, max(growth.sizes[-1], 2))
    lowest = min(growth.measured[0], growth.expected[0])
    y = plots.logarithmic("words in use", 10 ** np.floor(np.log10(lowest)), growth.vocabulary)
    about = f"Words in any picture, of {growth.vocabulary:,}, as the gallery grows"
    return plot("Words in use", about, lines, x, y)


def _projections(report: "Report") -> str:
    columns = [{line.system: line for line in lines} for lines in report.cost_tables()]
    rows = []
    for system, line in columns[0].items():
        cells = [compact(column[system].operations) for column in columns]
        rows.append([text(system), *cells])
        if line.counted is not None:
            counted = (compact(column[system].counted or 0) for column in columns)
            rows.append([f"{text(system)}, as counted", *counted])
    rows.append(["words in use, expected", *(f"{n:,.0f}" for n in report.expected_words())])
    heads = ["operations a query in … pictures", *(compact(u.images) for u in report.usages)]
    return (
        "<div><h3>In larger galleries</h3><p>By the paper's formulas; as counted, each word keeps "
        f"its share of the pictures</p>{table(heads, rows)}</div>"
    )


def speeds(report: "Report") -> str:
    """Return how long searches take here."""
    found = report.latencies
    if found is None:
        return ""
    dense = {one.system: one.median_ms for one in found.systems}.get("dense")
    rows = [
        [
            text(_TIMED.get(one.system, one.system)),
            f"{one.median_ms:.3f}",
            f"{one.p95_ms:.3f}",
            f"{dense / one.median_ms:.1f}×" if dense else "",
        ]
        for one in found.systems
    ]
    about = (
        f"Milliseconds a query on one thread ({text(found.machine)}, beside whatever else they "
        f"do): {found.queries:,} of the queries, encoded already, to these "
        f"{report.zipf.images:,} pictures. The first stage gives the best "
        f"{found.candidates:,} by words. So small a gallery says little of a large one: "
        "<code>bm25v bench search</code> times up to a million pictures."
    )
    heads = ["system", "median ms", "p95 ms", "times as fast as dense"]
    return section("speed", "How long a search takes", paragraph(about), table(heads, rows))


def compact(value: float) -> str:
    """Return a large number in three digits.

    >>> compact(64), compact(6971), compact(628_037_497), compact(6.4e10), compact(999_900)
    ('64', '6.97 k', '628 M', '64 G', '1 M')
    """
    for unit in ("", "k", "M", "G", "T"):
        if float(f"{value:.3g}") < 1000 or unit == "T":
            break
        value /= 1000
    return f"{float(f'{value:.3g}'):g} {unit}".strip()


def _thinned(ranks: int) -> list[int]:
    """Return ranks that lie evenly on a logarithmic axis, the last one included."""
    return [int(rank) for rank in np.unique(np.geomspace(1, ranks, 120).round())]
