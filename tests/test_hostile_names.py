"""Names of files and words cannot send commands to a terminal, whatever the locale and width."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import make_image
from tests.terminal import needs_terminal, show

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows refuses such names")

NAMES = [
    b"\x1b]0;PWNED\x07\x1b[2J.png",  # a new title, then an empty screen
    b"two\nerror: lines.png",
    b"\rover\x08written.png",
    b"\xc2\x9b31mc1.png",  # the control sequence of 8-bit terminals
    b"bidi \xe2\x80\xaegnp.exe\xe2\x81\xa6\xe2\x80\x8f.png",
    b"caf\xe9.png",  # not UTF-8
    "耳 …×.png".encode(),
    b"[bold]markup :smile:.png",
]
DAMAGED = b"\x1b[31mdamaged\n.png"

_SGR = re.compile(rb"\x1b\[[\d;]*m")  # colours and styles: the only commands of bm25v's own
_BAR = re.compile(rb"\x1b\[(\?25[lh]|\d*[AK])|\r")  # of progress bars: cursor, lines
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f]")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images of such names, and a gallery of them."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "photos").mkdir()
    photos = os.fsencode(folder / "photos")
    try:
        for seed, name in enumerate(NAMES):
            make_image(seed).save(folder / "image.png")
            os.replace(folder / "image.png", os.path.join(photos, name))
    except OSError:
        pytest.skip("this file system accepts only text")
    shutil.copy(os.path.join(photos, NAMES[0]), os.path.join(photos, b"copy " + NAMES[0]))
    done = run(folder, "index", "photos", "--vocabulary", "toy")
    assert done.returncode == 0, done.stderr
    with open(os.path.join(photos, DAMAGED), "wb") as file:
        file.write(b"text")
    return folder


def run(
    folder: Path, *words: str | bytes, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    inherited = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    return subprocess.run(
        [sys.executable, "-m", "bm25v", *words],
        cwd=folder,
        env={**inherited, **environment},
        capture_output=True,
        check=False,
    )


def photo(number: int) -> bytes:
    return b"photos/" + NAMES[number]


COMMANDS: dict[str, tuple[int, tuple[str | bytes, ...]]] = {
    "search": (0, ("search", photo(1), "--include-query")),
    "search-by-words": (0, ("search", "--boost", "88=2", "--like", photo(3), "--offset", "1")),
    "explain": (0, ("explain", photo(0), photo(1))),
    "words": (0, ("words", "list")),
    "words-show": (0, ("words", "show", "88", "86")),
    "duplicates": (0, ("duplicates",)),
    "verify": (0, ("verify",)),
    "info": (0, ("info",)),
    "index": (0, ("index", "photos", "-v")),
    "index-one": (1, ("index", b"photos/" + DAMAGED)),
    "remove": (1, ("remove", b"photos/\x1b]0;gone\x07\nerror: forged.png")),
    "missing": (1, ("search", b"\x1b[2Jno\nsuch.png")),
    "no-gallery": (1, ("info", "-g", b"\x1b[2Jno\nsuch")),
    "no-vocabulary": (1, ("index", "photos", "-g", "new", "--vocabulary", b"\x1b[2Jno\nsuch")),
    "no-command": (2, (b"\x1b[2Jno\nsuch",)),
    "no-option": (2, ("search", b"--\x1b[2Jno\nsuch")),
}


def check_bytes(received: bytes, encoding: str = "utf-8") -> str:
    """Expect no control characters but newlines; return the text."""
    text = received.decode(encoding)
    assert not _CONTROL.search(text), repr(text)
    return text


@pytest.mark.parametrize("command", COMMANDS)
def test_a_pipe_receives_no_control_characters(hostile: Path, command: str) -> None:
    code, words = COMMANDS[command]
    done = run(hostile, *words)
    assert done.returncode == code, done.stderr
    shown = check_bytes(done.stdout) + check_bytes(done.stderr)
    assert "Traceback" not in shown
    errors = re.findall(r"^error:.*", shown, re.MULTILINE)
    assert len(errors) == (code != 0 and command != "index-one")
    assert not re.search(r"^(error: lines|such|error: forged)", shown, re.MULTILINE)


@needs_terminal
@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("search", ()),
        ("search", ("--format", "paths")),
        ("search", ("--format", "csv")),
        ("explain", ()),
        ("index", ()),
    ],
)
def test_a_terminal_receives_only_styles_of_bm25v(
    hostile: Path, command: str, options: tuple[str, ...]
) -> None:
    code, words = COMMANDS[command]
    shown = show(*map(os.fsdecode, words), *options, folder=hostile, columns=100)
    assert shown.code == code
    check_bytes(_BAR.sub(b"", _SGR.sub(b"", shown.raw.encode())))
    assert not {"\x1b[31m", "\x1b[5m", "\x1b[2J"} & set(re.findall(r"\x1b\[\d*\w", shown.raw))


LOCALES = {
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "ascii": {"PYTHONIOENCODING": "ascii:strict"},
    "strict": {"PYTHONIOENCODING": "utf-8:strict"},
}


@pytest.mark.parametrize("locale", LOCALES)
@pytest.mark.parametrize("command", ["search", "words-show", "missing"])
def test_any_locale_gets_an_answer(hostile: Path, locale: str, command: str) -> None:
    code, words = COMMANDS[command]
    done = run(hostile, *words, **LOCALES[locale])
    assert done.returncode == code, done.stderr
    encoding = "latin-1" if locale == "latin-1" else "utf-8"
    assert "Traceback" not in check_bytes(done.stdout + done.stderr, encoding)


@pytest.mark.parametrize("columns", ["1", "20"])
@pytest.mark.parametrize("command", ["search", "explain", "words-show", "info"])
def test_any_width_gets_an_answer(hostile: Path, columns: str, command: str) -> None:
    code, words = COMMANDS[command]
    done = run(hostile, *words, COLUMNS=columns, NO_COLOR="1")
    assert done.returncode == code, done.stderr
    text = check_bytes(done.stdout)
    if command == "search":
        assert len(re.findall(r"^\d .*ng$", text, re.MULTILINE)) == len(NAMES) + 1


@needs_terminal
@pytest.mark.parametrize("columns", [1, 20, 80])
def test_images_are_shown_in_any_width(hostile: Path, columns: int) -> None:
    queries = [f"photos/{os.fsdecode(name)}" for name in NAMES[:6]] * 5
    shown = show("explain", *queries, queries[1], "--show", folder=hostile, columns=columns)
    assert shown.code == 0, shown.text
    blocks = [line for line in shown.text.splitlines() if "▀" in line]
    assert len(blocks) >= len(queries) // 5
    assert max(map(len, blocks)) <= columns


@needs_terminal
def test_without_colours_images_are_not_shown(hostile: Path) -> None:
    pair = [os.fsdecode(photo(0)), os.fsdecode(photo(1))]
    shown = show("explain", *pair, "--show", folder=hostile, columns=80, NO_COLOR="1")
    assert shown.code == 0
    assert "this terminal has no colours to show images with: use -o" in shown.text
    assert "▀" not in shown.text


def test_a_pipe_receives_paths_as_they_are(hostile: Path) -> None:
    for locale in LOCALES.values():
        search = ("search", photo(1), "--include-query", "--format", "paths", "--null")
        paths = run(hostile, *search, **locale).stdout.removesuffix(b"\0").split(b"\0")
        assert {os.path.basename(path) for path in paths} == {*NAMES, b"copy " + NAMES[0]}
        assert all(os.path.isfile(path) for path in paths)


def test_json_keeps_each_path_as_it_is(hostile: Path) -> None:
    for locale in LOCALES.values():
        done = run(hostile, "search", photo(1), "--include-query", "--json", **locale)
        paths = [hit["path"] for hit in json.loads(done.stdout)["hits"]]
        expected = os.fsencode(hostile / "photos")
        names = {os.path.basename(os.fsencode(path)) for path in paths}
        assert names == {*NAMES, b"copy " + NAMES[0]}
        assert all(os.fsencode(path).startswith(expected) for path in paths)
        assert done.stdout.isascii()
