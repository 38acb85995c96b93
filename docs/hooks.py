"""What `mkdocs build` adds to the pages: documents from outside docs/, and the command line."""

import inspect
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pygments.lexers.shell import BashSessionLexer

from bm25v import cli

ROOT = Path(__file__).parent.parent
_DOCUMENTS = {
    "ARCHITECTURE.md": "explanation/architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "explanation/contributing.md",
    "SECURITY.md": "explanation/security.md",
}
_HIDDEN = {"index.md": ["navigation", "toc"], "tutorial.md": ["navigation"]}  # beside these pages
_COMMANDS = "<!-- every command and option -->"
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")

# Pygments takes "#", the title of the column of ranks, for the prompt of a shell.
BashSessionLexer._ps1rgx = re.compile(r"^(\$ )(.*\n?)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents at the top of the repository."""
    for name, uri in _DOCUMENTS.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write links as the site needs them, and put in the commands."""
    page.meta["hide"] = _HIDDEN.get(page.file.src_uri, [])
    source = Path(str(page.file.abs_src_path)).relative_to(ROOT).parent.as_posix()
    markdown = _LINK.sub(lambda link: _to_site(link[1], source, page.file.src_uri), markdown)
    if _COMMANDS in markdown:
        markdown = markdown.replace(_COMMANDS, "\n".join(describe_commands()))
    return markdown


def _to_site(target: str, source: str, uri: str) -> str:
    """Return a link between files of the repository as one between pages of the site.

    >>> _to_site("docs/how-to/search.md", ".", "explanation/architecture.md")
    '../how-to/search.md'
    """
    file = posixpath.normpath(posixpath.join(source, target))
    linked = _DOCUMENTS.get(file, posixpath.relpath(file, "docs"))
    return posixpath.relpath(linked, posixpath.dirname(uri) or ".")


def describe_commands() -> Iterator[str]:
    """Yield Markdown lines about every command, in the sections of `bm25v --help`."""
    context = click.Context(cli.bm25v, info_name="bm25v")
    yield "| command | what it does |\n|---|---|"
    for name, command in cli.COMMANDS.items():
        yield f"| [`{name}`](#{name}) | {command.summary} |"
    yield ""
    for section, names in cli.SECTIONS.items():
        yield f"## {section}\n"
        for name in names:
            yield from _describe(cli.load_command(name), context)


def _describe(command: click.Command, parent: click.Context) -> Iterator[str]:
    context = click.Context(command, parent=parent, info_name=command.name)
    path = context.command_path.removeprefix("bm25v ")
    yield f"### {path} {{ #{path.replace(' ', '-')} }}\n"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```text\n{context.command_path} {usage}\n```\n"
    yield _mark_options(inspect.cleandoc(command.help or "")) + "\n"
    for option in command.get_params(context):
        record = option.get_help_record(context) if isinstance(option, click.Option) else None
        if record is not None and "--help" not in option.opts:
            yield f"`{record[0]}`\n:   {_mark_options(record[1])}\n"
    for subcommand in getattr(command, "commands", {}).values():
        yield from _describe(subcommand, context)


def _mark_options(text: str) -> str:
    """Return a help text as Markdown.

    >>> _mark_options("Give --must, -k or none  [default: none]")
    'Give `--must`, `-k` or none  \\\\[default: none]'
    """
    return re.sub(r"(?<![\w-])--?[a-z][a-z-]*", r"`\g<0>`", text).replace("[", "\\[")
