"""The command line: a door with no logic of its own.

Each command is a module of the same name, imported only when it is called.
"""

import importlib
import logging
import sys
from typing import NoReturn

import click

from bm25v import __version__
from bm25v.errors import Bm25vError, WrongUse

_COMMANDS = (
    "index",
    "search",
    "explain",
    "info",
    "remove",
    "compact",
    "verify",
    "models",
    "train",
    "vocabulary",
    "words",
    "duplicates",
    "evaluate",
    "ablate",
    "zipf",
    "cost",
    "report",
    "bench",
    "demo",
    "doctor",
)


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"bm25v.cli.{cmd_name}")
        command: click.Command = module.command
        return command


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="bm25v")
def bm25v() -> None:
    """Search pictures with a picture, and see why each one was found."""


def main() -> None:
    """Run the command line: exit code 0, 1 (failed) or 2 (wrong use)."""
    log = logging.getLogger("bm25v")
    log.addHandler(logging.StreamHandler())
    log.setLevel(logging.INFO)
    try:
        bm25v(prog_name="bm25v", standalone_mode=False)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except Bm25vError as error:
        _fail(str(error), 2 if isinstance(error, WrongUse) else 1)
    except (KeyboardInterrupt, click.Abort):
        _fail("interrupted; nothing that was committed is lost", 1)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        _fail(str(error), 1)


def _fail(message: str, code: int) -> NoReturn:
    line = " ".join(message.split())
    click.echo(f"error: {line}", err=True)
    sys.exit(code)
