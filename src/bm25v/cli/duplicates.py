"""`bm25v duplicates`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from bm25v.cli.options import gallery_option, json_option, print_json, shown

if TYPE_CHECKING:
    from bm25v.duplicates import Duplicate, DuplicateGroup


@click.command("duplicates")
@gallery_option
@click.option("--exact", "only", flag_value="exact", help="Only files with the same content.")
@click.option("--near", "only", flag_value="near", help="Only groups of different contents.")
@json_option
def command(gallery_path: Path, only: str | None, as_json: bool) -> None:
    """Find pictures that are there twice: the same, or nearly the same.

    Nearly the same are pictures that were made from one another: resized, recompressed, a little
    cropped, turned or brightened. Each is compared with the first of its group.
    """
    from bm25v.api import Gallery
    from bm25v.cli.progress import progress_bar

    with Gallery.open(gallery_path) as gallery, progress_bar("comparing") as progress:
        found = gallery.duplicates(near=only != "exact", progress=progress)
        n_pictures = len(gallery)
    groups = [group for group in found if only != "near" or group.kind == "near"]
    if as_json:
        print_json({"pictures": n_pictures, "groups": [group.to_dict() for group in groups]})
        return
    for group in groups:
        _print(group)
    spare = sum(len(group.images) - 1 for group in groups)
    if groups:
        counted = f"{len(groups):,} group{'s' * (len(groups) != 1)}"
        click.echo(f"{counted}; {spare:,} of {n_pictures:,} pictures could go")
    else:
        click.echo(f"no duplicates among {n_pictures:,} pictures")


def _print(group: "DuplicateGroup") -> None:
    first, *others = group.images
    click.echo(f"{shown(first.path)}  {_size(first.size)}")
    for one in others:
        click.echo(f"  {_relation(one)}  {shown(one.path)}  {_size(one.size)}")
    click.echo()


def _relation(one: "Duplicate") -> str:
    return "same             " if one.is_copy else f"near, cosine {one.similarity.cosine:.2f}"


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
