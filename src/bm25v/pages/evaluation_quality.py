"""The part of a report's page about how good searches are."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from bm25v.explain.markup import text
from bm25v.pages import plots
from bm25v.pages.evaluation_markup import plot, section, table
from bm25v.pages.plots import share

if TYPE_CHECKING:
    from bm25v.research.evaluate import EvaluationResult, SystemResult
    from bm25v.research.significance import Comparison, Interval

SHOWN = 5  # best and worst classes
SIGNIFICANT = 0.05

COLOURS = 9  # that the style sheet has
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
}
_COMPARED = ("bm25v", "two-stage-200", "dense")

Systems = Mapping[str, "SystemResult"]


def title(name: str) -> str:
    """Return a system's name as people write it.

    >>> title("bm25v"), title("two-stage-200"), title("two-stage-50")
    ('BM25-V', 'Two-stage 200', 'two-stage-50')
    """
    return _TITLES.get(name, name)


def headline(figures: Sequence[str]) -> str:
    """Return the figure that stands for all.

    >>> headline(["R@1", "R@5", "mAP"]), headline(["mAP easy", "mAP medium", "mAP hard"])
    ('R@1', 'mAP medium')
    """
    return next((one for one in ("R@1", "mAP medium") if one in figures), figures[0])


def systems(result: "EvaluationResult") -> str:
    """Return what each system finds: a plot, intervals, a table, and whether it matters."""
    found, figure = result.systems, headline(result.metrics)
    recall = _recall(found, [one for one in result.metrics if one.startswith("R@")])
    return section(
        "systems",
        "What is found",
        f'<div class="charts">{recall}{_intervals(found, figure)}</div>',
        _table(found, result.metrics),
        _against(found, figure),
    )


def _recall(found: Systems, figures: Sequence[str]) -> str:
    if not figures:
        return ""
    kinds = _kinds(found)
    lines = [
        plots.Line(
            title(name),
            [(place, system.metrics[one].mean) for place, one in enumerate(figures)],
            kinds[name],
        )
        for name, system in found.items()
    ]
    ticks = [(place, one.removeprefix("R@")) for place, one in enumerate(figures)]
    x = plots.Axis("K", -0.15, len(figures) - 0.85, ticks)
    lowest = min(value for line in lines for _, value in line.points)
    about = "Share of queries with their class among the first K; equal systems hide each other"
    return plot("Recall at K", about, lines, x, plots.linear("recall", lowest, 1.0))


def _intervals(found: Systems, figure: str) -> str:
    """Return one figure of each system with its interval, as bars."""
    kinds = _kinds(found)
    values = {name: system.metrics[figure] for name, system in found.items()}
    lowest, highest = (
        min(one.low for one in values.values()),
        max(one.high for one in values.values()),
    )
    scale = plots.linear(figure, lowest, highest)
    rows = []
    for name, one in values.items():
        low, mean, high = (100 * scale.share(value) for value in (one.low, one.mean, one.high))
        place = f"--low:{low:.1f}%;--mean:{mean:.1f}%;--high:{high:.1f}%"
        rows.append(
            f'<li class="{kinds[name]}" title="{_range(one)}"><span>{text(title(name))}</span>'
            f'<div style="{place}"><i></i><b></b></div><em>{share(one.mean)}</em></li>'
        )
    ends = f"<small>{scale.ticks[0][1]}</small><small>{scale.ticks[-1][1]}</small>"
    return (
        f"<div><h3>{figure} and how sure it is</h3><p>Mean and 95 % interval over the queries</p>"
        f'<ol class="forest">{"".join(rows)}<li class="ends"><div>{ends}</div></li></ol></div>'
    )


def _table(found: Systems, figures: Sequence[str]) -> str:
    best = {
        one: max(share(system.metrics[one].mean) for system in found.values()) for one in figures
    }

    def cell(one: str, interval: "Interval") -> str:
        value = share(interval.mean)
        shown = f"<b>{value}</b>" if value == best[one] else value
        return f"{shown}<small>{_range(interval)}</small>"

    rows = [
        [text(title(name)), *(cell(one, system.metrics[one]) for one in figures)]
        for name, system in found.items()
    ]
    about = "".join(
        f"<div><dt>{text(title(name))}</dt><dd>{text(system.description)}</dd></div>"
        for name, system in found.items()
    )
    how = f'<details><summary>How each system is set up</summary><dl class="about">{about}</dl>'
    return f"{table(['system', *figures], rows)}{how}</details>"


def _against(found: Systems, figure: str) -> str:
    compared = {
        name: system.against_dense[figure]
        for name, system in found.items()
        if figure in system.against_dense
    }
    if not compared:
        return ""
    rows = [
        [
            text(title(name)),
            f"{'+' if one.difference > 0 else ''}{share(one.difference)}",
            f"{one.wins:,}",
            f"{one.losses:,}",
            _p(one.p),
            _verdict(one),
        ]
        for name, one in compared.items()
    ]
    return table([f"{figure} against dense", "difference", "queries won", "lost", "p", ""], rows)


def classes(result: "EvaluationResult") -> str:
    """Return the classes that words find best and worst, and all of them on demand."""
    figure = headline(result.metrics)
    by_system = {name: result.systems[name].classes for name in _COMPARED if name in result.systems}
    labels = next(iter(by_system.values()), {})
    if not labels:
        return ""

    def values(label: str) -> list[float]:
        return [found[label][figure] for found in by_system.values()]

    def rows(some: Sequence[str]) -> Iterator[list[str]]:
        for label in some:
            name = text(label).replace("_", "_<wbr>")  # where a narrow column may break it
            yield [name, f"{labels[label]['queries']:,}", *map(share, values(label))]

    heads = [f"{figure} by class", "queries", *map(title, by_system)]
    ordered = sorted(labels, key=lambda label: ([-value for value in values(label)], label))
    if len(ordered) <= 2 * SHOWN:
        return section("classes", "Classes, best first", table(heads, rows(ordered)))
    best, worst = ordered[:SHOWN], ordered[: -SHOWN - 1 : -1]
    return section(
        "classes",
        "Best and worst classes",
        f'<div class="charts"><div><h3>Best</h3>{table(heads, rows(best))}</div>'
        f"<div><h3>Worst</h3>{table(heads, rows(worst))}</div></div>",
        f"<details><summary>All {len(ordered):,} classes</summary>"
        f"{table(heads, rows(ordered))}</details>",
    )


def _kinds(found: Systems) -> dict[str, str]:
    """Return the class that gives each system its colour, the same on every page."""
    others = [name for name in found if name not in _TITLES]
    return {name: f"s{n % COLOURS}" for n, name in enumerate([*_TITLES, *others])}


def _range(one: "Interval") -> str:
    return f"{share(one.low)}–{share(one.high)}"


def _p(p: float) -> str:
    return "&lt; .001" if p < 0.001 else share(p)


def _verdict(one: "Comparison") -> str:
    if one.p >= SIGNIFICANT:
        return '<span class="even">no difference shown</span>'
    better = one.difference > 0
    return f'<span class="{"same" if better else "other"}">{"better" if better else "worse"}</span>'
