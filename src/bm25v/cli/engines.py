"""`bm25v reconcile`, and `bm25v load` into other engines."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bm25v.cli.options import json_option
from bm25v.cli.printing import echo, print_json
from bm25v.display import count, duration

if TYPE_CHECKING:
    from bm25v.engines.calls import Calls


@click.command("reconcile")
@click.option(
    "--engine", required=True, metavar="URL", help="The collection: qdrant://host:6334/images."
)
@json_option
def reconcile(engine: str, as_json: bool) -> None:
    """Count a collection of Qdrant again, after a writer was killed.

    Run it while nothing writes to the collection.
    """
    from bm25v.cli.progress import progress_bar

    calls = _connect(engine)
    from bm25v.engines.writer import reconcile as count_again

    with progress_bar() as progress:
        report = count_again(calls, progress)
    calls.close()
    if as_json:
        print_json(vars(report))
        return
    before = "" if report.n_before == report.n_images else f" ({report.n_before:,} before)"
    rewritten = "; stored values computed again" if report.rewritten else ""
    echo(f"{count(report.n_images, 'image')}{before}{rewritten}")


def load_engine(
    bags: Path | None,
    gallery_path: Path,
    engine: str,
    *,
    vocabulary: str | None,
    shards: int | None,
    replicas: int | None,
    as_json: bool,
) -> None:
    """Load a folder of bags, or else a gallery, into a collection of an engine."""
    from bm25v.api import Gallery
    from bm25v.cli.progress import progress_bar
    from bm25v.exchange.parquet import BagFolder

    calls = _connect(engine)
    from bm25v.engines.loading import load_folder, load_gallery

    start = time.perf_counter()
    with progress_bar() as progress:
        if bags is not None:
            report = load_folder(
                calls,
                BagFolder(bags),
                vocabulary=vocabulary,
                shards=shards,
                replicas=replicas,
                progress=progress,
            )
        else:
            with Gallery.open(gallery_path, vocabulary=vocabulary) as gallery:
                report = load_gallery(
                    calls, gallery.store, shards=shards, replicas=replicas, progress=progress
                )
    calls.close()
    if as_json:
        print_json(report._asdict())
        return
    echo(
        f"{report.added:,} added, {report.updated:,} updated, {report.unchanged:,} unchanged in "
        f"{duration(time.perf_counter() - start)}"
    )


def _connect(url: str) -> "Calls":
    from bm25v.engines import require_engine

    address = require_engine(url)
    from bm25v.engines.loading import open_calls

    return open_calls(address)
