"""`bm25v index`."""

from pathlib import Path

import click

from bm25v.cli.options import duration, gallery_option, json_option, print_json, shown


@click.command("index")
@click.argument("paths", nargs=-1, required=True, type=click.Path())
@gallery_option
@click.option("--vocabulary", help="A vocabulary's name or folder  [default: the gallery's own]")
@json_option
def command(
    paths: tuple[str, ...], gallery_path: Path, vocabulary: str | None, as_json: bool
) -> None:
    """Bring the gallery in line with folders of pictures.

    New pictures are added, changed ones renewed, moved ones followed, and those whose files are
    gone are removed. Can be interrupted and run again at any time.
    """
    from bm25v.api import Gallery
    from bm25v.cli.progress import progress_bar
    from bm25v.gallery.catalog import FILE_NAME
    from bm25v.gallery.indexing import require_images
    from bm25v.vocabulary import DEFAULT

    if (gallery_path / FILE_NAME).exists():
        gallery = Gallery.open(gallery_path, vocabulary=vocabulary)
    else:
        require_images(paths)  # before a gallery is made for nothing
        gallery = Gallery.create(gallery_path, vocabulary=vocabulary or DEFAULT)
    with gallery, progress_bar("indexing") as progress:
        report = gallery.add(paths, remove_missing=True, progress=progress)
    if as_json:
        print_json(report.to_dict())
        return
    for failure in report.failed:
        click.echo(f"unreadable: {shown(failure.path)}: {failure.error}", err=True)
    listed = " (listed)" if report.failed else ""
    counts = [f"{report.added:,} added", f"{len(report.failed):,} unreadable{listed}"]
    changes = {"updated": report.updated, "moved": report.moved, "removed": report.removed}
    counts += [f"{count:,} {what}" for what, count in changes.items() if count]
    counts.append(f"{report.unchanged:,} unchanged")
    click.echo(f"{', '.join(counts)} in {duration(report.seconds)}")
