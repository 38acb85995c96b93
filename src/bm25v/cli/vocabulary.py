"""`bm25v vocabulary`."""

from pathlib import Path

import click

from bm25v.cli.options import json_option, print_json


@click.group("vocabulary")
def command() -> None:
    """Bring in auto-encoders that were trained elsewhere, hand out our own, refit decoders."""


@command.command("import")
@click.argument("source", metavar="FOLDER", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Where to.")
@click.option("--backbone", required=True, help="Whose patch features it was trained on.")
@click.option("--format", help="The project that wrote it; by default its files tell.")
@click.option("--k", type=int, help="Words a patch; by default as it was trained.")
@click.option("--k-post", type=click.IntRange(min=1), default=16, help="Words a picture  [16]")
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
    """Make a vocabulary of an auto-encoder by SAELens, sparsify, saev and others."""
    from bm25v import backbones
    from bm25v.errors import VocabularyError
    from bm25v.sae import formats
    from bm25v.vocabulary import Vocabulary

    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise VocabularyError(f"{output} exists already: give a path that is free")
    format = format or formats.recognise(source)
    vocabulary = Vocabulary.build(
        output.stem,
        backbone=backbones.load_backbone(backbone),
        sae=formats.load(source, format=format, k=k),
        k_post=k_post,
        report={"imported": {"format": format, "from": str(source)}},
    )
    vocabulary.save(output)
    facts = {
        "vocabulary": str(output),
        "format": format,
        "backbone": backbone,
        "words": vocabulary.n_words,
        "k": vocabulary.sae.k,
        "k_post": k_post,
    }
    if as_json:
        print_json(facts)
    else:
        click.echo(f"{output}: {vocabulary.n_words:,} words of {backbone}, read from {format}")


@command.command("export")
@click.argument("vocabulary")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Where to.")
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
        click.echo(f"{output}: {loaded.n_words:,} words, for {format}")


@command.command("refit")
@click.argument("vocabulary")
@click.argument("pictures", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Where to.")
@click.option(
    "--draws",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Times that random parts of every picture are drawn anew.",
)
@json_option
def refit_vocabulary(
    vocabulary: str, pictures: Path, output: Path, draws: int, as_json: bool
) -> None:
    """Fit a vocabulary's decoder anew, by least squares over fresh views of PICTURES.

    The encoder stays: every word, bag and search result is the same. PICTURES are best those that
    the vocabulary was trained on. Nothing is written if held-out pictures are not explained better.
    """
    from bm25v.cli.progress import training_display
    from bm25v.training import refit_vocabulary
    from bm25v.vocabulary import Vocabulary

    old = Vocabulary.load(vocabulary)
    with training_display() as listener:
        new = refit_vocabulary(old, pictures, output, draws=draws, listener=listener)
    facts = new.report["refit"]
    if as_json:
        print_json({"output": str(output), "fingerprint": new.fingerprint, **facts})
    else:
        before, after = facts["explained_variance_before"], facts["explained_variance"]
        click.echo(f"{output}: {after:.2%} of the variance explained, {before:.2%} before")
