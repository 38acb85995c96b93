"""`bm25v serve`."""

import webbrowser
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import click

from bm25v.cli.options import FILE, FOLDER, collection_option
from bm25v.cli.printing import echo
from bm25v.errors import InvalidOption, MissingExtra


@click.command("serve")
@collection_option
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="The address or name to listen at."
)
@click.option(
    "--port",
    default=8025,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="The port; 0 takes a free one.",
)
@click.option(
    "--token-file",
    type=FILE,
    help="A file with a token, 16 characters or more, that every request must have.",
)
@click.option(
    "--insecure", is_flag=True, help="Listen without a token at an address that others can reach."
)
@click.option(
    "--allow-host",
    "allow_hosts",
    multiple=True,
    metavar="NAME",
    help="Another name of the server, such as that of a proxy in front of it.",
)
@click.option(
    "--writable",
    is_flag=True,
    help="Let requests add and remove images, move files into a trash folder, and name words.",
)
@click.option(
    "--strip-metadata",
    is_flag=True,
    help="Send files without metadata, such as the position; only JPEG, PNG and WebP are sent.",
)
@click.option(
    "--watch",
    multiple=True,
    type=FOLDER,
    metavar="FOLDER",
    help="Keep the gallery current with this folder: new, changed, moved and removed images. "
    "A gallery that does not exist is created.",
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="PATTERN",
    help="Leave this out of what is watched, as in `bm25v index`.",
)
@click.option(
    "--workers",
    default=1,
    show_default=True,
    type=click.IntRange(1, 256),
    help="Processes that search at the same time, for many users; each takes about 100 MB.",
)
@click.option("--open", "open_page", is_flag=True, help="Open the address in a browser.")
def serve(
    gallery_path: Path | str,
    token_file: Path | None,
    watch: tuple[Path, ...],
    exclude: tuple[str, ...],
    workers: int,
    open_page: bool,
    **options: Any,
) -> None:
    """Serve the gallery over HTTP until Ctrl-C.

    Only programs on this machine can connect, unless --host says otherwise; then a token is needed.
    """
    from bm25v.client import read_token
    from bm25v.gallery import Gallery

    if exclude and not watch:
        raise InvalidOption("--exclude leaves images out of --watch: give both, or none")
    if watch and not isinstance(gallery_path, Path):
        raise InvalidOption(
            f"--watch and -g {gallery_path}: only a gallery on this machine follows folders"
        )
    try:
        from bm25v.server.run import serve as run
        from bm25v.server.watch import Watcher
        from bm25v.server.workers import Workers
    except ImportError as error:
        raise MissingExtra("bm25v serve", "serve") from error

    token = None if token_file is None else read_token(token_file)

    def announce(url: str) -> None:
        echo(f"serving {gallery_path} at {url} (Ctrl-C stops it)")
        if open_page:
            webbrowser.open(url)

    opened = (Gallery.open_or_create if watch else Gallery.open)(gallery_path)
    reopen: Callable[[], Gallery] = partial(Gallery.open, gallery_path)
    with opened as gallery, suppress(KeyboardInterrupt):
        run(
            gallery,
            token=token,
            watcher=Watcher(gallery, watch, exclude=exclude) if watch else None,
            start_workers=partial(Workers, reopen, workers) if workers > 1 else None,
            announce=announce,
            **options,
        )
    echo("stopped")
