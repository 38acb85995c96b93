"""`bm25v cost`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bm25v.cli.options import console, gallery_option, json_option, print_json, shown

if TYPE_CHECKING:
    from rich.console import Console

    from bm25v.gallery.store import GalleryInfo
    from bm25v.research.cost import Growth, WordUsage

_NOTE = (
    "bytes a vector are the paper's: 4 a number, 6 a word; counted are 5 operations for each "
    "posting that is read, with the gallery's own pictures as queries; projected, each word keeps "
    "its share of the pictures"
)


@click.command("cost")
@gallery_option
@click.option(
    "--project",
    "sizes",
    multiple=True,
    type=click.IntRange(1),
    help="Also for a gallery of so many pictures; several times for several tables.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw how many words are in use as the gallery grows, as .png, .svg or .pdf.",
)
@json_option
def command(gallery_path: Path, sizes: tuple[int, ...], output: Path | None, as_json: bool) -> None:
    """Count what a search takes in bytes and operations, beside other systems.

    Every picture of the gallery is a query. "expected" is the paper's formula, in which all active
    words are equally frequent; "counted" is what the queries really read.
    """
    from bm25v.research import cost, plots, zipf

    counted = zipf.read_frequencies(gallery_path)
    here = cost.count_usage(counted.df_v, counted.info.pictures)
    usages = [here, *(here.project(size) for size in sizes)]
    growth = cost.measure_growth(counted.df_v, counted.info.pictures)
    if output:
        name = zipf.short_names([gallery_path])[0]
        plots.draw_growth(growth, f"Words in use as the gallery grows: {name}", output)
    if as_json:
        print_json(_to_json(counted.info, usages, counted.dim, growth))
        return
    out = console()
    for usage in usages:
        _print_table(out, usage, counted.dim, is_projected=usage is not here)
    _print_growth(out, growth)
    _print_disk(out, counted.info)
    if output:
        click.echo(f"{shown(str(output))}: words in use as the gallery grows")


def _to_json(
    info: "GalleryInfo", usages: "list[WordUsage]", dim: int, growth: "Growth"
) -> dict[str, Any]:
    from bm25v.research import cost

    sizes = [
        {
            "pictures": usage.images,
            "active": usage.active_words,
            "picture_words": usage.image_words,
            "postings": {"expected": usage.expected_postings, "counted": usage.postings},
            "systems": [line.to_dict() for line in cost.cost_table(usage, dim=dim)],
        }
        for usage in usages
    ]
    on_disk = {
        "bags": info.bag_bytes_per_picture,
        "dense": info.dense_bytes_per_picture,
        "catalogue": info.catalog_bytes_per_picture,
    }
    return {
        "gallery": info.path,
        "words": info.words,
        "dim": dim,
        "bytes_on_disk": on_disk,
        "sizes": sizes,
        "growth": growth._asdict(),
    }


def _print_table(out: "Console", usage: "WordUsage", dim: int, *, is_projected: bool) -> None:
    from rich.table import Table

    from bm25v.research import cost

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("system", no_wrap=True)
    for name in ("bytes a vector", "compression", "operations, expected", "counted"):
        table.add_column(name, justify="right", no_wrap=True)
    for line in cost.cost_table(usage, dim=dim):
        table.add_row(
            line.system,
            f"{line.bytes_per_image:,.0f}",
            f"{line.compression:.1f}×",
            f"{line.operations:,.0f}",
            "" if line.counted is None else f"{line.counted:,.0f}",
        )
    words = f"{usage.active_words:,.0f} of {usage.vocabulary:,} words"
    title = f"{usage.images:,} pictures, {words} active"
    if is_projected:
        title = f"projected to {usage.images:,} pictures, {words} expected to be active"
    out.print(title, style="bold")
    out.print(table)
    out.print()


def _print_growth(out: "Console", growth: "Growth") -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("pictures", "words in use", "if drawn evenly"):
        table.add_column(name, justify="right", no_wrap=True)
    for size, measured, expected in zip(*growth[1:], strict=True):
        table.add_row(f"{size:,}", f"{measured:,.0f}", f"{expected:,.0f}")
    out.print(table)
    out.print()


def _print_disk(out: "Console", info: "GalleryInfo") -> None:
    bags, dense = info.bag_bytes_per_picture, info.dense_bytes_per_picture
    parts = f"{bags:,.0f} for its bag and {dense:,.0f} for its dense vector"
    out.print(f"bm25v keeps {bags + dense:,.0f} bytes a picture on disk: {parts}")
    if info.removed_rows:
        out.print(f"{info.removed_rows:,} removed pictures are among them: run bm25v compact")
    out.print(_NOTE, style="dim", soft_wrap=True)
