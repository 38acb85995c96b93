"""`bm25v bags`: encode images without a gallery, and exchange galleries with other programs."""

import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bm25v.cli.options import (
    COUNT,
    FOLDER,
    PathType,
    dense_option,
    gallery_option,
    json_option,
    open_gallery,
    output_option,
    vocabulary_option,
)
from bm25v.cli.printing import echo, emit, print_failures, print_report
from bm25v.cli.progress import progress_bar
from bm25v.display import count, display_path, duration
from bm25v.errors import InvalidOption

if TYPE_CHECKING:
    from bm25v.store.qdrant.calls import Calls


@click.group("bags")
def bags() -> None:
    """Encode without a gallery; move galleries to files and to Qdrant."""


@bags.command("encode")
@click.argument("paths", nargs=-1, required=True, type=PathType())
@output_option(
    "The folder for the bags. A run that was interrupted continues in it.", FOLDER, is_required=True
)
@click.option(
    "--exclude", multiple=True, metavar="PATTERN", help="As of `bm25v index`: raw, *.png, 2023/raw."
)
@vocabulary_option
@dense_option
@click.option(
    "--images-per-file",
    default=1024,
    show_default=True,
    type=COUNT,
    help="An interrupted run loses the files that are not complete yet.",
)
@click.option("--retry", is_flag=True, help="Also read images again that were unreadable before.")
@click.option("--workers", type=COUNT, help="Threads  [default: one for each CPU]")
@click.option(
    "--ray",
    "ray_address",
    metavar="ADDRESS",
    help="Encode on a Ray cluster: local (this machine), auto (the cluster of this node), "
    "host:port or ray://host:port. Needs the extra ray.",
)
@click.option(
    "--cpus-per-actor",
    type=COUNT,
    help="With --ray: threads of a process that encodes  [default: 4, or all of a smaller node]",
)
@json_option
def encode(
    paths: tuple[str, ...],
    output: Path,
    vocabulary: str,
    dense: str | None,
    workers: int | None,
    ray_address: str | None,
    cpus_per_actor: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Encode images to a folder of bags, without a gallery.

    PATHS are folders, images, or lists: text files (.txt) with a path on each line. The bags are
    Parquet files, which `bm25v bags load` makes a gallery of. Images that are in the folder already
    are not encoded again, unless they have changed. Unreadable images are rows with the reason, and
    listed at the end. The exit code is 1 if no image could be read. Needs the extra parquet.
    """
    from bm25v.exchange.encode import encode_folder, encode_here
    from bm25v.exchange.on_ray import encode_on
    from bm25v.exchange.parquet import require_pyarrow
    from bm25v.store.meta import describe_vocabulary
    from bm25v.threads import available_cpus
    from bm25v.vocabulary import Vocabulary

    require_pyarrow()
    if ray_address is None and cpus_per_actor is not None:
        raise InvalidOption("--cpus-per-actor is for --ray: give --workers")
    if ray_address is not None and workers is not None:
        raise InvalidOption(
            "--workers is for this process alone: with --ray, give --cpus-per-actor"
        )
    loaded = Vocabulary.load(vocabulary).with_dense(dense)
    meta = describe_vocabulary(loaded)
    if ray_address is None:
        encode_parts = encode_here(loaded, workers or available_cpus())
    else:
        encode_parts = encode_on(ray_address, meta, cpus_per_actor)
    try:
        with progress_bar() as progress:
            report = encode_folder(paths, output, meta, encode_parts, progress=progress, **options)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("run the same command again to continue") from None
    summary = (
        f"{report.encoded:,} encoded, {report.unchanged:,} unchanged, "
        f"{len(report.failed):,} unreadable in {duration(report.seconds)}"
    )

    def print_encoded() -> None:
        print_failures(report.failed)
        echo(summary)

    emit(report.to_dict, as_json, print_encoded)
    if report.failed and not report.encoded + report.unchanged:
        sys.exit(1)


@bags.command("export")
@gallery_option
@output_option("A new folder.", FOLDER, is_required=True)
@json_option
def export(gallery_path: Path, output: Path, as_json: bool) -> None:
    """Write a gallery as a folder of bags, for other programs.

    These are Parquet files with one row for each image: path, content hash, size, dates, words and
    their frequencies, dense vector. `bm25v bags load` makes a gallery of it. Needs the extra
    parquet.
    """
    with open_gallery(gallery_path) as gallery, progress_bar() as progress:
        n_images = gallery.export_bags(output, progress=progress)
    emit(
        {"n_images": n_images, "path": str(output)},
        as_json,
        f"{count(n_images, 'image')} written: {display_path(str(output))}",
    )


@bags.command("load")
@click.argument(
    "folder",
    metavar="[BAGS]",
    required=False,
    type=PathType(exists=True, file_okay=False, path_type=Path),
)
@gallery_option
@click.option(
    "--engine",
    metavar="URL",
    help="Load into this collection of Qdrant instead: qdrant://host:6334/images. Without BAGS, "
    "the gallery is loaded.",
)
@click.option("--shards", type=COUNT, help="With --engine: shards of a new collection.")
@click.option("--replicas", type=COUNT, help="With --engine: copies of each shard, if it is new.")
@click.option(
    "--vocabulary", help="The vocabulary's name or folder, if it is not where the bags say."
)
@json_option
def load(
    folder: Path | None,
    gallery_path: Path,
    engine: str | None,
    vocabulary: str | None,
    as_json: bool,
    **new: int | None,
) -> None:
    """Add a folder of bags to a gallery, or make a gallery of it.

    No image is read or encoded: searches are those of a gallery that has indexed the same files.
    It can be interrupted and run again at any time. Bags of another vocabulary are refused. Needs
    the extra parquet.

    With --engine, the bags or the gallery go into a collection of Qdrant, which is created if there
    is none. Loading again writes only what has changed. Needs the extra qdrant.
    """
    from bm25v.exchange.parquet import BagFolder
    from bm25v.gallery import Gallery
    from bm25v.store.local.catalog import FILE_NAME

    if engine is not None:
        start = time.perf_counter()
        with _connect(engine) as calls, progress_bar() as progress:
            from bm25v.store.qdrant.writer import load_folder, load_gallery

            if folder is not None:
                loaded = load_folder(calls, BagFolder(folder), progress=progress, **new)
            else:
                with Gallery.open(gallery_path, vocabulary=vocabulary) as gallery:
                    loaded = load_gallery(calls, gallery.local, progress=progress, **new)
        summary = (
            f"{loaded.added:,} added, {loaded.updated:,} updated, {loaded.unchanged:,} unchanged "
            f"in {duration(time.perf_counter() - start)}"
        )
        emit(loaded._asdict(), as_json, summary)
        return
    if folder is None:
        raise InvalidOption("nothing to load: give a folder of bags, or --engine for a gallery")
    if any(value is not None for value in new.values()):
        raise InvalidOption("--shards and --replicas are for a collection of --engine")
    if (gallery_path / FILE_NAME).exists():
        opened = Gallery.open(gallery_path, vocabulary=vocabulary)
    else:
        opened = Gallery.create_for_bags(gallery_path, folder, vocabulary=vocabulary)
    with opened as gallery, progress_bar() as progress:
        report = gallery.load_bags(folder, progress=progress)
        gallery.refresh()
    emit(report.to_dict, as_json, lambda: print_report(report))


@bags.command("reconcile")
@click.option(
    "--engine", required=True, metavar="URL", help="The collection: qdrant://host:6334/images."
)
@json_option
def reconcile(engine: str, as_json: bool) -> None:
    """Count a collection of Qdrant again, after a writer was killed.

    Run it while nothing writes to the collection.
    """
    with _connect(engine) as calls, progress_bar() as progress:
        from bm25v.store.qdrant.writer import reconcile as count_again

        report = count_again(calls, progress)
    before = "" if report.n_before == report.n_images else f" ({report.n_before:,} before)"
    rewritten = "; stored values computed again" if report.rewritten else ""
    emit(vars(report), as_json, f"{count(report.n_images, 'image')}{before}{rewritten}")


def _connect(url: str) -> "closing[Calls]":
    from bm25v.store.qdrant import open_calls, parse_address

    return closing(open_calls(parse_address(url)))
