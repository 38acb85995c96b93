"""`bm25v words`: list, show and name the words of a gallery, and describe a vocabulary."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from bm25v.cli.options import (
    PathType,
    engine_option,
    gallery_option,
    json_option,
    open_collection,
    open_option,
)
from bm25v.cli.printing import (
    Column,
    echo,
    echo_text,
    make_columns,
    open_in_browser,
    print_facts,
    print_json,
    print_table,
    temporary_page,
)
from bm25v.display import count, display_path, percent
from bm25v.errors import GalleryError, WrongUse
from bm25v.files import make_folder, replace_file

if TYPE_CHECKING:
    from bm25v.api import Gallery
    from bm25v.explanations.gallery_samples import GallerySamples
    from bm25v.explanations.suggest import Suggestion
    from bm25v.explanations.word_portrait import RelatedWord, WordPortrait
    from bm25v.explanations.word_statistics import WordInGallery
    from bm25v.progress import Progress
    from bm25v.searchable import Searchable
    from bm25v.vocabulary import Vocabulary
    from bm25v.vocabulary.naming import WordName

_LIMIT = 20
_PAGE_SUFFIXES = (".html", ".htm")


@click.group("words", invoke_without_command=True)
@gallery_option
@click.option(
    "--sort",
    default="df",
    show_default=True,
    type=click.Choice(("df", "idf", "name")),
    help="Words of most images first, rarest first, or named words first.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    help=f"Words to list.  [default: {_LIMIT}, or all with --json]",
)
@json_option
@click.pass_context
def words(
    context: click.Context, gallery_path: Path, sort: str, limit: int | None, as_json: bool
) -> None:
    """List, show and name the words of a gallery."""
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    from bm25v.api import Gallery

    with Gallery.open(gallery_path) as gallery:
        listed = _sort_words(gallery.words(), sort)
        n_images = len(gallery)
    if as_json:
        print_json({"pictures": n_images, "words": [_to_dict(word) for word in listed[:limit]]})
    elif not listed:
        echo(f"no words: {gallery_path} has no images")
    else:
        _print_words(listed[: limit or _LIMIT], len(listed), n_images)


def _refuse_options(context: click.Context) -> None:
    """Raise an error for an option before a subcommand, which would be ignored."""
    for name in context.params:
        if context.get_parameter_source(name) == ParameterSource.COMMANDLINE:
            command = f"bm25v words {context.invoked_subcommand}"
            raise click.UsageError(f"give options after the subcommand: {command} …")


def _sort_words(words: "list[WordInGallery]", sort: str) -> "list[WordInGallery]":
    if sort == "name":
        return sorted(words, key=lambda word: (word.name is None, (word.name or "").casefold()))
    return sorted(words, key=lambda word: word.df if sort == "idf" else -word.df)


def _to_dict(word: "WordInGallery") -> dict[str, Any]:
    best = [image._asdict() for image in word.best]
    return {"word": word.word, "name": word.name, "df": word.df, "idf": word.idf, "best": best}


def _print_words(words: "list[WordInGallery]", total: int, n_images: int) -> None:
    header = ("word", "images", "IDF", "name")
    rows = [(str(w.word), f"{w.df:,}", f"{w.idf:.2f}", w.name or "") for w in words]
    best = [[f"{_short_path(image.path)} ({image.tf:.2f})" for image in w.best] for w in words]
    columns = make_columns(header, rows, texts=("name",))
    print_table([*columns, Column("strongest in (tf)", best)])
    echo(f"{len(words):,} of {total:,} words in {count(n_images, 'image')}")


def _short_path(path: str) -> str:
    """Return the file's name and its folder; --json has the whole path."""
    return display_path(str(Path(*Path(path).parts[-2:])))


@words.command("show")
@click.argument("words", metavar="WORD...", nargs=-1, required=True)
@gallery_option
@click.option(
    "-o",
    "--output",
    type=PathType(path_type=Path),
    help="The page to write, or a folder for the pages of several words.",
)
@open_option
@json_option
def show(
    words: tuple[str, ...],
    gallery_path: Path,
    output: Path | None,
    open_page: bool,
    as_json: bool,
) -> None:
    """Show what WORD is: how often, where, in which images, with which other words.

    WORD is the number or the name of a word.
    """
    from bm25v.api import Gallery
    from bm25v.cli.progress import progress_bar
    from bm25v.explanations.word_portrait import make_portraits

    if output is None and open_page:
        page = temporary_page("word")
        output = page if len(words) == 1 else page.parent
    into_folder = len(words) > 1 or (output is not None and _is_folder(output))
    if output is not None and into_folder and output.suffix.lower() in _PAGE_SUFFIXES:
        raise click.UsageError(f"{len(words)} words need several pages: give a folder, -o pages/")
    with Gallery.open(gallery_path) as gallery:
        numbers = [_find_word(gallery, word) for word in dict.fromkeys(words)]
        with progress_bar() as progress:
            portraits = list(make_portraits(gallery.store, numbers, progress=progress))
        title = gallery.path.name
    written = [] if output is None else _write_pages(portraits, output, into_folder, title)
    if as_json:
        dicts = [portrait.to_dict() for portrait in portraits]
        print_json({"words": dicts, "written": [str(path) for path in written]})
    else:
        for portrait in portraits:
            _print_portrait(portrait)
        for path in written[:1]:
            echo(f"written: {display_path(str(path))}")
    if open_page:
        open_in_browser(written[0])


def _is_folder(path: Path) -> bool:
    return path.is_dir() or path.suffix.lower() not in _PAGE_SUFFIXES


def _write_pages(
    portraits: "list[WordPortrait]", output: Path, into_folder: bool, title: str
) -> list[Path]:
    from bm25v.pages.word_page import render_word, render_words_overview

    if not into_folder:
        replace_file(output, render_word(portraits[0]))
        return [output]
    make_folder(output)
    numbers = [portrait.uses.facts.word for portrait in portraits]
    links = {number: f"word-{number}.html" for number in numbers}
    pages = {"index.html": render_words_overview(title, portraits, links)}
    for number, portrait in zip(numbers, portraits, strict=True):
        pages[links[number]] = render_word(portrait, links=links, home="index.html")
    for name, text in pages.items():
        replace_file(output / name, text)
    return [output / name for name in pages]


def _print_portrait(portrait: "WordPortrait") -> None:
    uses, facts = portrait.uses, portrait.uses.facts
    number = "" if facts.label.endswith(f" {facts.word}") else f" (word {facts.word})"
    echo(f"{facts.label}{number}: in {facts.df:,} of {count(uses.n, 'image')}, IDF {facts.idf:.2f}")
    lists = {
        "strongest in": [f"{_short_path(i.path)} (tf {i.tf:.2f})" for i in portrait.top[:3]],
        "folders": [
            f"{f.name} ({f.has_word} of {f.n_images}, {f.lift:.1f} × as frequent)"
            for f in uses.folders[:3]
        ],
        "together with": [_relate(word, "{:.1f} × chance") for word in portrait.companions[:3]],
        "similar words": [_relate(word, "cosine {:.2f}") for word in portrait.neighbours[:3]],
    }
    print_facts({title: items for title, items in lists.items() if items}, indent="  ")


def _relate(word: "RelatedWord", value: str) -> str:
    return f"{word.facts.label} ({value.format(word.value)})"


def _find_word(gallery: "Searchable", word: str) -> int:
    """Return the number of a word that was given by number or by name."""
    from bm25v.vocabulary.names import find_word

    return find_word(word, gallery.word_names, gallery.vocabulary.n_words)


@words.command("name")
@click.argument("word", required=False)
@click.argument("name", required=False)
@gallery_option
@engine_option
@click.option("--clear", is_flag=True, help="Remove the name instead.")
@json_option
def name_word(
    word: str | None,
    name: str | None,
    gallery_path: Path,
    engine: str | None,
    clear: bool,
    as_json: bool,
) -> None:
    """Give WORD a NAME, which all searches of this gallery show.

    The name is stored in this gallery and replaces a name that the vocabulary has.

    Without a WORD, the words that have no name are shown one after the other, each in four images,
    the most useful ones first: type a name, press Enter to skip a word, or q to end.
    """
    if word is None:
        _name_by_looking(gallery_path, clear or as_json or engine is not None)
        return
    if (name is None) != clear:
        raise click.UsageError("give a NAME, or --clear to remove it")
    with open_collection(gallery_path, engine) as gallery:
        number = _find_word(gallery, word)
        gallery.name_words({number: name})
        new_name = gallery.word_names.get(number)
    if as_json:
        print_json({"word": number, "name": new_name})
    else:
        echo(f"word {number}: {new_name}" if new_name else f"word {number} has no name now")


def _name_by_looking(gallery_path: Path, has_options: bool) -> None:
    from bm25v.api import Gallery
    from bm25v.cli.naming import is_interactive, name_by_looking

    if has_options or not is_interactive():
        raise click.UsageError("give a WORD and a NAME; naming words by looking needs a terminal")
    with Gallery.open(gallery_path) as gallery:
        name_by_looking(gallery)


@words.command("export")
@gallery_option
@click.option("-o", "--output", type=PathType(dir_okay=False, path_type=Path), help="The file.")
def export_names(gallery_path: Path, output: Path | None) -> None:
    """Write the names that were given in this gallery, as a TSV table.

    Put it into a vocabulary's folder as words.tsv to ship the names with the vocabulary.
    """
    from bm25v.api import Gallery
    from bm25v.vocabulary.names import format_names

    with Gallery.open(gallery_path) as gallery:
        names = gallery.store.names.current()
        table = format_names(names, vocabulary=gallery.vocabulary.fingerprint)
    if output is None:
        echo_text(table)
    else:
        replace_file(output, table)
        echo(f"{display_path(str(output))}: {count(len(names), 'name')}")


@words.command("import")
@click.argument("table", metavar="FILE", type=PathType(dir_okay=False, path_type=Path))
@gallery_option
@json_option
def import_names(table: Path, gallery_path: Path, as_json: bool) -> None:
    """Read names from a TSV table: in each line the number of a word, a tab, a name.

    Names that words have in this gallery are replaced; other words keep theirs.
    """
    from bm25v.api import Gallery
    from bm25v.vocabulary.names import read_names

    with Gallery.open(gallery_path) as gallery:
        vocabulary = gallery.vocabulary
        names = read_names(table, n_words=vocabulary.n_words, vocabulary=vocabulary.fingerprint)
        before = gallery.store.names.current()
        replaced = sum(before.get(word, name) != name for word, name in names.items())
        gallery.name_words(names)
    if as_json:
        print_json({"names": len(names), "replaced": replaced})
    else:
        echo(f"{count(len(names), 'name')} read, {replaced:,} of them replaced another one")


@words.command("suggest")
@click.argument("words", metavar="[WORD]...", nargs=-1)
@gallery_option
@click.option(
    "--from-gallery",
    is_flag=True,
    help="By what a classifier sees in the gallery's images, and by the names of their folders.",
)
@click.option(
    "--prompts",
    type=PathType(dir_okay=False, path_type=Path),
    help="By the backbone's text tower: a text file of possible names, one per line.",
)
@click.option("--limit", type=click.IntRange(1), help="Only the words of most images.")
@click.option(
    "--apply", "is_applied", is_flag=True, help="With --from-gallery: use the names in the gallery."
)
@click.option(
    "-o",
    "--output",
    type=PathType(dir_okay=False, path_type=Path),
    help="Write them as a TSV table, for `words import` or as a vocabulary's suggested.tsv.",
)
@json_option
def suggest(
    words: tuple[str, ...],
    gallery_path: Path,
    from_gallery: bool,
    prompts: Path | None,
    limit: int | None,
    is_applied: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Suggest names for words, by default for all.

    Names that people gave are never replaced. A word without a clear name gets none.
    """
    from bm25v.api import Gallery
    from bm25v.cli.progress import progress_bar
    from bm25v.vocabulary.names import format_names

    if from_gallery == (prompts is not None):
        raise click.UsageError("give either --from-gallery or --prompts FILE")
    if is_applied and (not from_gallery or words or limit):
        raise click.UsageError("--apply is for all words: give --from-gallery, no WORD, no --limit")
    with Gallery.open(gallery_path) as gallery, progress_bar() as progress:
        numbers = [_find_word(gallery, word) for word in dict.fromkeys(words)]
        if not numbers and (prompts is not None or limit):
            numbers = [word.word for word in _sort_words(gallery.words(best=1), "df")]
        numbers = numbers[:limit]
        suggestions: list[Suggestion] | list[WordName]
        if prompts is None:
            suggestions, notes = _suggest_by_images(gallery, numbers, progress)
        else:
            suggestions, notes = _suggest_by_text(gallery, numbers, prompts, progress)
        names = {suggestion.word: suggestion.name for suggestion in suggestions}
        if is_applied:
            gallery.store.names.replace_suggestions(names, notes)
        fingerprint, kept = gallery.vocabulary.fingerprint, len(gallery.store.names.current())
    if output is not None:
        replace_file(output, format_names(names, vocabulary=fingerprint, notes=notes))
    if as_json:
        print_json({"suggestions": [suggestion._asdict() for suggestion in suggestions]})
        return
    header = ("word", "suggestion", "why")
    rows = [(str(word), name, notes[word]) for word, name in names.items()]
    print_table(make_columns(header, rows, texts=("suggestion", "why")))
    if is_applied:
        echo(f"{count(len(names), 'name')} in use; {count(kept, 'name')} given by people")
    if output is not None:
        echo(f"written: {display_path(str(output))}")


def _suggest_by_images(
    gallery: "Gallery", words: list[int], progress: "Progress"
) -> "tuple[list[WordName], dict[int, str]]":
    from bm25v.training.concepts import find_table
    from bm25v.training.word_evidence import suggest_from_gallery

    own = gallery.store.names.current()
    suggestions = [
        suggestion
        for suggestion in suggest_from_gallery(gallery.store, find_table(), progress=progress)
        if suggestion.word not in own and (not words or suggestion.word in words)
    ]
    return suggestions, {
        s.word: f"{percent(s.share)} of {s.images} images, {percent(s.elsewhere)} elsewhere"
        for s in suggestions
    }


def _suggest_by_text(
    gallery: "Gallery", words: list[int], prompts: Path, progress: "Progress"
) -> "tuple[list[Suggestion], dict[int, str]]":
    from bm25v.explanations.suggest import read_prompts, suggest_names

    suggestions = suggest_names(gallery.store, words, read_prompts(prompts), progress=progress)
    return suggestions, {
        s.word: f"cosine {s.cosine:.3f}, margin {s.margin:.3f} to {s.next}" for s in suggestions
    }


@words.command("check")
@gallery_option
@json_option
def check(gallery_path: Path, as_json: bool) -> None:
    """Measure how well the names of words fit the gallery's images.

    A classifier looks at the images that have most of each word, and at the words that count most
    in each image. A name is right where one of the classes that it sees there, or the name of the
    image's folder, is what the word is named after. Names that it does not know are not checked.
    """
    from bm25v.api import Gallery
    from bm25v.cli.progress import progress_bar
    from bm25v.training.concepts import find_table
    from bm25v.training.word_evidence import CHECKED, SHOWN, check_gallery

    with Gallery.open(gallery_path) as gallery, progress_bar() as progress:
        result = check_gallery(gallery.store, find_table(), progress=progress)
    if as_json:
        print_json(vars(result))
        return
    strongest = f"{percent(result.right)} of the {CHECKED} images with most of a word"
    shown = f"{percent(result.shown_right)} of those with a name"
    named = f"{result.named:,} of {count(result.words, 'word')}, {result.checked:,} of them checked"
    print_facts(
        {
            "named": named,
            "right in": f"{strongest}; by chance {percent(result.chance)}",
            f"{SHOWN} words of an image": f"{percent(result.shown_named)} have a name, "
            f"right in {shown}",
        }
    )


@words.command("report")
@click.argument("vocabulary", metavar="VOCAB")
@gallery_option
@click.option(
    "-o",
    "--output",
    default="words.html",
    show_default=True,
    type=PathType(dir_okay=False, path_type=Path),
    help="The page to write.",
)
@json_option
@click.pass_context
def report(
    context: click.Context, vocabulary: str, gallery_path: Path, output: Path, as_json: bool
) -> None:
    """Write a page about VOCAB: figures, charts and sample words.

    VOCAB is a folder, a shipped name or hf://owner/name. What its words look like is shown by
    images of the gallery, if that has this vocabulary.
    """
    from bm25v.pages.vocabulary_page import render_vocabulary
    from bm25v.vocabulary import Vocabulary

    loaded = Vocabulary.load(vocabulary)
    is_default = context.get_parameter_source("gallery_path") != ParameterSource.COMMANDLINE
    samples = _sample_gallery(gallery_path, loaded, is_default)
    replace_file(output, render_vocabulary(loaded, samples))
    if as_json:
        used = None if samples is None else samples.gallery
        facts = {"vocabulary": loaded.name, "words": loaded.n_words, "gallery": used}
        print_json({"output": str(output), **facts})
        return
    page, where = display_path(str(output)), ""
    if samples is not None:
        where = f", with images of {display_path(samples.gallery)}"
    echo(f"{page}: a page about {loaded.name}, {loaded.n_words:,} words{where}")


def _sample_gallery(
    path: Path, vocabulary: "Vocabulary", is_default: bool
) -> "GallerySamples | None":
    """Return samples of a gallery; None if it is one that nobody named, and does not fit."""
    from bm25v.api import Gallery
    from bm25v.explanations.gallery_samples import sample_gallery

    try:
        with Gallery.open(path) as gallery:
            fingerprint = gallery.store.catalog.meta.vocabulary_fingerprint
            if fingerprint == vocabulary.fingerprint:
                return sample_gallery(gallery.store)
            own = gallery.store.catalog.meta.vocabulary
    except GalleryError:
        if is_default:
            return None
        raise
    if is_default:
        return None
    raise WrongUse(f"{path} has the vocabulary {own}, not {vocabulary.source}: give another -g")
