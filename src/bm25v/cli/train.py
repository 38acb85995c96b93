"""`bm25v train`."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bm25v.cli.options import json_option, print_json

if TYPE_CHECKING:
    from bm25v.vocabulary import Vocabulary

_COUNT = click.IntRange(1)


@click.command("train")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="The vocabulary's folder, for example pets.vocab.",
)
@click.option(
    "--backbone",
    default="tinyvit-5m",
    show_default=True,
    help="A name of `bm25v models list`, a Hugging Face model (owner/name) or its folder.",
)
@click.option("--layer", type=int, help="The block whose patches are taken  [default: the last]")
@click.option(
    "--device",
    help="Where to train, and to run a Hugging Face model: cpu, cuda or mps  "
    "[default: cpu, and the best there is for the model]",
)
@click.option("--recipe", "recipe_name", default="default", type=click.Choice(["default", "paper"]))
@click.option("--expansion", type=_COUNT, help="Words for each feature dimension.")
@click.option("--k", type=_COUNT, help="Active words a patch.")
@click.option("--k-post", default=16, show_default=True, type=_COUNT, help="Words a picture keeps.")
@click.option("--epochs", type=_COUNT, help="Times that every patch is seen.")
@click.option("--batch", type=_COUNT, help="Patches a step.")
@click.option("--learning-rate", type=click.FloatRange(0, min_open=True))
@click.option("--seed", type=int)
@click.option("--views", default=1, show_default=True, type=_COUNT, help="Views of each picture.")
@click.option("--patches", type=_COUNT, help="Random patches kept of each view  [default: all]")
@click.option(
    "--activations",
    type=click.Path(path_type=Path),
    help="Keep the patches here, for other runs  [default: beside the output, until it is done]",
)
@click.option("--stream", is_flag=True, help="Make patches anew each epoch; keep none on disk.")
@click.option("--about", default="", help="What the pictures are, for the vocabulary's report.")
@click.option("--resume", is_flag=True, help="Go on where an interrupted run was.")
@json_option
def command(
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
    """Train a vocabulary on a FOLDER of pictures.

    Settings that are left out come from the recipe: "default" is what was measured to work best,
    "paper" the paper's plain settings.

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
    is_first = os.environ.get("RANK", "0") == "0"  # of several processes only one talks
    with training_display(is_silent=not is_first) as listener:
        vocabulary = train_vocabulary(options, listener)
    if is_first:
        _print(vocabulary, output, as_json)


def _print(vocabulary: "Vocabulary", output: Path, as_json: bool) -> None:
    report = vocabulary.report["training"]
    if as_json:
        print_json({"output": str(output), "fingerprint": vocabulary.fingerprint, **report})
        return
    click.echo(
        f"{output}: {vocabulary.n_words:,} words, {report['explained_variance']:.1%} of the "
        f"variance of held-out patches explained, {report['dead_share']:.1%} dead"
    )
