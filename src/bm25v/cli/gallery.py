"""`bm25v demo`, `index`, `info`, `remove`, `compact`, `verify` and `duplicates`."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bm25v.cli.options import (
    COUNT,
    FOLDER,
    PathType,
    collection_option,
    gallery_option,
    json_option,
    open_gallery,
    open_option,
    output_option,
)
from bm25v.cli.printing import (
    Column,
    choose_output,
    echo,
    echo_wrapped,
    emit,
    print_facts,
    print_report,
    print_table,
    report_written,
)
from bm25v.cli.progress import progress_bar, training_display
from bm25v.display import count, display_path, file_size
from bm25v.errors import GalleryError, GalleryLocked, InvalidOption

if TYPE_CHECKING:
    from bm25v.gallery import Gallery
    from bm25v.store.base import IndexReport


@click.command("demo")
@click.option(
    "--folder",
    default="demo",
    show_default=True,
    type=FOLDER,
    help="The folder for the photos, the gallery and the report.",
)
@json_option
def demo(folder: Path, as_json: bool) -> None:
    """Index photos of flowers, search them, and write a page.

    Searches by a text, a photo and a part of a photo.
    """
    from bm25v import demo

    with progress_bar() as progress:
        report = demo.run(folder, progress=progress)

    def print_demo() -> None:
        for example in report.examples:
            hits = [(Path(path).name, why) for path, why in example.hits]
            print_table([Column(example.title, "text"), Column("shows", "list")], hits)
            echo()
        echo_wrapped(f"why the first hit of the photo is one: {report.sentence}")
        echo(f"report: {display_path(report.page)}")
        echo(f"one explanation: {display_path(report.drawing)}")
        echo()
        echo("try it yourself:")
        for command in report.commands:
            echo(f"  {command}")

    emit(report.to_dict, as_json, print_demo)


@click.command("index")
@click.argument("paths", nargs=-1, required=True, type=PathType())
@gallery_option
@click.option(
    "--exclude",
    multiple=True,
    metavar="PATTERN",
    help="Leave out files and folders of this name (raw, *.png), or of this path from the indexed "
    "folder on (2023/raw). Give it at every run.",
)
@click.option("--vocabulary", help="A vocabulary's name or folder  [default: the gallery's own]")
@click.option(
    "--backbone",
    help="For a new gallery: learn a vocabulary for this backbone first, from up to 4,000 of the "
    "images. A name from `bm25v models list`, a spec file (.toml), a Hugging Face model "
    "(siglip2-base, owner/name) or its folder. Needs the extra train or hf.",
)
@click.option(
    "--dense",
    metavar="BACKBONE",
    help="A second backbone for the dense vectors of a new gallery: with dinov2-s, hits are "
    "ordered better, and indexing takes several times as long.",
)
@click.option("--k1", type=float, help="The k1 of BM25, for a new gallery.")
@click.option("--b", type=float, help="The b of BM25, for a new gallery.")
@click.option("--workers", type=COUNT, help="Threads  [default: one for each CPU]")
@click.option("-v", "--verbose", is_flag=True, help="List files that were unreadable before, too.")
@json_option
def index(
    paths: tuple[str, ...],
    gallery_path: Path,
    exclude: tuple[str, ...],
    vocabulary: str | None,
    backbone: str | None,
    dense: str | None,
    k1: float | None,
    b: float | None,
    workers: int | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Index folders: add, update and remove images.

    New images are added, changed ones updated, moved ones followed, and those whose files no longer
    exist, or are excluded, are removed. It can be interrupted and run again at any time. The exit
    code is 1 if no image could be read.
    """
    from bm25v.gallery import Gallery
    from bm25v.index.bm25 import Bm25Parameters
    from bm25v.store.files import require_images
    from bm25v.store.local.catalog import FILE_NAME
    from bm25v.store.local.store import check_new
    from bm25v.vocabulary import Vocabulary

    if backbone is not None and vocabulary is not None:
        raise InvalidOption(
            "--vocabulary has a backbone of its own, --backbone learns another vocabulary: give "
            "one of them"
        )
    parameters = {name: value for name, value in (("k1", k1), ("b", b)) if value is not None}
    if (gallery_path / FILE_NAME).exists():
        if parameters:
            raise InvalidOption(f"{gallery_path} exists: --k1 and --b are for a new gallery")
        if backbone is not None:
            _check_backbone(gallery_path, backbone)
    else:
        require_images(paths, exclude)  # before an empty gallery is created
        if backbone is not None:
            check_new(gallery_path)  # and the options of the gallery, before hours of training
            Bm25Parameters(**parameters)
            Vocabulary.load("toy").with_dense(dense)
            vocabulary = str(_learn_vocabulary(gallery_path, backbone, paths, exclude))
    gallery = Gallery.open_or_create(gallery_path, vocabulary=vocabulary, dense=dense, **parameters)
    with gallery:
        report = _add_images(gallery, paths, exclude=exclude, workers=workers)
        with suppress(GalleryLocked):  # who writes now does it afterwards
            gallery.refresh()
    emit(report.to_dict, as_json, lambda: print_report(report, lists_known=verbose))
    if report.failed and not report.n_indexed:
        sys.exit(1)


def _check_backbone(gallery_path: Path, backbone: str) -> None:
    """Raise an error if a gallery was made with another backbone."""
    from bm25v import backbones

    with open_gallery(gallery_path) as gallery:
        own = gallery.store.meta.backbone
    given = backbones.load_backbone(backbone).name
    if given != own:
        raise InvalidOption(
            f"{gallery_path} was made with the backbone {own}, not with {given}: leave out "
            "--backbone, or give a new gallery with -g"
        )


def _learn_vocabulary(
    gallery_path: Path, backbone: str, paths: tuple[str, ...], exclude: tuple[str, ...]
) -> Path:
    """Return the folder of a new gallery's own vocabulary, after it was learned."""
    from bm25v import backbones
    from bm25v.store.files import list_images
    from bm25v.training import first_vocabulary

    folder = first_vocabulary.vocabulary_folder(gallery_path)
    loaded = backbones.load_backbone(backbone)
    if first_vocabulary.has_vocabulary(folder, loaded):
        echo(f"vocabulary: {display_path(str(folder))}, which was learned before", err=True)
        return folder
    images = list_images(paths, exclude)
    sample = first_vocabulary.sample_images(images, loaded)
    some = "" if len(sample) == len(images) else f"{len(sample):,} of "
    with training_display() as listener:
        echo(
            f"first, a vocabulary for {loaded.name} is learned from {some}{len(images):,} images: "
            f"{display_path(str(folder))}",
            err=True,
        )
        try:
            first_vocabulary.learn_vocabulary(folder, backbone, sample, listener)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("run the same command again to continue") from None
    return folder


def _add_images(
    gallery: "Gallery", paths: tuple[str, ...], *, exclude: tuple[str, ...], workers: int | None
) -> "IndexReport":
    """Add images with a progress bar; if that is interrupted, say how many were saved."""
    n_images = 0

    def progress(stage: str, done: int, total: int) -> None:
        nonlocal n_images
        n_images = total
        show(stage, done, total)

    try:
        with progress_bar() as show:
            return gallery.add(
                paths, exclude=exclude, remove_missing=True, workers=workers, progress=progress
            )
    except KeyboardInterrupt:
        if not n_images:
            raise
        n_saved = len(list(gallery.images(folder=paths)))
        saved = f"{min(n_saved, n_images):,} of {count(n_images, 'image')} were saved"
        raise KeyboardInterrupt(f"{saved}; run the same command again to continue") from None


@click.command("info")
@collection_option
@json_option
def info(gallery_path: Path | str, as_json: bool) -> None:
    """Show facts about a gallery."""
    with open_gallery(gallery_path) as gallery:
        facts = gallery.info()
    removed = f" ({facts.removed_rows:,} removed)" if facts.removed_rows else ""
    lines = {
        "gallery": facts.path,
        "images": f"{facts.n_images:,}{removed}",
        "vocabulary": f"{facts.vocabulary} ({facts.vocabulary_fingerprint})",
        "backbone": facts.backbone,
        "words in use": f"{facts.words_in_use:,} of {facts.words:,}",
        "average length": f"{facts.average_length:.1f}",
        "BM25": f"k1 {facts.k1:g}, b {facts.b:g}",
    }
    if facts.image_names:
        lines["names of images"] = f"{facts.image_names:,}"
    if isinstance(gallery_path, Path):
        lines["bytes per image"] = (
            f"{facts.bag_bytes_per_image:,.0f} bag, {facts.full_bag_bytes_per_image:,.0f} full "
            f"bag, {facts.dense_bytes_per_image:,.0f} dense vector, "
            f"{facts.catalog_bytes_per_image:,.0f} catalogue"
        )
    emit(facts.to_dict, as_json, lambda: print_facts(lines))


@click.command("name")
@click.argument("name", required=False)
@click.argument("images", metavar="[IMAGE]...", nargs=-1, type=PathType())
@gallery_option
@click.option("--clear", is_flag=True, help="Remove the name instead.")
@json_option
def name(
    name: str | None, images: tuple[str, ...], gallery_path: Path, clear: bool, as_json: bool
) -> None:
    """Give images a NAME that `search --text` finds, or list all names.

    Images that have the name already keep it.
    """
    from bm25v.vocabulary.phrases import make_key

    if name is not None and bool(images) == clear:
        raise click.UsageError("give the IMAGES to name, or --clear to remove the name")
    with open_gallery(gallery_path) as gallery:
        if clear and name is not None and make_key(name) not in gallery.store.image_names:
            raise InvalidOption(f"no images are named {name!r}: `bm25v name` lists all names")
        if name is None:
            names = gallery.image_names
        else:
            names = {name: gallery.name_images(name, images, add=not clear)}

    def print_names() -> None:
        for own, n_images in names.items():
            echo(f"{own}: {count(n_images, 'image')}")
        if not names:
            echo("no images have a name")

    emit({"names": names}, as_json, print_names)


@click.command("remove")
@click.argument("paths", nargs=-1, required=True, type=PathType())
@collection_option
@json_option
def remove(paths: tuple[str, ...], gallery_path: Path | str, as_json: bool) -> None:
    """Remove images from the gallery; files stay.

    A folder stands for all images in it.
    """
    with open_gallery(gallery_path) as gallery:
        removed = gallery.remove(paths)
    if removed or as_json:
        emit({"removed": removed}, as_json, f"{removed:,} removed")
    if not removed:
        raise GalleryError(f"{gallery_path} has no image at {', '.join(paths)}")


@click.command("compact")
@gallery_option
@json_option
def compact(gallery_path: Path, as_json: bool) -> None:
    """Free the disk space of removed images.

    Searches may run meanwhile.
    """
    with open_gallery(gallery_path) as gallery:
        with progress_bar() as progress:
            freed = gallery.compact(progress=progress)
        n_images = len(gallery)
    line = "nothing to free: no image was removed"
    if freed:
        line = f"{file_size(freed)} freed, {count(n_images, 'image')}"
    emit({"bytes": freed, "n_images": n_images}, as_json, line)


@click.command("verify")
@gallery_option
@json_option
def verify(gallery_path: Path, as_json: bool) -> None:
    """Check every row of a gallery.

    The exit code is 1 if something is wrong.
    """
    with open_gallery(gallery_path) as gallery:
        problems = gallery.problems()
        n_images = len(gallery)

    def print_problems() -> None:
        for problem in problems or [f"{count(n_images, 'image')}, no problems"]:
            echo(problem)

    emit({"n_images": n_images, "problems": problems}, as_json, print_problems)
    sys.exit(1 if problems else 0)


@click.command("duplicates")
@gallery_option
@click.option("--exact", "only", flag_value="exact", help="Only files with the same content.")
@click.option("--near", "only", flag_value="near", help="Only groups of different contents.")
@output_option("Write a page (.html) that shows each group side by side.")
@open_option
@json_option
def duplicates(
    gallery_path: Path, only: str | None, output: Path | None, open_page: bool, as_json: bool
) -> None:
    """Find images that occur twice: the same, or nearly the same.

    Nearly the same are images that were made from one another: resized, recompressed, a little
    cropped, rotated or brightened. The first of a group is the best: most pixels, then most bytes,
    then the oldest. The others are compared with it.
    """
    from bm25v.render.duplicates_page import render_duplicates
    from bm25v.render.html import PAGE_SUFFIXES, write_output

    output = choose_output(output, PAGE_SUFFIXES, page="duplicates", is_opened=open_page)
    with open_gallery(gallery_path) as gallery, progress_bar() as progress:
        groups = gallery.duplicates(near=only != "exact", progress=progress)
        n_images = len(gallery)
    groups = [group for group in groups if only != "near" or group.kind == "near"]
    if output is not None:
        write_output(output, render_duplicates(groups, n_images=n_images))

    def print_groups() -> None:
        for group in groups:
            for number, image in enumerate(group.images):
                near = f"near, cosine {image.similarity.cosine:.2f}"
                relation = "" if number == 0 else "same" if image.is_copy else near
                sizes = f"{image.pixels:>13}  {file_size(image.size):>9}"
                echo(f"{sizes}  {relation:<17}  {display_path(image.path)}")
            echo()
        n_spare = sum(len(group.images) - 1 for group in groups)
        alike = f"{n_spare:,} of {count(n_images, 'image')} look like another one"
        if groups:
            echo(f"{count(len(groups), 'group')}; {alike}: check before deleting")
        else:
            echo(f"no duplicates among {count(n_images, 'image')}")

    listed = [group.to_dict() for group in groups]
    emit({"n_images": n_images, "groups": listed}, as_json, print_groups)
    report_written(output, is_opened=open_page, is_silent=as_json)
