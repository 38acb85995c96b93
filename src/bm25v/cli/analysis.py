"""`bm25v ablate`, `report`, `zipf` and `cost`."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bm25v.cli.evaluate import (
    cache_option,
    data_option,
    dataset_option,
    preset_option,
    read_settings,
    set_option,
    split_option,
)
from bm25v.cli.options import (
    PathType,
    find_gallery,
    gallery_option,
    json_option,
    split_list,
    vocabulary_option,
)
from bm25v.cli.printing import (
    echo,
    echo_text,
    echo_wrapped,
    fill_lines,
    make_columns,
    output_width,
    print_grid,
    print_json,
    print_problems,
    print_table,
)
from bm25v.display import count, display_path
from bm25v.errors import WrongUse

if TYPE_CHECKING:
    from bm25v.gallery.store import GalleryInfo
    from bm25v.research.cost import Growth, WordUsage
    from bm25v.research.zipf import ZipfFit

_PAPER_ZIPF = (
    "the paper's seven sets: α 1.20 to 2.32",
    "R² .917 to .973",
    "head 0.25 to 1.83%",
    "IDF > 2 96 to 99.7%",
)
_COST_NOTE = (
    "bytes per vector as in the paper: 4 per number, 6 per word; counted: 5 operations for each "
    "posting that is read, with the gallery's own images as queries; projected: each word keeps "
    "its share of the images; Words and Hybrid: the stored bytes of full bags, and five operations "
    "for each word of 1,000 candidates"
)


@click.command("ablate")
@click.argument("axes", metavar="SETTING...", nargs=-1, required=True)
@data_option
@dataset_option
@split_option
@click.option(
    "--values", multiple=True, help="Separated by commas; once for each SETTING  [default: a range]"
)
@vocabulary_option
@click.option(
    "--vocabularies",
    help="For k, expansion and layer: vocabularies trained with them, separated by commas.",
)
@preset_option
@set_option
@click.option("--format", "format_name", default="table", type=click.Choice(["table", "markdown"]))
@click.option("-o", "--output", type=PathType(path_type=Path), help="Draw a plot, as .png.")
@cache_option
@json_option
def ablate(
    axes: tuple[str, ...],
    data: Path,
    name: str,
    split: Path | None,
    values: tuple[str, ...],
    vocabulary: str,
    vocabularies: str | None,
    preset: str,
    changes: tuple[str, ...],
    format_name: str,
    output: Path | None,
    cache: Path | None,
    as_json: bool,
) -> None:
    """Evaluate several values of a SETTING.

    SETTING is k, expansion, layer, k_post, k_full, k_query, scoring, quantisation, k1, b,
    candidates, query, tf, pooling, stop or weight; several are combined. With --values, k encodes
    with the same SAE; to compare SAEs trained with another k, expansion or layer, give
    --vocabularies. Finished measurements are kept and not repeated.
    """
    from bm25v.cli.progress import progress_bar
    from bm25v.research import datasets, plots, tables
    from bm25v.research.ablate import ablate, plan_trials
    from bm25v.vocabulary import Vocabulary

    if len(values) not in (0, len(axes)):
        raise WrongUse(
            f"{len(values)} times --values for {len(axes)} settings ({', '.join(axes)}): "
            "give it once for each, or not at all"
        )
    chosen = [split_list(value) for value in values] or [[] for _ in axes]
    trials = plan_trials(
        dict(zip(axes, chosen, strict=True)),
        Vocabulary.load(vocabulary),
        read_settings(preset, changes),
        [Vocabulary.load(path) for path in split_list(vocabularies or "")],
    )
    if output:
        plots.check_path(output)  # before hours of work
        plots.ablation_values([trial.values for trial in trials])
    dataset = datasets.load(name, data, split=split)
    with progress_bar() as progress:
        result = ablate(dataset, trials, cache=cache, progress=progress)
    print_problems(result.dataset.problems)
    known = sum(not trial.is_new for trial in result.trials)
    if known:
        echo(f"{known} of {len(result.trials)} were measured before", err=True)
    if output:
        plots.draw_ablation(result, output)
    if as_json:
        print_json(
            {
                "dataset": result.dataset.title,
                "axes": list(result.axes),
                "dense": result.dense,
                "cells": [trial.to_dict() for trial in result.trials],
            }
        )
    elif format_name == "markdown":
        echo_text(tables.markdown_table(*tables.ablation_table(result)))
    else:
        print_grid(*tables.ablation_table(result))


@click.command("report")
@click.argument("name", metavar="[DATASET]", default="folder")
@data_option
@split_option
@click.option(
    "-o",
    "--output",
    default="report",
    show_default=True,
    type=PathType(file_okay=False, path_type=Path),
    help="The folder for the page and its figures as JSON.",
)
@vocabulary_option
@preset_option
@set_option
@cache_option
@json_option
def report(
    name: str,
    data: Path,
    split: Path | None,
    output: Path,
    vocabulary: str,
    preset: str,
    changes: tuple[str, ...],
    cache: Path | None,
    as_json: bool,
) -> None:
    """Measure everything on a data set and write one page about it.

    DATASET is a published one (see bm25v evaluate --help), or "folder" for any folder of class
    folders.
    """
    from bm25v.cli.progress import progress_bar
    from bm25v.research import datasets, report, tables
    from bm25v.vocabulary import Vocabulary

    settings = read_settings(preset, changes)
    dataset = datasets.load(name, data, split=split)
    with progress_bar() as progress:
        result = report.measure_report(
            dataset,
            Vocabulary.load(vocabulary),
            settings=settings,
            cache=cache,
            progress=progress,
        )
    report.write_report(result, output)
    if as_json:
        print_json(result.to_dict())
        return
    print_grid(*tables.comparison_table(result.result))
    page, numbers = (display_path(str(output / file)) for file in (report.PAGE, report.NUMBERS))
    echo(f"{page}: a page about {result.result.name}")
    echo(f"{numbers}: its figures")


@click.command("zipf")
@click.option(
    "-g",
    "--gallery",
    "paths",
    multiple=True,
    default=lambda: (os.environ.get("BM25V_GALLERY") or find_gallery(),),
    show_default="$BM25V_GALLERY, else the nearest gallery.bm25v",
    type=PathType(path_type=Path),
    help="A gallery's folder; give several to compare them.",
)
@click.option(
    "-o",
    "--output",
    type=PathType(dir_okay=False, path_type=Path),
    help="Draw words by rank, as .png, .svg or .pdf; several galleries in one plot.",
)
@json_option
def zipf(paths: tuple[Path, ...], output: Path | None, as_json: bool) -> None:
    """Fit a power law to the distribution of words.

    The head are words in more than half of the images, the tail words in less than a tenth, both as
    shares of the active words: those in at least one image.
    """
    from bm25v.research import plots
    from bm25v.research.zipf import read_frequencies, short_names

    paths = tuple(dict.fromkeys(paths))
    galleries = [read_frequencies(path) for path in paths]
    fits = dict(zip(short_names(paths), (g.fit_zipf() for g in galleries), strict=True))
    if output and len(fits) == 1:
        ((name, fit),) = fits.items()
        plots.draw_zipf(fit, f"Images per word: {name}", output)
    elif output:
        plots.draw_zipf_comparison(fits, output)
    if as_json:
        pairs = zip(galleries, fits.values(), strict=True)
        print_json([_zipf_to_dict(g.info.path, g.info.words, fit) for g, fit in pairs])
        return
    _print_zipf(fits)
    if output:
        echo(f"{display_path(str(output))}: words by rank")


def _zipf_to_dict(path: str, words: int, fit: "ZipfFit") -> dict[str, Any]:
    return {
        "gallery": path,
        "pictures": fit.images,
        "words": words,
        "active": fit.active_words,
        "alpha": fit.alpha,
        "r2": fit.r2,
        "head": fit.head,
        "tail": fit.tail,
        "idf_above_2": fit.high_idf,
    }


def _print_zipf(fits: "dict[str, ZipfFit]") -> None:
    header = ("gallery", "images", "active words", "α", "R²", "head", "tail", "IDF > 2")
    rows = []
    for name, fit in fits.items():
        counts = (f"{fit.images:,}", f"{fit.active_words:,}")
        shares = (f"{fit.head:.2%}", f"{fit.tail:.1%}", f"{fit.high_idf:.1%}")
        rows.append((name, *counts, f"{fit.alpha:.2f}", f"{fit.r2:.3f}", *shares))
    print_grid(header, rows)
    for line in fill_lines(_PAPER_ZIPF, output_width()):
        echo_wrapped(line, style="dim")


@click.command("cost")
@gallery_option
@click.option(
    "--project",
    "sizes",
    multiple=True,
    type=click.IntRange(1),
    help="Also for a gallery of this many images; give several for several tables.",
)
@click.option(
    "-o",
    "--output",
    type=PathType(dir_okay=False, path_type=Path),
    help="Draw the words in use as the gallery grows, as .png, .svg or .pdf.",
)
@json_option
def cost(gallery_path: Path, sizes: tuple[int, ...], output: Path | None, as_json: bool) -> None:
    """Compute the bytes and operations of a search.

    The table also has other systems. Every image of the gallery is a query. "expected" is the
    paper's formula, in which all active words are equally frequent; "counted" is what the queries
    really read.
    """
    from bm25v.research import cost, plots, zipf

    gallery = zipf.read_frequencies(gallery_path)
    usage = cost.count_usage(gallery.df_v, gallery.info.n_images)
    if gallery.full_rows is not None:
        full_bags = cost.count_full_usage(gallery.full_rows, gallery.df_v)
        usage = replace(usage, full_bags=full_bags)
    usages = [usage, *(usage.project(size) for size in sizes)]
    growth = cost.measure_growth(gallery.df_v, gallery.info.n_images)
    if output:
        name = zipf.short_names([gallery_path])[0]
        plots.draw_growth(growth, f"Words in use as the gallery grows: {name}", output)
    if as_json:
        print_json(_cost_to_dict(gallery.info, usages, gallery.dim, growth))
        return
    for each in usages:
        _print_costs(each, gallery.dim, is_projected=each is not usage)
    _print_growth(growth)
    _print_disk(gallery.info)
    if output:
        echo(f"{display_path(str(output))}: words in use as the gallery grows")


def _cost_to_dict(
    info: "GalleryInfo", usages: "list[WordUsage]", dim: int, growth: "Growth"
) -> dict[str, Any]:
    from bm25v.research.cost import cost_table

    sizes = [
        {
            "pictures": usage.images,
            "active": usage.active_words,
            "picture_words": usage.image_words,
            "postings": {"expected": usage.expected_postings, "counted": usage.postings},
            "full_bags": None if usage.full_bags is None else usage.full_bags.to_dict(),
            "systems": [system.to_dict() for system in cost_table(usage, dim=dim)],
        }
        for usage in usages
    ]
    on_disk = {
        "bags": info.bag_bytes_per_image,
        "full_bags": info.full_bag_bytes_per_image,
        "dense": info.dense_bytes_per_image,
        "catalogue": info.catalog_bytes_per_image,
    }
    return {
        "gallery": info.path,
        "words": info.words,
        "dim": dim,
        "bytes_on_disk": on_disk,
        "sizes": sizes,
        "growth": growth._asdict(),
    }


def _print_costs(usage: "WordUsage", dim: int, *, is_projected: bool) -> None:
    from bm25v.research.cost import cost_table

    header = ("system", "bytes per vector", "compression", "operations, expected", "counted")
    rows = [
        (
            system.system,
            f"{system.bytes_per_image:,.0f}",
            f"{system.compression:.1f}×",
            f"{system.operations:,.0f}",
            "" if system.counted is None else f"{system.counted:,.0f}",
        )
        for system in cost_table(usage, dim=dim)
    ]
    words = f"{usage.active_words:,.0f} of {usage.vocabulary:,} words"
    title = f"{count(usage.images, 'image')}, {words} active"
    if is_projected:
        title = f"projected to {usage.images:,} images, {words} expected to be active"
    echo_wrapped(title, style="bold")
    print_grid(header, rows)
    echo()


def _print_growth(growth: "Growth") -> None:
    rows = [[f"{n:,.0f}" for n in row] for row in zip(*growth[1:], strict=True)]
    print_table(make_columns(("images", "words in use", "if equally frequent"), rows))
    echo()


def _print_disk(info: "GalleryInfo") -> None:
    parts = {
        "for the bag": info.bag_bytes_per_image,
        "for the full bag": info.full_bag_bytes_per_image,
        "for the dense vector": info.dense_bytes_per_image,
    }
    listed = [f"{size:,.0f} {purpose}" for purpose, size in parts.items() if size]
    echo_wrapped(
        f"bm25v stores {sum(parts.values()):,.0f} bytes per image on disk: "
        f"{', '.join(listed[:-1])} and {listed[-1]}"
    )
    if info.removed_rows:
        echo_wrapped(
            f"this includes {count(info.removed_rows, 'removed image')}: run bm25v compact"
        )
    echo_wrapped(_COST_NOTE, style="dim")
