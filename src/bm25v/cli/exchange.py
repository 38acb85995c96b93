"""`bm25v encode`, `export` and `load`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bm25v.cli.options import (
    PathType,
    dense_option,
    gallery_option,
    json_option,
    vocabulary_option,
)
from bm25v.cli.printing import echo, print_json
from bm25v.display import count, display_path, duration
from bm25v.errors import WrongUse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bm25v.gallery.indexing import Failure


@click.command("encode")
@click.argument("paths", nargs=-1, required=True, type=PathType())
@click.option(
    "-o",
    "--output",
    required=True,
    type=PathType(file_okay=False, path_type=Path),
    help="The folder for the bags. A run that was interrupted continues in it.",
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
    type=click.IntRange(1),
    help="An interrupted run loses the files that are not complete yet.",
)
@click.option("--retry", is_flag=True, help="Also read images again that were unreadable before.")
@click.option("--workers", type=click.IntRange(1), help="Threads  [default: one for each CPU]")
@click.option(
    "--ray",
    "ray_address",
    metavar="ADDRESS",
    help="Encode on a Ray cluster: local (this machine), auto (the cluster of this node), "
    "host:port or ray://host:port. Needs the extra ray.",
)
@click.option(
    "--cpus-per-actor",
    type=click.IntRange(1),
    help="With --ray: threads of a process that encodes  [default: 4, or all of a smaller node]",
)
@json_option
def encode(
    paths: tuple[str, ...],
    output: Path,
    exclude: tuple[str, ...],
    vocabulary: str,
    dense: str | None,
    images_per_file: int,
    retry: bool,
    workers: int | None,
    ray_address: str | None,
    cpus_per_actor: int | None,
    as_json: bool,
) -> None:
    """Encode images to a folder of bags, without a gallery.

    PATHS are folders, images, or lists: text files (.txt) with a path on each line. The bags are
    Parquet files, which `bm25v load` makes a gallery of. Images that are in the folder already are
    not encoded again, unless they have changed. Unreadable images are rows with the reason, and
    listed at the end. The exit code is 1 if no image could be read. Needs the extra parquet.
    """
    from bm25v.cli.progress import progress_bar
    from bm25v.exchange.bags import BagSettings
    from bm25v.exchange.encode import encode_folder, encode_here
    from bm25v.exchange.on_ray import encode_on
    from bm25v.exchange.parquet import require_pyarrow
    from bm25v.threads import available_cpus
    from bm25v.vocabulary import Vocabulary

    require_pyarrow()
    if ray_address is None and cpus_per_actor is not None:
        raise WrongUse("--cpus-per-actor is for --ray: give --workers")
    if ray_address is not None and workers is not None:
        raise WrongUse("--workers is for this process alone: with --ray, give --cpus-per-actor")
    loaded = Vocabulary.load(vocabulary).with_dense(dense)
    settings = BagSettings.of(loaded)
    if ray_address is None:
        encode_parts = encode_here(loaded, workers or available_cpus())
    else:
        encode_parts = encode_on(ray_address, settings, cpus_per_actor)
    try:
        with progress_bar() as progress:
            report = encode_folder(
                paths,
                output,
                settings,
                encode_parts,
                exclude=exclude,
                images_per_file=images_per_file,
                retry=retry,
                progress=progress,
            )
    except KeyboardInterrupt:
        raise KeyboardInterrupt("run the same command again to continue") from None
    if as_json:
        print_json(report.to_dict())
    else:
        _print_failures(report.failed)
        echo(
            f"{report.encoded:,} encoded, {report.unchanged:,} unchanged, "
            f"{len(report.failed):,} unreadable in {duration(report.seconds)}"
        )
    if report.failed and not report.encoded + report.unchanged:
        sys.exit(1)


@click.command("export")
@gallery_option
@click.option(
    "-o",
    "--output",
    required=True,
    type=PathType(path_type=Path),
    help="A new folder; a file for --format ciff.",
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["parquet", "ciff"]),
    default="parquet",
    show_default=True,
    help="parquet: a folder of bags. ciff: the postings of the index.",
)
@json_option
def export(gallery_path: Path, output: Path, file_format: str, as_json: bool) -> None:
    """Write a gallery as files for other programs.

    A folder of bags has Parquet files with one row for each image: path, content hash, size, dates,
    words and their frequencies, dense vector. `bm25v load` makes a gallery of it. Needs the extra
    parquet. CIFF, the Common Index File Format, is a file that Lucene, PISA and other engines read.
    """
    from bm25v.api import Gallery
    from bm25v.cli.progress import progress_bar

    with Gallery.open(gallery_path) as gallery, progress_bar() as progress:
        write = gallery.export_ciff if file_format == "ciff" else gallery.export_bags
        n_images = write(output, progress=progress)
    if as_json:
        print_json({"pictures": n_images, "path": str(output)})
    else:
        echo(f"{count(n_images, 'image')} written: {display_path(str(output))}")


@click.command("load")
@click.argument("bags", required=False, type=PathType(exists=True, file_okay=False, path_type=Path))
@gallery_option
@click.option(
    "--engine",
    metavar="URL",
    help="Load into this collection of Qdrant instead: qdrant://host:6334/images. Without BAGS, "
    "the gallery is loaded.",
)
@click.option("--shards", type=click.IntRange(1), help="With --engine: shards of a new collection.")
@click.option(
    "--replicas", type=click.IntRange(1), help="With --engine: copies of each shard, if it is new."
)
@click.option(
    "--vocabulary",
    help="The vocabulary's name or folder, if it is not where the bags say.",
)
@json_option
def load(
    bags: Path | None,
    gallery_path: Path,
    engine: str | None,
    shards: int | None,
    replicas: int | None,
    vocabulary: str | None,
    as_json: bool,
) -> None:
    """Add a folder of bags to a gallery, or make a gallery of it.

    No image is read or encoded: searches are those of a gallery that has indexed the same files.
    It can be interrupted and run again at any time. Bags of another vocabulary are refused. Needs
    the extra parquet.

    With --engine, the bags or the gallery go into a collection of Qdrant, which is created if there
    is none. Loading again writes only what has changed. Needs the extra qdrant.
    """
    if engine is not None:
        from bm25v.cli.engines import load_engine

        load_engine(
            bags,
            gallery_path,
            engine,
            vocabulary=vocabulary,
            shards=shards,
            replicas=replicas,
            as_json=as_json,
        )
        return
    if bags is None:
        raise WrongUse("nothing to load: give a folder of bags, or --engine for a gallery")
    if shards is not None or replicas is not None:
        raise WrongUse("--shards and --replicas are for a collection of --engine")
    from bm25v.api import Gallery
    from bm25v.cli.progress import progress_bar
    from bm25v.gallery.catalog_schema import FILE_NAME

    if (gallery_path / FILE_NAME).exists():
        gallery = Gallery.open(gallery_path, vocabulary=vocabulary)
    else:
        gallery = Gallery.create_for_bags(gallery_path, bags, vocabulary=vocabulary)
    with gallery, progress_bar() as progress:
        report = gallery.load_bags(bags, progress=progress)
    if as_json:
        print_json(report.to_dict())
        return
    _print_failures(report.failed)
    echo(
        f"{report.added:,} added, {report.updated:,} updated, {report.unchanged:,} unchanged, "
        f"{len(report.failed):,} unreadable in {duration(report.seconds)}"
    )


def _print_failures(failed: "Iterable[Failure]") -> None:
    for failure in failed:
        echo(f"unreadable: {display_path(failure.path)}: {failure.error}", err=True)
