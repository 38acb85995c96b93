"""`bm25v train`, `vocabulary`, `models` and `doctor`."""

import importlib.metadata
import os
import platform
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click

from bm25v import __version__
from bm25v.cli.options import ANY_PATH, COUNT, json_option, output_option
from bm25v.cli.printing import echo, emit, print_facts
from bm25v.cli.progress import training_display

_output_option = output_option(
    "The folder to write, for example pets.vocab.", ANY_PATH, is_required=True
)


@click.command("train")
@click.argument("folder", type=ANY_PATH)
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
@click.option("--expansion", type=COUNT, help="Words per feature dimension.")
@click.option("--k", type=COUNT, help="Active words per patch.")
@click.option("--k-post", default=16, show_default=True, type=COUNT, help="Words kept per image.")
@click.option("--epochs", type=COUNT, help="How often each patch is used.")
@click.option("--batch", type=COUNT, help="Patches per step.")
@click.option("--learning-rate", type=click.FloatRange(0, min_open=True))
@click.option("--seed", type=int)
@click.option("--views", default=1, show_default=True, type=COUNT, help="Views per image.")
@click.option("--patches", type=COUNT, help="Random patches kept per view  [default: all]")
@click.option(
    "--activations",
    type=ANY_PATH,
    help="Keep the patch features here, for other runs  [default: deleted after training]",
)
@click.option("--stream", is_flag=True, help="Compute patches again in each epoch; store none.")
@click.option("--about", default="", help="What the images are, for the vocabulary's report.")
@click.option("--resume", is_flag=True, help="Continue an interrupted run.")
@json_option
def train(output: Path, recipe_name: str, as_json: bool, **options: Any) -> None:
    """Train a vocabulary on a FOLDER of images.

    Settings that are not given come from the recipe: "default" is what was measured to work best,
    "paper" is the paper's method and nothing else.

    If `tensorboard` is installed, curves are in OUTPUT.work/tensorboard during the run, then in
    OUTPUT/tensorboard.
    """
    from bm25v.training import TrainingOptions, train_vocabulary
    from bm25v.training.recipe import Recipe

    recipe = Recipe.paper() if recipe_name == "paper" else Recipe()
    settings = {field.name: options.pop(field.name, None) for field in fields(Recipe)}
    recipe = replace(recipe, **{name: v for name, v in settings.items() if v is not None})
    is_first = os.environ.get("RANK", "0") == "0"  # only the first of several processes prints
    with training_display(is_silent=not is_first) as listener:
        vocabulary = train_vocabulary(
            TrainingOptions(output=output, recipe=recipe, **options), listener
        )
    if is_first:
        report = vocabulary.report["training"]
        emit(
            {"output": str(output), "fingerprint": vocabulary.fingerprint, **report},
            as_json,
            f"{output}: {vocabulary.n_words:,} words, {report['explained_variance']:.1%} of the "
            f"variance of held-out patches explained, {report['dead_share']:.1%} dead words",
        )


@click.group("vocabulary")
def vocabulary() -> None:
    """Import and export vocabularies."""


@vocabulary.command("import")
@click.argument("source", metavar="FOLDER", type=ANY_PATH)
@_output_option
@click.option("--backbone", required=True, help="The backbone it was trained on.")
@click.option("--format", help="The project that wrote it  [default: detected from its files]")
@click.option("--k", type=int, help="Active words per patch  [default: as it was trained]")
@click.option("--k-post", type=COUNT, default=16, show_default=True, help="Words kept per image.")
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
    """Make a vocabulary from an auto-encoder of SAELens or saev."""
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
    line = f"{output}: {imported.n_words:,} words of {backbone}, read from {format}"
    emit(facts, as_json, line)


@vocabulary.command("export")
@click.argument("vocabulary")
@_output_option
@json_option
def export_vocabulary(vocabulary: str, output: Path, as_json: bool) -> None:
    """Write a vocabulary's auto-encoder for SAELens."""
    from bm25v.sae.formats import export_saelens
    from bm25v.vocabulary import Vocabulary

    loaded = Vocabulary.load(vocabulary)
    export_saelens(loaded.sae, output, metadata={"model_name": loaded.backbone_name})
    facts = {"folder": str(output), "format": "saelens", "words": loaded.n_words}
    emit(facts, as_json, f"{output}: {loaded.n_words:,} words, for saelens")


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
            "about": spec.file.about,
            "licence": spec.file.licence,
            "package": spec.file.requirement,
            "download_mb": spec.file.download_mb,
        }
        for spec in SPECS.values()
    ]

    def print_models() -> None:
        for model in models:
            remedy = f"not here: bm25v models get {model['name']} ({model['download_mb']} MB)"
            source = f"{model['about']}, {model['licence']}"
            path = str(model["path"]) if model["here"] else remedy
            echo(str(model["name"]))
            print_facts({"what": str(model["summary"]), "from": source, "file": path}, indent="  ")

    emit(models, as_json, print_models)


@models.command("get")
@click.argument("name")
def get_model(name: str) -> None:
    """Download a backbone, or a vocabulary hf://owner/name, so that it works offline later."""
    from bm25v import backbones
    from bm25v.backbones import downloads
    from bm25v.backbones.onnx import SPECS
    from bm25v.vocabulary import Vocabulary
    from bm25v.vocabulary.vocabulary import HUB_PREFIX

    if name.startswith(HUB_PREFIX):
        echo(f"{name}: {Vocabulary.load(name).fingerprint}")
        return
    if name not in SPECS:
        backbone = backbones.load_backbone(name)
        backbone.load_weights()
        echo(f"{name}: {backbone.fingerprint}")
        return
    file = SPECS[name].file
    path = downloads.fetch_file(file)
    echo(f"{name}: {path}")
    echo(f"from {file.requirement}; {file.about}, {file.licence}")


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

    def print_model() -> None:
        side, (rows, columns) = loaded.input_size, loaded.grid
        echo(f"{loaded.name}: images of {side} × {side} pixels → {rows} × {columns} patches")
        echo(f"patch features of {loaded.patch_dim} values, dense vectors of {loaded.dense_dim}")
        echo(f"fingerprint {loaded.fingerprint}")

    emit(facts, as_json, print_model)


@click.command("doctor")
@json_option
def doctor(as_json: bool) -> None:
    """Show what is installed, and precompile.

    Precompiled loops make the first search in a large gallery fast.
    """
    from bm25v.backbones import downloads
    from bm25v.backbones.onnx import SPECS
    from bm25v.extras import install_command, list_extras
    from bm25v.vocabulary.vocabulary import Vocabulary, shipped_names

    libraries = ("numpy", "numba", "onnxruntime", "pillow", "safetensors", "jinja2")
    extras = list_extras()
    cached = {n: downloads.cached_path(spec.file).is_file() for n, spec in SPECS.items()}
    facts: dict[str, str | dict[str, str]] = {
        "bm25v": __version__,
        "python": f"{platform.python_version()} on {platform.platform()}",
        "libraries": {name: importlib.metadata.version(name) for name in libraries},
        "extras": {name: "installed" if here else "absent" for name, here in extras.items()},
        "models": str(downloads.models_folder()),
        "backbones": {name: "here" if here else "not here" for name, here in cached.items()},
        "vocabularies": {name: Vocabulary.load(name).fingerprint for name in shipped_names()},
        "compiler": _precompile(),
    }
    lines = {
        name: value if isinstance(value, str) else [f"{key} {text}" for key, text in value.items()]
        for name, value in facts.items()
    }

    def print_doctor() -> None:
        print_facts(lines)
        for name, here in extras.items():
            if not here:
                echo(f"to add {name}: {install_command(name)}")

    emit(facts, as_json, print_doctor)


def _precompile() -> str:
    """Compile what searches need, and say where it is kept."""
    from bm25v.index import kernels
    from bm25v.precompile import precompile

    start = time.perf_counter()
    precompile()
    seconds = time.perf_counter() - start
    return f"ready in {seconds:.1f}s, cache at {kernels.search_block.stats.cache_path}"
