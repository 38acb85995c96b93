"""`bm25v words`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from bm25v.cli import names
from bm25v.cli.options import console, gallery_option, json_option, print_json, shown

if TYPE_CHECKING:
    from bm25v.explain.word_portrait import RelatedWord, WordPortrait
    from bm25v.explain.word_statistics import WordInGallery

_LIMIT = 20
_SORTS = ("df", "idf", "name")


@click.group("words", invoke_without_command=True)
@gallery_option
@click.option(
    "--sort",
    default="df",
    show_default=True,
    type=click.Choice(_SORTS),
    help="Most pictures first, rarest first, or named words first.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    help=f"Words to list.  [default: {_LIMIT}, or all with --json]",
)
@json_option
@click.pass_context
def command(
    context: click.Context, gallery_path: Path, sort: str, limit: int | None, as_json: bool
) -> None:
    """List the words of a gallery, look at them, name them."""
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    from bm25v.api import Gallery

    with Gallery.open(gallery_path) as gallery:
        found = _sorted(gallery.words(), sort)
        pictures = len(gallery)
    if as_json:
        print_json({"pictures": pictures, "words": [_plain(one) for one in found[:limit]]})
    elif not found:
        click.echo(f"no words: there are no pictures in {gallery_path}")
    else:
        _print_table(found[: limit or _LIMIT], len(found), pictures)


def _refuse_options(context: click.Context) -> None:
    """An option before a subcommand would be ignored: say so."""
    for name in context.params:
        if context.get_parameter_source(name) == ParameterSource.COMMANDLINE:
            wanted = context.invoked_subcommand
            raise click.UsageError(f"put the options behind it: bm25v words {wanted} …")


def _sorted(words: "list[WordInGallery]", sort: str) -> "list[WordInGallery]":
    if sort == "name":
        return sorted(words, key=lambda one: (one.name is None, (one.name or "").casefold()))
    return sorted(words, key=lambda one: one.df if sort == "idf" else -one.df)


def _plain(one: "WordInGallery") -> dict[str, Any]:
    best = [use._asdict() for use in one.best]
    return {"word": one.word, "name": one.name, "df": one.df, "idf": one.idf, "best": best}


def _print_table(words: "list[WordInGallery]", total: int, pictures: int) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("word", "pictures", "IDF"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("name", overflow="fold")
    table.add_column("most in (tf)", overflow="fold")
    for one in words:
        best = ", ".join(f"{_short(use.path)} ({use.tf:.2f})" for use in one.best)
        table.add_row(str(one.word), f"{one.df:,}", f"{one.idf:.2f}", one.name or "", best)
    out = console()
    out.print(table)
    out.print(f"{len(words):,} of {total:,} words in {pictures:,} pictures", style="dim")


def _short(path: str) -> str:
    """Leave out what most paths of a gallery begin with; --json has it all."""
    return shown(str(Path(*Path(path).parts[-2:])))


@command.command("show")
@click.argument("words", metavar="WORD...", nargs=-1, required=True)
@gallery_option
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="The page to write, or a folder for the pages of several words.",
)
@json_option
def show(words: tuple[str, ...], gallery_path: Path, output: Path | None, as_json: bool) -> None:
    """Say what WORD is: how often, where, in which pictures, with which other words.

    WORD is the number or the name of a word.
    """
    from bm25v.api import Gallery
    from bm25v.cli.progress import progress_bar
    from bm25v.explain.word_portrait import make_portraits

    into_folder = len(words) > 1 or (output is not None and _is_folder(output))
    if output is not None and into_folder and output.suffix.lower() in (".html", ".htm"):
        raise click.UsageError(
            f"{len(words)} words do not fit on one page: give a folder, -o pages/"
        )
    with Gallery.open(gallery_path) as gallery:
        numbers = [names.number(gallery, word) for word in dict.fromkeys(words)]
        with progress_bar("looking at words") as progress:
            found = list(make_portraits(gallery.store, numbers, progress=progress))
        title = gallery.path.name
    written = [] if output is None else _write(found, output, into_folder, title)
    if as_json:
        plain = [one.to_dict() for one in found]
        print_json({"words": plain, "written": [str(path) for path in written]})
        return
    for one in found:
        _print(one)
    for path in written[:1]:
        click.echo(f"written: {shown(str(path))}")


def _is_folder(path: Path) -> bool:
    return path.is_dir() or path.suffix.lower() not in (".html", ".htm")


def _write(found: "list[WordPortrait]", output: Path, into_folder: bool, title: str) -> list[Path]:
    from bm25v.pages.word_page import render_word, render_words_overview

    if not into_folder:
        output.write_text(render_word(found[0]), encoding="utf-8")
        return [output]
    output.mkdir(parents=True, exist_ok=True)
    links = {one.uses.facts.word: f"word-{one.uses.facts.word}.html" for one in found}
    pages = {"index.html": render_words_overview(title, found, links)}
    for one in found:
        pages[links[one.uses.facts.word]] = render_word(one, links=links, home="index.html")
    for name, text in pages.items():
        (output / name).write_text(text, encoding="utf-8")
    return [output / name for name in pages]


def _print(portrait: "WordPortrait") -> None:
    uses, facts = portrait.uses, portrait.uses.facts
    number = f" (word {facts.word})" if facts.name else ""
    click.echo(
        f"{facts.label}{number}: in {facts.df:,} of {uses.n:,} pictures, IDF {facts.idf:.2f}"
    )
    lines = {
        "most in": [f"{_short(one.path)} (tf {one.tf:.2f})" for one in portrait.top[:3]],
        "folders": [f"{one.name} ({one.has_word} of {one.pictures})" for one in uses.folders[:3]],
        "comes with": [_beside(one, "{:.1f} × chance") for one in portrait.companions[:3]],
        "points like": [_beside(one, "cosine {:.2f}") for one in portrait.neighbours[:3]],
    }
    for title, parts in lines.items():
        if parts:
            click.echo(f"  {title:<13}{', '.join(parts)}")


def _beside(one: "RelatedWord", value: str) -> str:
    return f"{one.facts.label} ({value.format(one.value)})"


for _one in (names.name, names.export, names.import_names, names.suggest):
    command.add_command(_one)


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
    from bm25v.pages.vocabulary_page import render_vocabulary
    from bm25v.vocabulary import Vocabulary

    loaded = Vocabulary.load(vocabulary)
    output.write_text(render_vocabulary(loaded), encoding="utf-8")
    if as_json:
        print_json({"output": str(output), "vocabulary": loaded.name, "words": loaded.n_words})
    else:
        click.echo(f"{shown(str(output))}: a page about {loaded.name}, {loaded.n_words:,} words")
