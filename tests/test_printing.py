"""What commands print fits the terminal, and is complete without one."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from bm25v.cli import printing
from tests import test_cli
from tests.conftest import make_image
from tests.terminal import needs_terminal, show
from tests.test_cli import Run

run = test_cli.run

FOLDER = Path("holiday", "2023 summer in the mountains", "写真と動画のアーカイブ", "day 1")
NAMES = [f"{number} {'Ausflug' * number}.png" for number in range(6)]


@pytest.fixture
def deep(run: Run, tmp_path: Path) -> Run:
    """Run a command beside a gallery of images with long paths, and long word names."""
    (tmp_path / FOLDER).mkdir(parents=True)
    for seed, name in enumerate(NAMES):
        make_image(seed).save(tmp_path / FOLDER / name)
    assert run("index", "holiday", "--vocabulary", "toy").code == 0
    for word in run("search", FOLDER / NAMES[0], "--json").json["query"][:3]:
        name = f"{word['word']} is the 条纹 stripe on the ear of a cat"
        assert run("words", "name", word["word"], name).code == 0
    return run


def widths(lines: Sequence[str]) -> list[int]:
    return [cell_len(line.rstrip()) for line in lines]


@pytest.mark.parametrize("columns", [60, 80, 99, 100, 140, 200])
def test_each_hit_is_one_line_that_fits(
    deep: Run, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    two_stage = ["--mode", "two-stage"]
    for options in (
        [],
        two_stage,
        ["--mode", "sparse"],
        ["--mode", "dense"],
        [*two_stage, "--like", FOLDER / NAMES[2]],
    ):
        query = (FOLDER / NAMES[0], "--include-query")
        lines = deep("search", *query, *options).out.splitlines()
        header, hits = lines[0], lines[1 : len(NAMES) + 1]
        assert max(widths(lines)) <= columns
        for name in NAMES:
            (line,) = (line for line in hits if re.search(rf"[/ ]{name[:4]}", line))
            assert name[-5:] in line
        if not options:
            assert "both show" in header
            assert any("is the" in line for line in hits)


@pytest.mark.parametrize("columns", [70, 80])
def test_other_lists_fit(deep: Run, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    sparse = ("--mode", "sparse", "--words", 100, "--json")
    word = deep("search", FOLDER / NAMES[0], *sparse).json["query"][-1]["word"]
    for command in (
        ["words", "list"],
        ["words", "show", word],
        ["explain", FOLDER / NAMES[0], FOLDER / NAMES[1], "--boost", f"{word}=2"],
        ["evaluate", "zipf"],
        ["evaluate", "cost"],
    ):
        printed = deep(*command)
        assert printed.code == 0
        lines = [line for line in printed.out.splitlines() if str(FOLDER) not in line]
        assert max(widths(lines)) <= columns, command


def test_without_a_terminal_nothing_is_shortened(deep: Run) -> None:
    printed = deep("search", FOLDER / NAMES[0], "--include-query").out
    for name in NAMES:
        assert str(FOLDER / name) in printed
    assert "…" not in printed
    header, first = printed.splitlines()[:2]
    assert header.split()[:3] == ["#", "score", "coverage"]
    assert first.count("stripe on the ear of a cat") >= 2
    assert len(first) > 150


@needs_terminal
def test_a_real_terminal_gets_its_width(deep: Run, tmp_path: Path) -> None:
    search = ("search", FOLDER / NAMES[0], "-k", 3)
    shown = show(*search, folder=tmp_path, columns=72)
    assert shown.code == 0
    lines = shown.text.splitlines()
    assert len(lines) == 1 + 3 + 1
    assert 60 < max(widths(lines)) <= 72
    assert "\x1b[1m" in shown.raw
    dumb = show(*search, folder=tmp_path, columns=72, TERM="dumb")
    assert "\x1b" not in dumb.raw
    assert widths(dumb.text.splitlines())[:4] == widths(lines)[:4]
    plain = show(*search, folder=tmp_path, columns=72, NO_COLOR="1", COLUMNS="66")
    assert not re.search(r"\x1b\[[\d;]*3\d", plain.raw)
    assert 60 < max(widths(plain.text.splitlines())) <= 66


def test_a_wide_table_continues_below(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    header = ["system", *(f"metric-{n}" for n in range(9))]
    rows = [["dense", *"123456789"], ["two-stage", *"012345678"]]
    printing.print_grid(header, rows)
    assert capsys.readouterr().out.splitlines()[0].split() == header
    monkeypatch.setenv("COLUMNS", "60")
    printing.print_grid(header, rows)
    blocks = [block.splitlines() for block in capsys.readouterr().out.split("\n\n")]
    assert len(blocks) == 2
    for block in blocks:
        assert max(widths(block)) <= 60
        assert [line.split()[0] for line in block] == ["system", "dense", "two-stage"]
    joined = [
        [cell for line in row for cell in line.split()[1:]] for row in zip(*blocks, strict=True)
    ]
    assert joined == [header[1:], rows[0][1:], rows[1][1:]]


@given(
    st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="…/\\")),
    st.integers(1, 40),
)
def test_a_shortened_name_fits_and_keeps_its_start_and_end(name: str, width: int) -> None:
    short = printing.shorten_path(name, width)
    assert cell_len(short) <= width
    assert short == name or "…" in short
    head, _, tail = short.partition("…")
    assert name == short or (name.startswith(head) and name.endswith(tail))


@given(st.lists(st.sampled_from(["a", "猫", "long folder"]), min_size=1), st.integers(1, 40))
def test_a_shortened_path_fits_and_ends_with_its_name(parts: list[str], width: int) -> None:
    path = os.sep.join([*parts, "IMG_1234.jpg"])
    short = printing.shorten_path(path, width)
    assert cell_len(short) <= width
    if width >= len("IMG_1234.jpg"):
        assert short.endswith("IMG_1234.jpg")


def test_a_path_is_one_line_whatever_it_holds(run: Run, tmp_path: Path) -> None:
    (tmp_path / "odd").mkdir()
    make_image(1).save(tmp_path / "odd" / "two\nlines \x1b[31mred.png")
    assert run("index", "odd", "--vocabulary", "toy").code == 0
    printed = run("search", "odd/two\nlines \x1b[31mred.png", "--include-query").out
    assert "odd/two?lines ?[31mred.png" in printed
    assert len(printed.splitlines()) == 3
