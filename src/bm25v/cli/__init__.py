"""The command line: reads arguments, calls the library, prints the result.

A command's module is imported when the command is called.
"""

import importlib
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, NoReturn

import click

from bm25v import __version__
from bm25v.cli.printing import accept_any_text, echo, echo_text
from bm25v.errors import Bm25vError, InvalidOption
from bm25v.privacy import own_process
from bm25v.progress import Progress, show_downloads


class Command(NamedTuple):
    target: str  # the module of this package, and the command's name there
    summary: str  # its own, written out so that the help text imports no command


# Section of the help text -> command.
SECTIONS = {
    "Search photos": {
        "index": Command("gallery:index", "Index folders: add, update and remove images."),
        "search": Command("search:search", "Find the images most similar to IMAGE."),
        "explain": Command(
            "search:explain", "Show why HIT, an image of the gallery, matches IMAGE."
        ),
        "duplicates": Command(
            "gallery:duplicates", "Find images that occur twice: the same, or nearly the same."
        ),
        "serve": Command("serve:serve", "Serve the gallery over HTTP until Ctrl-C."),
        "words": Command("words:words", "List, show and name the words of a gallery."),
        "demo": Command("gallery:demo", "Index photos of flowers, search them, and write a page."),
    },
    "Look after a gallery": {
        "info": Command("gallery:info", "Show facts about a gallery."),
        "name": Command(
            "gallery:name", "Give images a NAME that `search --text` finds, or list all names."
        ),
        "remove": Command("gallery:remove", "Remove images from the gallery; files stay."),
        "compact": Command("gallery:compact", "Free the disk space of removed images."),
        "verify": Command("gallery:verify", "Check every row of a gallery."),
        "doctor": Command("vocabulary:doctor", "Show what is installed, and precompile."),
    },
    "Other engines and files": {
        "bags": Command(
            "bags:bags", "Encode without a gallery; move galleries to files and to Qdrant."
        ),
    },
    "Research": {
        "models": Command("vocabulary:models", "List and download backbones."),
        "train": Command("vocabulary:train", "Train a vocabulary on a FOLDER of images."),
        "vocabulary": Command("vocabulary:vocabulary", "Import and export vocabularies."),
        "evaluate": Command("evaluate:evaluate", "Measure bm25v and other systems on a DATASET."),
    },
}
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}


def load_command(name: str) -> click.Command:
    """Import a command by its name in `COMMANDS`."""
    module, attribute = COMMANDS[name].target.split(":")
    command: click.Command = getattr(importlib.import_module(f"bm25v.cli.{module}"), attribute)
    return command


class _Commands(click.Group):
    """Loads commands when they are needed, and lists them in sections."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        is_completing = ctx.resilient_parsing  # for a shell, which must not show an error
        if cmd_name not in COMMANDS and not is_completing:
            import difflib

            close = difflib.get_close_matches(cmd_name, COMMANDS, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else " `bm25v --help` lists them."
            ctx.fail(f"no command {cmd_name!r}.{hint}")
        return load_command(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                rows = [(name.ljust(width), entry.summary) for name, entry in commands.items()]
                formatter.write_dl(rows)


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="bm25v")
def bm25v() -> None:
    """Search images with an image, and see why each one was found."""


def main() -> None:
    """Run the command line: exit code 0, 1 (failed), 2 (wrong use) or 130 (interrupted)."""
    own_process()
    accept_any_text()
    log = logging.getLogger("bm25v")
    log.addHandler(_LineHandler())
    log.setLevel(logging.WARNING)
    logging.getLogger("bm25v.backbones.downloads").setLevel(logging.INFO)
    try:
        with _download_bar():
            bm25v(prog_name="bm25v", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        echo_text(error.ctx.get_help())
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except Bm25vError as error:
        _fail(str(error), 2 if isinstance(error, InvalidOption) else 1)
    except (KeyboardInterrupt, click.Abort) as error:
        details = (error.__cause__ or error).args  # a command may say what is left to do
        echo(": ".join(("interrupted", *details)), err=True)
        sys.stdout.flush()
        os._exit(128 + signal.SIGINT)  # sys.exit would wait for threads that decode images
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        _fail(str(error), 1)


class _LineHandler(logging.Handler):
    """Prints log lines; while a progress bar is shown, `sys.stderr` puts them above it."""

    def emit(self, record: logging.LogRecord) -> None:
        echo(self.format(record), err=True)


@contextmanager
def _download_bar() -> Iterator[None]:
    """Show a bar while a command that has none downloads a file on first use."""
    with ExitStack() as stack:
        bars: list[Progress] = []

        def show(stage: str, done: int, total: int) -> None:
            from bm25v.cli.progress import open_bar

            bars[:] = bars or [stack.enter_context(open_bar())]
            bars[0](stage, done, total)
            if done >= total:
                stack.close()
                bars.clear()

        with show_downloads(show):
            yield


def _fail(message: str, code: int) -> NoReturn:
    line = " ".join(message.split())
    echo(f"error: {line}", err=True)
    sys.exit(code)
