"""`bm25v words`: list, show and name the words of a gallery."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bm25v.cli.options import (
    COUNT,
    FILE,
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
    echo_text,
    emit,
    print_facts,
    print_table,
    report_written,
)
from bm25v.cli.progress import progress_bar
from bm25v.display import count, display_path
from bm25v.errors import InvalidOption
from bm25v.files import replace_file

if TYPE_CHECKING:
    from bm25v.explain.portraits import WordPortrait
    from bm25v.gallery import Gallery

_LIMIT = 20


@click.group("words")
def words() -> None:
    """List, show and name the words of a gallery."""


@words.command("list")
@gallery_option
@click.option(
    "--sort",
    default="df",
    show_default=True,
    type=click.Choice(("df", "idf", "name")),
    help="Words of most images first, rarest first, or named words first.",
)
@click.option(
    "--limit", type=COUNT, help=f"Words to list.  [default: {_LIMIT}, or all with --json]"
)
@json_option
def list_words(gallery_path: Path, sort: Any, limit: int | None, as_json: bool) -> None:
    """List words, with the images that have most of them."""
    n_listed = limit if as_json else limit or _LIMIT
    with open_gallery(gallery_path) as gallery:
        words = gallery.words(sort=sort, limit=n_listed)
        info = gallery.info()

    def to_dict() -> dict[str, Any]:
        listed = [{**vars(w), "best": [image._asdict() for image in w.best]} for w in words]
        return {"n_images": info.n_images, "words": listed}

    def print_words() -> None:
        if not words:
            echo(f"no words: {gallery_path} has no images")
            return
        rows = []
        for w in words:
            best = ", ".join(f"{_short_path(image.path)} ({image.tf:.2f})" for image in w.best)
            rows.append((str(w.word), f"{w.df:,}", f"{w.idf:.2f}", w.name or "", best))
        texts = (Column("name", "text"), Column("strongest in (tf)", "list"))
        print_table(("word", "images", "IDF", *texts), rows)
        n_images = count(info.n_images, "image")
        echo(f"{len(words):,} of {info.words_in_use:,} words in {n_images}")

    emit(to_dict, as_json, print_words)


def _short_path(path: str) -> str:
    """Return the file's name and its folder; --json has the whole path."""
    return display_path(str(Path(*Path(path).parts[-2:])))


@words.command("show")
@click.argument("words", metavar="WORD...", nargs=-1, required=True)
@gallery_option
@output_option("Write a page (.html) with images of each word.")
@open_option
@json_option
def show(
    words: tuple[str, ...], gallery_path: Path, output: Path | None, open_page: bool, as_json: bool
) -> None:
    """Show in which images words are, where, and how often.

    WORD is the number or the name of a word.
    """
    from bm25v.explain.portraits import make_portraits
    from bm25v.render.html import PAGE_SUFFIXES, write_output
    from bm25v.render.word_page import render_words

    output = choose_output(output, PAGE_SUFFIXES, page="words", is_opened=open_page)
    with open_gallery(gallery_path) as gallery, progress_bar() as progress:
        numbers = [_find_word(gallery, word) for word in dict.fromkeys(words)]
        portraits = list(make_portraits(gallery, numbers, progress=progress))
    if output is not None:
        write_output(output, render_words(portraits))
    listed = {"words": [portrait.to_dict() for portrait in portraits]}
    emit(listed, as_json, lambda: _print_portraits(portraits))
    report_written(output, is_opened=open_page, is_silent=as_json)


def _print_portraits(portraits: "list[WordPortrait]") -> None:
    for portrait in portraits:
        uses, facts = portrait.uses, portrait.uses.facts
        number = "" if facts.name is None else f" (word {facts.word})"
        images = f"{facts.df:,} of {count(uses.n, 'image')}"
        echo(f"{facts.label}{number}: in {images}, IDF {facts.idf:.2f}")
        lists = {
            "strongest in": [f"{_short_path(i.path)} (tf {i.tf:.2f})" for i in portrait.top[:3]],
            "folders": [
                f"{f.name} ({f.has_word} of {f.n_images}, {f.lift:.1f} × as frequent)"
                for f in uses.folders[:3]
            ],
            "together with": [
                f"{w.facts.label} ({w.value:.1f} × chance)" for w in portrait.companions[:3]
            ],
            "similar words": [
                f"{w.facts.label} (cosine {w.value:.2f})" for w in portrait.neighbours[:3]
            ],
        }
        print_facts({title: items for title, items in lists.items() if items}, indent="  ")


def _find_word(gallery: "Gallery", word: str) -> int:
    """Return the number of a word that was given by number or by name."""
    from bm25v.vocabulary.names import find_word

    words = find_word(word, gallery.word_names, gallery.vocabulary.n_words)
    if len(words) > 1:
        numbers = ", ".join(map(str, words))
        raise InvalidOption(f"several words are named {word!r}: give one of the numbers {numbers}")
    return words[0]


@words.command("name")
@click.argument("word")
@click.argument("name", required=False)
@collection_option
@click.option("--clear", is_flag=True, help="Remove the name instead.")
@json_option
def name_word(
    word: str, name: str | None, gallery_path: Path | str, clear: bool, as_json: bool
) -> None:
    """Give WORD a NAME, which all searches of this gallery show.

    The name is stored in this gallery and replaces a name that the vocabulary has.
    """
    if (name is None) != clear:
        raise click.UsageError("give a NAME, or --clear to remove it")
    with open_gallery(gallery_path) as gallery:
        number = _find_word(gallery, word)
        gallery.name_words({number: name})
        new_name = gallery.word_names.get(number)
    line = f"word {number}: {new_name}" if new_name else f"word {number} has no name now"
    emit({"word": number, "name": new_name}, as_json, line)


@words.command("export")
@gallery_option
@output_option("The file.")
def export_names(gallery_path: Path, output: Path | None) -> None:
    """Write the names that were given in this gallery, as a TSV table.

    Put it into a vocabulary's folder as words.tsv to ship the names with the vocabulary.
    """
    from bm25v.vocabulary.names import format_names

    with open_gallery(gallery_path) as gallery:
        names = gallery.store.names.own
        table = format_names(names, vocabulary=gallery.vocabulary.fingerprint)
    if output is None:
        echo_text(table)
    else:
        replace_file(output, table)
        echo(f"{display_path(str(output))}: {count(len(names), 'name')}")


@words.command("import")
@click.argument("table", metavar="FILE", type=FILE)
@gallery_option
@json_option
def import_names(table: Path, gallery_path: Path, as_json: bool) -> None:
    """Read names from a TSV table.

    Each line has the number of a word, a tab and a name. Names that words have in this gallery are
    replaced; other words keep theirs.
    """
    from bm25v.vocabulary.names import read_names

    with open_gallery(gallery_path) as gallery:
        vocabulary = gallery.vocabulary
        names = read_names(table, n_words=vocabulary.n_words, vocabulary=vocabulary.fingerprint)
        before = gallery.store.names.own
        replaced = sum(before.get(word, name) != name for word, name in names.items())
        gallery.name_words(names)
    emit(
        {"names": len(names), "replaced": replaced},
        as_json,
        f"{count(len(names), 'name')} read, {replaced:,} of them replaced another one",
    )


@words.command("suggest")
@click.argument("words", metavar="[WORD]...", nargs=-1)
@gallery_option
@click.option(
    "--prompts",
    required=True,
    type=FILE,
    help="A text file of possible names, one per line, for the backbone's text tower.",
)
@click.option("--limit", type=COUNT, help="Only the words of most images.")
@output_option("Write them as a TSV table, for `words import`.")
@json_option
def suggest(
    words: tuple[str, ...],
    gallery_path: Path,
    prompts: Path,
    limit: int | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Suggest names for words, by default for all."""
    from bm25v.explain.suggest import read_prompts, suggest_names
    from bm25v.vocabulary.names import format_names

    with open_gallery(gallery_path) as gallery, progress_bar() as progress:
        numbers = [_find_word(gallery, word) for word in dict.fromkeys(words)]
        if not numbers:
            numbers = [word.word for word in gallery.words(best=1, sort="df", limit=limit)]
        suggestions = suggest_names(
            gallery, numbers[:limit], read_prompts(prompts), progress=progress
        )
        fingerprint = gallery.vocabulary.fingerprint
    names = {s.word: s.name for s in suggestions}
    notes = {
        s.word: f"cosine {s.cosine:.3f}, margin {s.margin:.3f} to {s.next}" for s in suggestions
    }
    if output is not None:
        replace_file(output, format_names(names, vocabulary=fingerprint, notes=notes))

    def print_suggestions() -> None:
        rows = [(str(word), name, notes[word]) for word, name in names.items()]
        print_table(("word", Column("suggestion", "text"), Column("why", "text")), rows)

    listed = [suggestion._asdict() for suggestion in suggestions]
    emit({"suggestions": listed}, as_json, print_suggestions)
    report_written(output, is_opened=False, is_silent=as_json)
