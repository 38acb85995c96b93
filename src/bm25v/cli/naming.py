"""`bm25v words name` without a word: look at one word after the other, and name it."""

import sys
from typing import TYPE_CHECKING

import click

from bm25v.cli.printing import echo
from bm25v.cli.show import EXAMPLE_SIDE, can_show, show_examples
from bm25v.display import count
from bm25v.errors import WrongUse

if TYPE_CHECKING:
    from bm25v.api import Gallery

_END = "q"


def is_interactive() -> bool:
    """Return whether a person can look at images and answer."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def name_by_looking(gallery: "Gallery") -> None:
    """Show the words without a name, the most useful first, and save each name at once."""
    from bm25v.explanations.suggest import find_words_to_name

    words = find_words_to_name(gallery.store)
    if not words:
        echo("all words in use have a name")
        return
    has_images = can_show()
    echo(f"{count(len(words), 'word')} without a name. Type a name, Enter to skip, q to end.")
    n_named = 0
    for word in words:
        if not _show_word(gallery, word, has_images):
            continue
        answer = _ask(gallery, word)
        if answer == _END:
            break
        n_named += bool(answer)
    echo(f"{count(n_named, 'word')} named")


def _show_word(gallery: "Gallery", word: int, has_images: bool) -> bool:
    """Show images of a word; return whether there were any."""
    from bm25v.explanations.crops import cut_examples
    from bm25v.explanations.word_examples import find_examples

    examples = find_examples(gallery.engine, [word])[word]
    crops = cut_examples(examples, side=EXAMPLE_SIDE)
    if not crops:
        return False
    statistics = gallery.store.snapshot().word_statistics
    echo()
    echo(f"word {word}, in {statistics.df_v[word]:,} of {count(statistics.n, 'image')}")
    if has_images:
        show_examples(list(crops.values()))
    else:
        for example in crops:
            echo(f"  {example.path}")
    return True


def _ask(gallery: "Gallery", word: int) -> str:
    """Return the name that was given and saved; empty if none was, or the sign to end."""
    while True:
        try:
            answer: str = click.prompt("name", default="", show_default=False).strip()
        except click.Abort:  # Ctrl-C, or the end of the input
            echo()
            return _END
        if answer in ("", _END):
            return answer
        others = [other for other, name in gallery.word_names.items() if name == answer]
        try:
            gallery.name_words({word: answer})
        except WrongUse as error:
            echo(str(error))
            continue
        if others:
            also = ", ".join(map(str, others[:3]))
            echo(f"note: word {also} has this name too: a search by it will ask which one")
        return answer
