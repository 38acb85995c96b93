"""`bm25v words`."""

from pathlib import Path

import click

from bm25v.cli.options import json_option, print_json, shown


@click.group("words")
def command() -> None:
    """Look at the words of a vocabulary."""


@command.command("report")
@click.argument("vocabulary", metavar="VOCAB")
@click.option(
    "-o",
    "--output",
    default="words.html",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The page to write.",
)
@json_option
def report(vocabulary: str, output: Path, as_json: bool) -> None:
    """Write a page about VOCAB: figures, charts and sample words.

    VOCAB is a folder, a shipped name or hf://owner/name.
    """
    from bm25v.explain.words import page
    from bm25v.vocabulary import Vocabulary

    loaded = Vocabulary.load(vocabulary)
    output.write_text(page(loaded), encoding="utf-8")
    if as_json:
        print_json({"output": str(output), "vocabulary": loaded.name, "words": loaded.n_words})
    else:
        click.echo(f"{shown(str(output))}: a page about {loaded.name}, {loaded.n_words:,} words")
