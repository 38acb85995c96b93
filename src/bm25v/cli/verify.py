"""`bm25v verify`."""

import sys
from pathlib import Path

import click

from bm25v.cli.options import gallery_option, json_option, print_json


@click.command("verify")
@gallery_option
@json_option
def command(gallery_path: Path, as_json: bool) -> None:
    """Check every row of a gallery; exit code 1 if something is wrong."""
    from bm25v.api import Gallery

    with Gallery.open(gallery_path) as gallery:
        problems = gallery.problems()
        pictures = len(gallery)
    if as_json:
        print_json({"pictures": pictures, "problems": problems})
    elif problems:
        click.echo("\n".join(problems))
    else:
        click.echo(f"{pictures:,} pictures, all whole")
    sys.exit(1 if problems else 0)
