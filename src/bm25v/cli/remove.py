"""`bm25v remove`."""

from pathlib import Path

import click

from bm25v.cli.options import gallery_option, json_option, print_json


@click.command("remove")
@click.argument("paths", nargs=-1, required=True, type=click.Path())
@gallery_option
@json_option
def command(paths: tuple[str, ...], gallery_path: Path, as_json: bool) -> None:
    """Remove pictures, or all pictures of folders, from the gallery; files are left alone."""
    from bm25v.api import Gallery
    from bm25v.errors import GalleryError

    with Gallery.open(gallery_path) as gallery:
        removed = gallery.remove(paths)
    if as_json:
        print_json({"removed": removed})
    elif removed:
        click.echo(f"{removed:,} removed")
    if not removed:
        raise GalleryError(f"nothing of {', '.join(paths)} is in {gallery_path}")
