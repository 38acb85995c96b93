"""`bm25v evaluate zipf`, `cost`, `regions`, `text`, `no-match` and `faithfulness`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bm25v.cli.evaluate import cache_option, data_option, dataset_options
from bm25v.cli.options import (
    ANY_PATH,
    COUNT,
    FILE,
    find_gallery,
    gallery_option,
    json_option,
    output_option,
    vocabulary_option,
)
from bm25v.cli.printing import (
    Column,
    echo,
    echo_wrapped,
    emit,
    print_grid,
    print_notes,
    print_table,
)
from bm25v.cli.progress import progress_bar
from bm25v.display import count, display_path
from bm25v.errors import InvalidOption
from bm25v.search.scoring import MODES

if TYPE_CHECKING:
    from bm25v.research.datasets import Dataset
    from bm25v.research.tasks import TextResult

_COST_NOTE = (
    "bytes per vector as in the paper: 4 per number, 6 per word; counted: 5 operations for each "
    "posting that is read, with the gallery's own images as queries; projected: each word keeps "
    "its share of the images; Words and Hybrid: the stored bytes of full bags, and five operations "
    "for each word of 1,000 candidates"
)


@click.command("zipf")
@click.option(
    "-g",
    "--gallery",
    "paths",
    multiple=True,
    default=lambda: (os.environ.get("BM25V_GALLERY") or find_gallery(),),
    show_default="$BM25V_GALLERY, else the nearest gallery.bm25v",
    type=ANY_PATH,
    help="A gallery's folder; give several to compare them.",
)
@output_option("Draw words by rank, as .png, .svg or .pdf; several galleries in one plot.")
@json_option
def zipf(paths: tuple[Path, ...], output: Path | None, as_json: bool) -> None:
    """Fit a power law to the distribution of words.

    The head are words in more than half of the images, the tail words in less than a tenth, both as
    shares of the active words: those in at least one image.
    """
    from bm25v.research import plots
    from bm25v.research.zipf import read_frequencies, zipf_table

    paths = tuple(dict.fromkeys(paths))
    galleries = [read_frequencies(path) for path in paths]
    is_distinct = len({path.stem for path in paths}) == len(paths)
    names = [path.stem if is_distinct else str(path) for path in paths]
    fits = dict(zip(names, (gallery.fit_zipf() for gallery in galleries), strict=True))
    if output and len(fits) == 1:
        ((name, fit),) = fits.items()
        plots.draw_zipf(fit, f"Images per word: {name}", output)
    elif output:
        plots.draw_zipf_comparison(fits, output)

    def to_dict() -> list[dict[str, Any]]:
        return [
            {"gallery": gallery.info.path, "words": gallery.info.words, **fit.to_dict()}
            for gallery, fit in zip(galleries, fits.values(), strict=True)
        ]

    def print_fits() -> None:
        print_grid(*zipf_table(fits))
        if output:
            echo(f"{display_path(str(output))}: words by rank")

    emit(to_dict, as_json, print_fits)


@click.command("cost")
@gallery_option
@click.option(
    "--project",
    "sizes",
    multiple=True,
    type=COUNT,
    help="Also for a gallery of this many images; give several for several tables.",
)
@output_option("Draw the words in use as the gallery grows, as .png, .svg or .pdf.")
@json_option
def cost(gallery_path: Path, sizes: tuple[int, ...], output: Path | None, as_json: bool) -> None:
    """Compute the bytes and operations of a search.

    The table also has other systems. Every image of the gallery is a query. "expected" is the
    paper's formula, in which all active words are equally frequent; "counted" is what the queries
    really read.
    """
    from bm25v.research import cost, plots, zipf

    gallery = zipf.read_frequencies(gallery_path)
    info, df_v = gallery.info, gallery.df_v
    full_usage = cost.count_full_usage(gallery.full_rows, df_v)
    usage = cost.count_usage(df_v, info.n_images, full_bags=full_usage)
    usages = [usage, *(usage.project(size) for size in sizes)]
    growth = cost.measure_growth(df_v, info.n_images)
    if output:
        title = f"Words in use as the gallery grows: {gallery_path.stem}"
        plots.draw_growth(growth, title, output)

    def to_dict() -> dict[str, Any]:
        return {
            "gallery": info.path,
            "words": info.words,
            "dim": gallery.dim,
            "bytes_on_disk": {
                "bags": info.bag_bytes_per_image,
                "full_bags": info.full_bag_bytes_per_image,
                "dense": info.dense_bytes_per_image,
                "catalogue": info.catalog_bytes_per_image,
            },
            "sizes": [usage.to_dict(gallery.dim) for usage in usages],
            "growth": growth._asdict(),
        }

    def print_costs() -> None:
        for each in usages:
            n_images, words = count(each.n_images, "image"), f"{each.vocabulary:,} words"
            size = f"{n_images}, {each.active:,.0f} of {words}"
            is_own = each is usage
            title = f"{size} active" if is_own else f"projected: {size} expected to be active"
            echo_wrapped(title, style="bold")
            print_grid(*each.table(gallery.dim))
            echo()
        rows = [[f"{n:,.0f}" for n in row] for row in zip(*growth[1:], strict=True)]
        print_table(("images", "words in use", "if equally frequent"), rows)
        echo()
        bag, full_bag = info.bag_bytes_per_image, info.full_bag_bytes_per_image
        dense = info.dense_bytes_per_image
        echo_wrapped(
            f"bm25v stores {bag + full_bag + dense:,.0f} bytes per image on disk: {bag:,.0f} for "
            f"the bag, {full_bag:,.0f} for the full bag and {dense:,.0f} for the dense vector"
        )
        if info.removed_rows:
            removed = count(info.removed_rows, "removed image")
            echo_wrapped(f"this includes {removed}: run bm25v compact")
        echo_wrapped(_COST_NOTE, style="dim")
        if output:
            echo(f"{display_path(str(output))}: words in use as the gallery grows")

    emit(to_dict, as_json, print_costs)


@click.command("regions")
@dataset_options
@click.option("--pairs", default=100, show_default=True, type=COUNT)
@click.option("--mode", type=click.Choice(MODES))
@vocabulary_option
@json_option
def regions(dataset: "Dataset", as_json: bool, **options: Any) -> None:
    """Measure whether a box finds what is in it.

    Images of different classes are put side by side in pairs. All other images are searched with
    the whole pair and with a box around either image. A search is right if one of its first 5 hits
    has the class of that image.
    """
    from bm25v.research.tasks import measure_region_recall

    print_notes(dataset.problems)
    with progress_bar() as progress:
        result = measure_region_recall(dataset, progress=progress, **options)

    def print_result() -> None:
        pairs = f"{result.pairs} pairs, {result.mode}"
        echo(f"{pairs}; the right class among the first {result.k} hits:")
        echo("whole pair      {:.1%} ({:.1%} to {:.1%})".format(*result.whole))
        echo("box around one  {:.1%} ({:.1%} to {:.1%})".format(*result.box))
        echo("a box is right {:.2f} ({:.2f} to {:.2f}) times as often".format(*result.gain))

    emit(result.to_dict, as_json, print_result)


@click.command("no-match")
@data_option("A folder of class folders: half of each class becomes the gallery.")
@click.option(
    "--other",
    "others",
    required=True,
    multiple=True,
    type=ANY_PATH,
    help="A folder of images of other things; give several.",
)
@vocabulary_option
@json_option
def no_match(data: Path, others: tuple[Path, ...], vocabulary: str, as_json: bool) -> None:
    """Measure how often "No good match" is right.

    Half of the images of each class in --data are indexed. The others are searched for: a good
    match exists. Those in --other are searched for, too: there is none.
    """
    from bm25v.research.tasks import STRENGTHS, measure_no_match

    with progress_bar() as progress:
        result = measure_no_match(data, others, vocabulary=vocabulary, progress=progress)

    def print_result() -> None:
        echo(f"{result.n_images:,} images in the gallery; the best hit is")
        rows = [
            (name, f"{counts.total():,}", *(f"{counts[s] / counts.total():.1%}" for s in STRENGTHS))
            for name, counts in result.counts.items()
        ]
        print_grid(("queries", "n", *STRENGTHS), rows)

    emit(result.to_dict, as_json, print_result)


@click.command("text")
@data_option("A folder of class folders, whose names are texts: great_pyrenees. Or of photos.")
@click.option(
    "--captions", type=FILE, help="Captions of photos, one per line: the photo, a tab, the caption."
)
@click.option("--photos", type=FILE, help="Use only these of the photos: a name on each line.")
@click.option(
    "--strength", is_flag=True, help="Also how often a strong, fair or weak hit is right."
)
@vocabulary_option
@json_option
def text(
    data: Path,
    captions: Path | None,
    photos: Path | None,
    strength: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure searches by text: does the name of a class find its images?

    P@10 and P@100 are the right ones among the first 10 and 100 hits, or among as many as the class
    has images. Classes whose name is not fully understood are counted apart.

    With --captions: does a caption find its photo among the first 1,000 (R@1: as the best hit), and
    does a word find the photos that have it in two captions? These are the 150 most frequent words.
    """
    from bm25v.research.tasks import measure_captions, measure_text

    if captions is None:
        if photos or strength:
            raise InvalidOption("--photos and --strength are for captions: give --captions")
        with progress_bar() as progress:
            result = measure_text(data, progress=progress, **options)
        emit(result.to_dict, as_json, lambda: _print_classes(result))
    else:
        with progress_bar() as progress:
            values = measure_captions(
                data, captions, photos=photos, progress=progress, **options
            ).to_dict()
        emit(values, as_json, lambda: _print_captions(values, strength))


def _print_classes(result: "TextResult") -> None:
    from bm25v.research.tasks import PRECISIONS

    rows = [
        (
            entry.name,
            f"{entry.n_images:,}",
            *(f"{value:.3f}" for value in entry.precision.values()),
            f"{entry.average_precision:.3f}",
            entry.strength or "",
            ", ".join(entry.understood) or "nothing",
        )
        for entry in result.classes
    ]
    texts = (Column("best hit", "text"), Column("understood as", "text"))
    print_table((Column("class", "text"), "n", *PRECISIONS, "AP", *texts), rows)
    for title, is_known in (("names understood", True), ("names not fully understood", False)):
        means = result.summarize(is_known=is_known)
        n = means.pop("classes")
        shown = ", ".join(f"{key} {value:.3f}" for key, value in means.items())
        echo(f"{title}: {n:.0f} classes" + (f", {shown}" if n else ""))


def _print_captions(values: dict[str, Any], strength: bool) -> None:
    if values["n_missing"]:
        print_notes([f"no file: {count(values['n_missing'], 'photo')} of those with captions"])
    for kind in ("sentences", "words"):
        header = [key.replace("_", " ") for key in values[kind]]
        cells = [f"{v:.3f}" if isinstance(v, float) else f"{v:,}" for v in values[kind].values()]
        print_grid(("searched for", *header), [(kind, *cells)])
    if strength:
        rows = [
            (name, f"{entry['n']:,}", f"{entry['R@1']:.3f}")
            for name, entry in values["strength"].items()
            if entry["n"]
        ]
        print_grid(("best hit", "sentences", "R@1"), rows)


@click.command("faithfulness")
@dataset_options
@click.option("--pairs", default=200, show_default=True, type=click.IntRange(2))
@click.option(
    "--mask",
    "masks",
    multiple=True,
    default=["grey"],
    show_default=True,
    type=click.Choice(["grey", "blur"]),
    help="How patches are masked; give it twice for both, which takes twice as long.",
)
@vocabulary_option
@output_option("Draw the curves, as .png.")
@json_option
@cache_option
def faithfulness(
    dataset: "Dataset",
    masks: tuple[str, ...],
    vocabulary: str,
    output: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure whether scores depend on the patches that explanations show.

    For pairs of a query and one of its ten best hits by BM25, patches of the hit are masked and the
    image is scored again (deletion). The order of the patches is that of the explanation
    ("explanation"), of their similarity to the whole query ("dense"), from the middle outwards
    ("middle"), or random. Insertion is the reverse: everything is masked, and patches are revealed
    in that order.
    """
    from bm25v.research import faithfulness, plots
    from bm25v.vocabulary import Vocabulary

    if output:
        plots.check_path(output)  # before minutes of work
    with progress_bar() as progress:
        result = faithfulness.measure_faithfulness(
            dataset,
            Vocabulary.load(vocabulary),
            masks=tuple(mask for mask in faithfulness.MASKS if mask in masks),
            progress=progress,
            **options,
        )
    print_notes(result.problems)
    if output:
        plots.draw_faithfulness(result, output)

    def print_result() -> None:
        for line in faithfulness.describe(result):
            echo_wrapped(line, style="dim")
        for mask, measured in result.masks.items():
            for table in faithfulness.mask_tables(mask, measured):
                echo()
                print_grid(*table)
            echo_wrapped(faithfulness.describe_word(measured))
        if output:
            echo(f"{display_path(str(output))}: the curves")

    emit(result.to_dict, as_json, print_result)
