"""What the documents say is true: sessions, code, JSON, commands, options; the site builds."""

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

import bm25v
from bm25v import cli
from tests.browser import CHROMIUM, browser
from tests.conftest import make_image

ROOT = Path(__file__).parent.parent
SESSIONS = [ROOT / "README.md", ROOT / "docs" / "tutorial.md"]
HOW_TO = sorted(ROOT.glob("docs/how-to/*.md"))
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
STEP = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", flags=re.MULTILINE)
DURATION = re.compile(r"\b(\d+[hm] )?[\d.]+[ms]\b")
DECIMAL = re.compile(r"\d+\.\d+")
TOLERANCE = 0.02  # of decimals: other processors round the backbone's sums differently


class Block(NamedTuple):
    language: str
    text: str


def blocks(document: Path) -> list[Block]:
    return [Block(*match) for match in FENCE.findall(document.read_text(encoding="utf-8"))]


def name(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


def run_command(command: str, folder: Path) -> str:
    words = shlex.split(command)
    assert words[0] == "bm25v"
    done = subprocess.run(
        [sys.executable, "-m", "bm25v", *words[1:]],
        cwd=folder,
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_python(code: str, names: dict[str, Any]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "example", "exec"), names)
    return printed.getvalue()


def run_session(document: Path, folder: Path) -> int:
    """Run a document's console and Python blocks in order, and compare what they print.

    A `text` block after a Python block is what that prints. Return the number of comparisons.
    """
    names: dict[str, Any] = {}
    compared = 0
    printed: str | None = None
    for block in blocks(document):
        if block.language == "console":
            for command, expected in STEP.findall(block.text):
                compare(run_command(command, folder), expected, command)
                compared += 1
        elif block.language == "text" and printed is not None:
            compare(printed, block.text, "Python")
            compared += 1
        printed = run_python(block.text, names) if block.language == "python" else None
    return compared


def compare(printed: str, expected: str, what: str) -> None:
    """Expect the same text, but for durations and, within `TOLERANCE`, decimals.

    A line "…" stands for any lines.
    """
    printed, expected = normalise(printed), normalise(expected)
    lines = DECIMAL.sub("#", expected).splitlines()
    pattern = "".join("(.*\n)*?" if line == "…" else f"{re.escape(line)}\n" for line in lines)
    assert re.fullmatch(pattern, DECIMAL.sub("#", printed) + "\n"), f"{what} prints\n{printed}"
    if "…" not in lines:
        tolerance = pytest.approx(decimals(expected), rel=TOLERANCE, abs=TOLERANCE)
        assert decimals(printed) == tolerance, f"{what} prints\n{printed}"


def normalise(text: str) -> str:
    """Return a text without durations, and with single spaces."""
    lines = (re.sub(r"\s+", " ", line).strip() for line in text.strip().splitlines())
    return DURATION.sub("", "\n".join(lines))


def decimals(text: str) -> list[float]:
    return [float(number) for number in DECIMAL.findall(text)]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which `bm25v demo` ran."""
    folder = tmp_path_factory.mktemp("demo")
    run_command("bm25v demo", folder)
    return folder


@pytest.mark.parametrize("document", SESSIONS, ids=name)
def test_a_session_prints_what_the_document_shows(
    document: Path, demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(demo / "gallery.bm25v", ignore_errors=True)  # of the other session
    monkeypatch.chdir(demo)
    assert run_session(document, demo) >= 4


def test_other_output_than_a_document_shows_is_noticed() -> None:
    compare("2 hits, 0.93 (0.6s)\nend", "2 hits, 0.94 (1.2s)\nend", "")
    compare("first\n0.1\n0.2\nlast", "first\n…\nlast", "")
    for printed in ("2 hits, 0.83 (0.6s)\nend", "3 hits, 0.93 (0.6s)\nend", "2 hits, 0.93 (0.6s)"):
        with pytest.raises(AssertionError):
            compare(printed, "2 hits, 0.93 (0.6s)\nend", "")
    with pytest.raises(AssertionError):
        compare("first\nlast\nmore", "first\n…\nlast", "")


@pytest.mark.parametrize("document", HOW_TO, ids=name)
def test_python_code_of_how_to_pages_runs(
    document: Path, demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(demo / "demo" / "gallery.bm25v", tmp_path / "gallery.bm25v")
    (tmp_path / "demo").symlink_to(demo / "demo")
    (tmp_path / "queries").symlink_to(demo / "demo" / "queries")
    (tmp_path / "Pictures").mkdir()
    for image, file in enumerate(("a.jpg", "b.jpg", "c.jpg", "cat.jpg", "Pictures/cat.jpg")):
        make_image(image).save(tmp_path / file)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks(document):
        if block.language == "python":
            run_python(block.text, names)


def command_lines(document: Path) -> Iterator[str]:
    """Yield every call of bm25v in a document: in a block, or as code within a sentence."""
    text = document.read_text(encoding="utf-8")
    for block in blocks(document):
        lines = block.text.replace("\\\n", " ").splitlines()
        yield from (line.removeprefix("$ ") for line in lines)
    yield from re.findall(r"`(bm25v [^`]+)`", FENCE.sub("", text).replace("\n", " "))


def find_command(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the command that a line calls, and its arguments."""
    command, words = cli.load_command(words[0]), words[1:]
    while words and words[0] in subcommands(command):
        command, words = subcommands(command)[words[0]], words[1:]
    return command, words


def subcommands(command: click.Command) -> dict[str, click.Command]:
    commands: dict[str, click.Command] = getattr(command, "commands", {})
    return commands


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_command_and_option_of_a_document_exists(document: Path) -> None:
    for line in command_lines(document):
        code, _, _ = line.partition(" #")
        if not code.startswith("bm25v ") or "…" in code:
            continue
        words = shlex.split(code.split(" | ")[0])[1:]
        if words[0].startswith("-"):
            continue
        command, arguments = find_command(words)
        options = {o for p in command.get_params(click.Context(command)) for o in p.opts}
        given = {word.partition("=")[0] for word in arguments if re.match("--?[a-z]", word)}
        assert given <= options, f"{line}: no option {', '.join(given - options)}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_option_named_in_a_sentence_exists(document: Path) -> None:
    text = FENCE.sub("", document.read_text(encoding="utf-8"))
    named = set(re.findall(r"`(--[a-z][a-z0-9-]*)[^`]*`", text))
    assert named <= all_options(), f"no option {', '.join(named - all_options())}"


def all_options() -> set[str]:
    def options(command: click.Command) -> Iterator[str]:
        for parameter in command.get_params(click.Context(command, help_option_names=[])):
            yield from parameter.opts if isinstance(parameter, click.Option) else ()
        for subcommand in subcommands(command).values():
            yield from options(subcommand)

    return {option for name in cli.COMMANDS for option in options(cli.load_command(name))}


@pytest.fixture
def shell(tmp_path: Path) -> Callable[[str], str]:
    """A function that runs a script in bash, where `bm25v` is this one; the home is empty."""
    program = tmp_path / "bin" / "bm25v"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m bm25v "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": path}

    def run(script: str) -> str:
        done = subprocess.run(
            ["bash", "-eu", "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash is installed")
def test_shells_complete_commands_and_options_as_the_page_says(
    shell: Callable[[str], str], tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "how-to" / "install.md").read_text(encoding="utf-8")
    section = page.split("## Completion in the shell")[1].split("\n## ")[0]
    scripts = re.findall(r"^    ```sh\n(.*?)^    ```$", section, flags=re.DOTALL | re.MULTILINE)
    assert len(scripts) == 3
    for script in scripts:
        shell(textwrap.dedent(script))
    assert (tmp_path / ".bm25v-complete.zsh").read_text().startswith("#compdef bm25v")
    assert "complete " in (tmp_path / ".config/fish/completions/bm25v.fish").read_text()
    for line, expected in {
        "bm25v expl": "explain",
        "bm25v words sug": "suggest",
        "bm25v search --min-c": "--min-coverage",
        "bm25v search --mode hy": "hybrid",
        "bm25v nosuch x": "",
    }.items():
        words = shlex.join(line.split(" "))
        query = f"COMP_WORDS=({words}); COMP_CWORD={line.count(' ')}; _bm25v_completion bm25v"
        reply = shell(f'. ~/.bashrc; COMPREPLY=(); {query}; echo "${{COMPREPLY[@]}}"')
        assert reply == f"{expected}\n"


def same_shape(example: Any, actual: Any) -> None:
    """Expect the same keys all the way down."""
    if isinstance(example, dict):
        assert list(example) == list(actual)
        for key in example:
            same_shape(example[key], actual[key])
    elif isinstance(example, list) and example:
        same_shape(example[0], actual[0])


def test_json_examples_have_the_shape_of_the_real_thing(photos: Path, tmp_path: Path) -> None:
    examples = [b for b in blocks(ROOT / "docs" / "reference" / "json.md") if b.language == "json"]
    index_example, search_example = (json.loads(example.text) for example in examples)
    (photos / "torn.png").write_bytes(b"no image")
    (photos / "1.nef").write_bytes(b"of a camera")
    report = json.loads(run_command("bm25v index photos --vocabulary toy --json", tmp_path))
    same_shape(index_example, report)
    results = json.loads(run_command("bm25v search photos/3.png --json", tmp_path))
    same_shape(search_example, results)


def test_documents_are_short_and_images_are_small_and_shown() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 130
    texts = [
        page.read_text(encoding="utf-8")
        for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    ]
    assert sum(len(text.split()) for text in texts) <= 25_000
    pages = "".join(texts)
    images = [*(ROOT / "docs" / "images").iterdir()]
    assert [image.name for image in images if f"images/{image.name}" not in pages] == []
    sizes = [image.stat().st_size for image in images]
    assert max(sizes) <= 150_000
    assert sum(sizes) <= 1_000_000


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation, built without a warning."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    done = subprocess.run(
        [*build, "--site-dir", str(folder)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_references_have_every_command_option_and_exported_name(site: Path) -> None:
    page = (site / "reference" / "command-line.html").read_text(encoding="utf-8")
    assert {f'id="{command}"' for command in cli.COMMANDS} <= set(re.findall(r'id="[^"]*"', page))
    terms = " ".join(re.findall("<dt><code>(.*?)</code>", page))
    assert all_options() <= set(re.findall("--?[a-z0-9][a-z0-9-]*", terms))
    pages = "".join(p.read_text(encoding="utf-8") for p in site.glob("reference/python/*.html"))
    identifiers = set(re.findall(r'id="bm25v[^"]*\.(\w+)"', pages))
    assert set(bm25v.__all__) <= identifiers


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_the_site_opens_from_the_disk_and_needs_no_network(site: Path, tmp_path: Path) -> None:
    with browser(tmp_path) as tab:
        for page in ("tutorial.html", "reference/python/gallery.html", "index.html"):
            tab.open(site / page)
            assert not tab.errors
            assert {a.partition(":")[0] for a in tab.addresses} <= {"file", "data"}
        tab.value("document.querySelector('[data-md-component=search-query]').focus()")
        tab.call("Input.insertText", text="duplicates")
        # A key that is pressed before the search is ready has no effect, so it is pressed again.
        wait = """new Promise((done) => { const look = () => {
          const link = document.querySelector(".md-search-result__link");
          if (link) return done(link.textContent);
          const query = document.querySelector("[data-md-component=search-query]");
          for (const type of ["input", "keyup"]) query.dispatchEvent(new Event(type));
          setTimeout(look, 200); }; look(); })"""
        answer = tab.call("Runtime.evaluate", expression=wait, awaitPromise=True)
        assert "uplicates" in answer["result"]["value"]
