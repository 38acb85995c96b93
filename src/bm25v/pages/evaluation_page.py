"""An evaluation report becomes a page: metrics, settings, word frequencies, costs.

In: a `Report` of `bm25v.research`, imported for its type only. Out: HTML. Not this module's job:
measuring.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from markupsafe import Markup

from bm25v.pages import charts
from bm25v.pages.charts import Line, format_share
from bm25v.pages.render import render

if TYPE_CHECKING:
    from bm25v.research.ablate import AblationResult
    from bm25v.research.cost import Growth
    from bm25v.research.evaluate import EvaluationResult, SystemResult
    from bm25v.research.report import Report
    from bm25v.research.significance import Comparison, Interval
    from bm25v.research.zipf import ZipfFit

N_CLASSES = 5  # best and worst classes that are shown
SIGNIFICANT = 0.05

_N_COLOURS = 10  # of the style sheet
_TITLES = {  # in the order of the colours
    "bm25v": "BM25-V",
    "dense": "Dense",
    "two-stage-100": "Two-stage 100",
    "two-stage-200": "Two-stage 200",
    "hybrid": "Hybrid",
    "hnsw": "HNSW",
    "ivfpq": "IVF-PQ",
    "dot": "Dot product",
    "bovw": "Bag of visual words",
    "words": "Words",
}
_HEADLINES = ("hybrid", "words", "dense", "two-stage-200", "bm25v")
_COMPARED = ("bm25v", "two-stage-200", "words", "hybrid", "dense")
_SETTINGS = {
    "k_post": "How many words of an image are kept",
    "k_query": "How many words of the query are used",
    "scoring": "How words are compared: by BM25, or in other ways",
    "k_full": "How many words a full bag has, which words and hybrid order by",
    "weight": "How much words count in hybrid, beside the cosine",
}
_ABLATION_METRICS = ("R@1", "R@10", "R@100", "mAP", "mAP easy", "mAP medium", "mAP hard")
_TIMED = {
    "first-stage": "BM25-V, first stage",
    "two-stage": "Two-stage",
    "words": "Words",
    "hybrid": "Hybrid",
    "dense": "Dense scan",
    "hnsw": "HNSW",
}

Systems = Mapping[str, "SystemResult"]


@dataclass(frozen=True)
class Cell:
    """A cell with more than a text: a note below it, or a class that colours it."""

    text: str
    note: str = ""
    is_best: bool = False
    kind: str = ""


class Table(NamedTuple):
    """Heads, rows of a name and its cells, and which row is in bold."""

    heads: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str | Cell]]]
    chosen: int | None = None


class _Plot(NamedTuple):
    title: str
    about: str
    drawing: Markup
    legend: Markup


def render_evaluation(report: "Report") -> str:
    """Return the page."""
    result = report.result
    systems, headline = result.systems, headline_metric(result.metrics)
    changed = ", ".join(f"{name} {value}" for name, value in report.changed_settings().items())
    return render(
        "evaluation.html",
        name=result.name,
        facts=list(_facts(result, headline)),
        details=list(_details(report)),
        training_data=result.vocabulary["learnt_from"],
        changed_settings=changed,
        headline=headline,
        recall=_plot_recall(systems, [name for name in result.metrics if name.startswith("R@")]),
        intervals=_describe_intervals(systems, headline),
        systems=_tabulate_systems(systems, result.metrics),
        descriptions=[(system_title(name), system.description) for name, system in systems.items()],
        owners=_tabulate_owners(result, headline),
        comparisons=_tabulate_comparisons(systems, headline),
        classes=_tabulate_classes(systems, headline),
        ablations=[_describe_ablation(report, ablation) for ablation in report.ablations],
        zipf_plot=_plot_frequencies(report.zipf),
        zipf_table=_tabulate_frequencies(report.zipf),
        usage=report.usages[0],
        bag_bytes=report.bag_bytes,
        full_bag_bytes=report.full_bag_bytes,
        dense_bytes=report.dense_bytes,
        costs=_tabulate_costs(report),
        growth=_plot_growth(report.growth),
        projections=_tabulate_projections(report),
        latencies=report.latencies,
        latency_table=_tabulate_latencies(report),
        n_images=report.zipf.images,
        problems=result.problems,
        commands=report.commands,
    )


def system_title(name: str) -> str:
    """Return a system's name as people write it.

    >>> system_title("bm25v"), system_title("two-stage-200"), system_title("two-stage-50")
    ('BM25-V', 'Two-stage 200', 'two-stage-50')
    """
    return _TITLES.get(name, name)


def headline_metric(metrics: Sequence[str]) -> str:
    """Return the metric that is shown first.

    >>> headline_metric(["R@1", "R@5", "mAP"])
    'R@1'
    >>> headline_metric(["mAP easy", "mAP medium", "mAP hard"])
    'mAP medium'
    """
    return next((name for name in ("R@1", "mAP medium") if name in metrics), metrics[0])


def _facts(result: "EvaluationResult", headline: str) -> Iterator[tuple[str, str]]:
    for name in _HEADLINES:
        if name in result.systems:
            mean = result.systems[name].metrics[headline].mean
            yield format_share(mean), f"{headline}, {system_title(name)}"


def _details(report: "Report") -> Iterator[tuple[str, str]]:
    dataset, vocabulary = report.result.dataset, report.result.vocabulary
    yield f"{len(dataset.gallery):,}", "images"
    yield f"{len(dataset.queries):,}", "queries"
    yield f"{len({item.label for item in dataset.gallery}):,}", "classes"
    yield dataset.protocol, "protocol"
    yield vocabulary["backbone"], "backbone"
    yield vocabulary["name"], "vocabulary"
    yield vocabulary["fingerprint"], "its fingerprint"
    yield f"{vocabulary['words']:,}", "words in the vocabulary"
    yield str(vocabulary["k_post"]), "words per image in the index (k_post)"
    yield str(vocabulary["k_full"]), "words per full bag (k_full)"
    yield report.version, "version of bm25v"


# How good the hits are.


def _plot_recall(systems: Systems, metrics: Sequence[str]) -> _Plot | None:
    if not metrics:
        return None
    kinds = _colour_classes(systems)
    lines = [
        Line(
            system_title(name),
            [(n, system.metrics[metric].mean) for n, metric in enumerate(metrics)],
            kinds[name],
        )
        for name, system in systems.items()
    ]
    ticks = [(n, metric.removeprefix("R@")) for n, metric in enumerate(metrics)]
    x = charts.Axis("K", -0.15, len(metrics) - 0.85, ticks)
    lowest = min(value for line in lines for _, value in line.points)
    about = "Share of queries with their class among the first K; equal systems hide each other"
    return _plot("Recall at K", about, lines, x, charts.share_axis("recall", lowest, 1.0))


def _describe_intervals(systems: Systems, metric: str) -> dict[str, Any]:
    """Return one metric of each system with its interval, as positions on one scale."""
    kinds = _colour_classes(systems)
    intervals = {name: system.metrics[metric] for name, system in systems.items()}
    lowest = min(interval.low for interval in intervals.values())
    highest = max(interval.high for interval in intervals.values())
    scale = charts.share_axis(metric, lowest, highest)
    rows = [
        {
            "title": system_title(name),
            "kind": kinds[name],
            "range": _format_range(interval),
            "value": format_share(interval.mean),
            "low": 100 * scale.share(interval.low),
            "mean": 100 * scale.share(interval.mean),
            "high": 100 * scale.share(interval.high),
        }
        for name, interval in intervals.items()
    ]
    return {"rows": rows, "low": scale.ticks[0][1], "high": scale.ticks[-1][1]}


def _tabulate_systems(systems: Systems, metrics: Sequence[str]) -> Table:
    best = {
        metric: max(format_share(system.metrics[metric].mean) for system in systems.values())
        for metric in metrics
    }

    def cell(metric: str, interval: "Interval") -> Cell:
        value = format_share(interval.mean)
        return Cell(value, _format_range(interval), is_best=value == best[metric])

    rows = [
        (system_title(name), [cell(metric, system.metrics[metric]) for metric in metrics])
        for name, system in systems.items()
    ]
    return Table(["system", *metrics], rows)


def _tabulate_owners(result: "EvaluationResult", headline: str) -> Table:
    """Return the paper's systems, ours and dense, relative to dense."""
    metrics = [name for name in dict.fromkeys((headline, "R@10", "mAP")) if name in result.metrics]

    def cell(name: str, metric: str) -> Cell:
        share = result.relative_to_dense(name, metric)
        note = "" if share is None else f"{share:.1%} of dense"
        return Cell(format_share(result.systems[name].metrics[metric].mean), note)

    rows: list[tuple[str, list[str | Cell]]] = [
        (system_title(name), [owner, *(cell(name, metric) for metric in metrics)])
        for name, owner in result.compared_systems.items()
    ]
    return Table(["system", "whose", *metrics], rows)


def _tabulate_comparisons(systems: Systems, metric: str) -> Table | None:
    rows: list[tuple[str, list[str | Cell]]] = [
        (
            system_title(name),
            [
                f"{'+' if comparison.difference > 0 else ''}{format_share(comparison.difference)}",
                f"{comparison.wins:,}",
                f"{comparison.losses:,}",
                "< .001" if comparison.p < 0.001 else format_share(comparison.p),
                _judge(comparison),
            ],
        )
        for name, system in systems.items()
        if (comparison := system.against_dense.get(metric)) is not None
    ]
    heads = [f"{metric} against dense", "difference", "queries won", "lost", "p", ""]
    return Table(heads, rows) if rows else None


def _judge(comparison: "Comparison") -> Cell:
    if comparison.p >= SIGNIFICANT:
        return Cell("no difference shown", kind="even")
    is_better = comparison.difference > 0
    return Cell("better", kind="same") if is_better else Cell("worse", kind="other")


def _tabulate_classes(systems: Systems, metric: str) -> dict[str, Table | None] | None:
    """Return the classes that words find best and worst, and all of them."""
    by_system = {name: systems[name].classes for name in _COMPARED if name in systems}
    labels = next(iter(by_system.values()), {})
    if not labels:
        return None

    def values(label: str) -> list[float]:
        return [classes[label][metric] for classes in by_system.values()]

    def table(some: Sequence[str]) -> Table:
        heads = [f"{metric} by class", "queries", *map(system_title, by_system)]
        rows = [
            (label, [f"{labels[label]['queries']:,}", *map(format_share, values(label))])
            for label in some
        ]
        return Table(heads, rows)

    ordered = sorted(labels, key=lambda label: ([-value for value in values(label)], label))
    if len(ordered) <= 2 * N_CLASSES:
        return {"all": table(ordered), "best": None, "worst": None}
    return {
        "all": table(ordered),
        "best": table(ordered[:N_CLASSES]),
        "worst": table(ordered[: -N_CLASSES - 1 : -1]),
    }


def _colour_classes(systems: Systems) -> dict[str, str]:
    """Return the class that gives each system its colour, the same on every page."""
    others = [name for name in systems if name not in _TITLES]
    return {name: f"s{n % _N_COLOURS}" for n, name in enumerate([*_TITLES, *others])}


def _format_range(interval: "Interval") -> str:
    return f"{format_share(interval.low)}–{format_share(interval.high)}"


# What settings change.


def _describe_ablation(report: "Report", ablation: "AblationResult") -> dict[str, Any]:
    (axis,) = ablation.axes
    headline = headline_metric(list(ablation.dense))
    main, *others = ablation.trials[0].metrics  # systems; of the others one metric is enough
    columns = [(main, metric) for metric in ablation.dense if metric in _ABLATION_METRICS]
    columns += [(system, headline) for system in others]
    values = [trial.values[axis] for trial in ablation.trials]
    reads_postings = main == "bm25v"
    rows = [
        (
            trial.values[axis],
            [
                *(format_share(trial.metrics[system][metric]) for system, metric in columns),
                *([f"{trial.postings:,.0f}"] if reads_postings else []),
            ],
        )
        for trial in ablation.trials
    ]
    names = [metric if system == "bm25v" else f"{metric}, {system}" for system, metric in columns]
    heads = [axis, *names, *(["postings read"] if reads_postings else [])]
    used = report.setting(axis)
    chosen = values.index(used) if used in values else None
    about = _SETTINGS.get(axis, "")
    return {
        "axis": axis,
        "about": about,
        "table": Table(heads, rows, chosen),
        "plot": _plot_ablation(ablation, about, columns, names),
    }


def _plot_ablation(
    ablation: "AblationResult",
    about: str,
    columns: Sequence[tuple[str, str]],
    names: Sequence[str],
) -> _Plot | None:
    """Draw the metrics over the values of a setting; None if these are no numbers."""
    (axis,) = ablation.axes
    values = [trial.values[axis] for trial in ablation.trials]
    if len(values) < 2 or not all(value.isdecimal() for value in values):
        return None
    lines = [
        Line(
            name,
            [(int(trial.values[axis]), trial.metrics[system][metric]) for trial in ablation.trials],
            f"s{n % _N_COLOURS}",
        )
        for n, (name, (system, metric)) in enumerate(zip(names, columns, strict=True))
    ]
    shares = [value for line in lines for _, value in line.points]
    ticks = [(int(value), value) for value in values]
    x = charts.Axis(axis, min(ticks)[0], max(ticks)[0], ticks, is_log=True)
    return _plot(axis, about, lines, x, charts.share_axis("recall", min(shares), max(shares)))


# Words, costs and times.


def _plot_frequencies(zipf: "ZipfFit") -> _Plot:
    """Draw how many images have each word, by rank."""
    ranks = np.unique(np.geomspace(1, zipf.active_words, 120).round()).astype(int).tolist()
    first = max(1.0, (zipf.scale / zipf.images) ** (1 / zipf.alpha)) if zipf.alpha > 0 else 1.0
    lines = [
        Line("words", [(rank, float(zipf.df_r[rank - 1])) for rank in ranks], "s1 dots"),
        Line(
            f"power law, α = {zipf.alpha:.2f}",
            [(rank, zipf.scale * rank**-zipf.alpha) for rank in (first, float(zipf.active_words))],
            "s0",
            is_marked=False,
        ),
    ]
    x = charts.log_axis("rank of the word", 1, zipf.active_words)
    y = charts.log_axis("images with the word", 0.8, zipf.images)
    return _plot("Images with a word", "Words from frequent to rare", lines, x, y)


def _tabulate_frequencies(zipf: "ZipfFit") -> Table:
    rows = [
        ("exponent α", [f"{zipf.alpha:.2f}", "1.20 to 2.32"]),
        ("R² of the fit", [format_share(zipf.r2), ".917 to .973"]),
        ("words in any image", [f"{zipf.active_words:,}", "527 to 3,240"]),
        ("… in over half of the images", [f"{zipf.head:.2%}", "0.25% to 1.83%"]),
        ("… in less than a tenth", [f"{zipf.tail:.1%}", ""]),
        ("… with an IDF above 2", [f"{zipf.high_idf:.1%}", "96% to 99.7%"]),
    ]
    return Table(["", "here", "in the paper's seven sets"], rows)


def _tabulate_costs(report: "Report") -> Table:
    rows = [
        (
            line.system,
            [
                f"{line.bytes_per_image:,.0f}",
                f"{line.compression:.1f}×",
                f"{line.operations:,.0f}",
                "" if line.counted is None else f"{line.counted:,.0f}",
            ],
        )
        for line in report.cost_tables()[0]
    ]
    heads = ["system", "bytes per vector", "compression", "operations, expected", "counted"]
    return Table(heads, rows)


def _plot_growth(growth: "Growth") -> _Plot:
    measured = list(zip(growth.sizes, growth.measured, strict=True))
    expected = list(zip(growth.sizes, growth.expected, strict=True))
    lines = [
        Line("measured", measured, "s0"),
        Line("expected if all words were equally frequent", expected, "s1", is_marked=False),
    ]
    x = charts.log_axis("images", 1, max(growth.sizes[-1], 2))
    lowest = min(growth.measured[0], growth.expected[0])
    y = charts.log_axis("words in use", 10 ** np.floor(np.log10(lowest)), growth.vocabulary)
    about = f"Words in any image, of {growth.vocabulary:,}, as the gallery grows"
    return _plot("Words in use", about, lines, x, y)


def _tabulate_projections(report: "Report") -> Table:
    columns = [{line.system: line for line in lines} for lines in report.cost_tables()]
    rows = []
    for system, line in columns[0].items():
        rows.append((system, [format_compact(column[system].operations) for column in columns]))
        if line.counted is not None:
            counted = [format_compact(column[system].counted or 0) for column in columns]
            rows.append((f"{system}, counted", counted))
    rows.append(("words in use, expected", [f"{n:,.0f}" for n in report.expected_words()]))
    sizes = [format_compact(usage.images) for usage in report.usages]
    return Table(["operations per query in … images", *sizes], rows)


def _tabulate_latencies(report: "Report") -> Table | None:
    if report.latencies is None:
        return None
    systems = report.latencies.systems
    dense = {latency.system: latency.median_ms for latency in systems}.get("dense")
    rows = [
        (
            _TIMED.get(latency.system, latency.system),
            [
                f"{latency.median_ms:.3f}",
                f"{latency.p95_ms:.3f}",
                f"{dense / latency.median_ms:.1f}×" if dense else "",
            ],
        )
        for latency in systems
    ]
    return Table(["system", "median ms", "p95 ms", "times as fast as dense"], rows)


def format_compact(value: float) -> str:
    """Return a large number with three digits.

    >>> format_compact(64), format_compact(6971), format_compact(628_037_497)
    ('64', '6.97 k', '628 M')
    >>> format_compact(6.4e10), format_compact(999_900)
    ('64 G', '1 M')
    """
    for unit in ("", "k", "M", "G", "T"):
        if float(f"{value:.3g}") < 1000 or unit == "T":
            break
        value /= 1000
    return f"{float(f'{value:.3g}'):g} {unit}".strip()


def _plot(title: str, about: str, lines: Sequence[Line], x: charts.Axis, y: charts.Axis) -> _Plot:
    drawing = charts.draw_lines(f"{title}: {y.label}, by {x.label}", lines, x, y)
    legend = charts.draw_legend(lines) if len(lines) > 1 else Markup("")
    return _Plot(title, about, drawing, legend)
