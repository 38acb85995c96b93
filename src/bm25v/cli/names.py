"""`bm25v words name`, `export`, `import` and `suggest`: what words are called."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from bm25v.cli.options import console, gallery_option, json_option, print_json, shown
from bm25v.files import replace_file

if TYPE_CHECKING:
    from bm25v.api import Gallery
    from bm25v.explain.suggest import Suggestion


def number(gallery: "Gallery", word: str) -> int:
    """Return the number of a word that was given by number or by name."""
    from bm25v.vocabulary import names

    return names.find_word(word, gallery.word_names, gallery.vocabulary.n_words)


@click.command("name")
@click.argument("word")
@click.argument("name", required=False)
@gallery_option
@click.option("--clear", is_flag=True, help="Forget the name instead.")
@json_option
def name(word: str, name: str | None, gallery_path: Path, clear: bool, as_json: bool) -> None:
    """Give WORD a NAME, which all searches of this gallery show.

    It counts for this gallery and wins over a name that the vocabulary has.
    """
    from bm25v.api import Gallery

    if (name is None) != clear:
        raise click.UsageError("give a NAME, or --clear to forget it")
    with Gallery.open(gallery_path) as gallery:
        found = number(gallery, word)
        gallery.name_words({found: name})
        called = gallery.word_names.get(found)
    if as_json:
        print_json({"word": found, "name": called})
    else:
        click.echo(f"word {found}: {called}" if called else f"word {found} has no name now")


@click.command("export")
@gallery_option
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Where to.")
def export(gallery_path: Path, output: Path | None) -> None:
    """Write the names that people gave to words here, as a TSV table.

    Put it into a vocabulary's folder as words.tsv, and the names go with the vocabulary.
    """
    from bm25v.api import Gallery
    from bm25v.vocabulary import names

    with Gallery.open(gallery_path) as gallery:
        given = gallery.store.names.current()
        table = names.format_names(given, vocabulary=gallery.vocabulary.fingerprint)
    if output is None:
        click.echo(table, nl=False)
    else:
        replace_file(output, table)
        click.echo(f"{shown(str(output))}: {_count(len(given))}")


@click.command("import")
@click.argument("table", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@gallery_option
@json_option
def import_names(table: Path, gallery_path: Path, as_json: bool) -> None:
    """Take names from a TSV table: in each line the number of a word, a tab, a name.

    Names that words have here already are replaced; other words keep theirs.
    """
    from bm25v.api import Gallery
    from bm25v.vocabulary import names

    with Gallery.open(gallery_path) as gallery:
        vocabulary = gallery.vocabulary
        given = names.read_names(
            table, n_words=vocabulary.n_words, vocabulary=vocabulary.fingerprint
        )
        before = gallery.store.names.current()
        replaced = sum(before.get(word, name) != name for word, name in given.items())
        gallery.name_words(given)
    if as_json:
        print_json({"names": len(given), "replaced": replaced})
    else:
        click.echo(f"{_count(len(given))}, {replaced:,} of them in place of others")


@click.command("suggest")
@click.argument("words", metavar="[WORD]...", nargs=-1)
@gallery_option
@click.option(
    "--prompts",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="A text file with what a word could be called, a line each.",
)
@click.option("--limit", type=click.IntRange(1), help="Only the words in most pictures.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write them as a TSV table, for `words import` or as a vocabulary's words.tsv.",
)
@json_option
def suggest(
    words: tuple[str, ...],
    gallery_path: Path,
    prompts: Path,
    limit: int | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Suggest names for words, all of them by default, by the backbone's text tower.

    Nothing is renamed. The margin says how much better the suggestion fits than the next one.
    """
    from bm25v.api import Gallery
    from bm25v.cli.progress import progress_bar
    from bm25v.explain.suggest import read_prompts, suggest_names
    from bm25v.vocabulary import names

    choices = read_prompts(prompts)
    with Gallery.open(gallery_path) as gallery:
        chosen = [number(gallery, word) for word in dict.fromkeys(words)]
        if not chosen:
            known = sorted(gallery.words(best=1), key=lambda one: -one.df)
            chosen = [one.word for one in known]
        with progress_bar("looking at words") as progress:
            found = suggest_names(gallery.store, chosen[:limit], choices, progress=progress)
        fingerprint = gallery.vocabulary.fingerprint
    if output is not None:
        notes = {one.word: f"margin {one.margin:.3f} to {one.next}" for one in found}
        named = {one.word: one.name for one in found}
        replace_file(output, names.format_names(named, vocabulary=fingerprint, notes=notes))
    if as_json:
        print_json({"suggestions": [one._asdict() for one in found]})
        return
    _print_suggestions(found)
    if output is not None:
        click.echo(f"written: {shown(str(output))}")


def _print_suggestions(found: "list[Suggestion]") -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("word", "margin", "cosine"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("suggestion", overflow="fold")
    table.add_column("next best", overflow="fold")
    for one in found:
        table.add_row(str(one.word), f"{one.margin:.3f}", f"{one.cosine:.3f}", one.name, one.next)
    console().print(table)


def _count(n: int) -> str:
    return f"{n:,} name{'s' * (n != 1)}"
