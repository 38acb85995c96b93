"""`bm25v compact`."""

from pathlib import Path

import click

from bm25v.cli.options import gallery_option, json_option, print_json


@click.command("compact")
@gallery_option
@json_option
def command(gallery_path: Path, as_json: bool) -> None:
    """Give back the space of removed pictures; searches go on meanwhile."""
    from bm25v.api import Gallery
    from bm25v.cli.progress import progress_bar

    with Gallery.open(gallery_path) as gallery:
        with progress_bar("compacting") as progress:
            given_back = gallery.compact(progress=progress)
        pictures = len(gallery)
    if as_json:
        print_json({"bytes": given_back, "pictures": pictures})
    elif given_back:
        click.echo(f"{_size(given_back)} given back, {pictures:,} pictures")
    else:
        click.echo("nothing to give back")


def _size(n_bytes: int) -> str:
    """Return a size as people say it.

    >>> _size(184), _size(12_345), _size(12_345_678), _size(1_234_567_890)
    ('184 bytes', '12.3 kB', '12.3 MB', '1.2 GB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes} bytes"
