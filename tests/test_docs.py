"""What the README claims is true: its commands, its JSON, its code, its session."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bm25v import cli
from tests.conftest import make_image

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")

DURATION = re.compile(r"\b(\d+[hm] )?[\d.]+[ms]\b")
DECIMAL = re.compile(r"\d+\.\d+")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


def run(command: str, folder: Path) -> str:
    words = shlex.split(command)
    assert words[0] == "bm25v"
    done = subprocess.run(
        [sys.executable, "-m", "bm25v.cli", *words[1:]],
        cwd=folder,
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_command_is_in_the_table() -> None:
    table = README.split("## Commands")[1].split("\n## ")[0]
    documented = dict.fromkeys(re.findall(r"`([a-z]+)[ `]", table))
    assert set(documented) >= set(cli.COMMANDS)


def same_shape(example: Any, actual: Any) -> None:
    """Expect the same keys all the way down."""
    if isinstance(example, dict):
        assert list(example) == list(actual)
        for key in example:
            same_shape(example[key], actual[key])
    elif isinstance(example, list) and example:
        same_shape(example[0], actual[0])


def test_json_examples_have_the_shape_of_the_real_thing(photos: Path, tmp_path: Path) -> None:
    index_example, search_example = (json.loads(block) for block in blocks("json"))
    (photos / "torn.png").write_bytes(b"no picture")
    report = json.loads(run("bm25v index photos --vocabulary toy --json", tmp_path))
    same_shape(index_example, report)
    found = json.loads(run("bm25v search photos/3.png --json", tmp_path))
    same_shape(search_example, found)


def test_the_python_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = blocks("python")
    (tmp_path / "Pictures").mkdir()
    for seed in range(5):
        make_image(seed).save(tmp_path / "Pictures" / f"{seed}.jpg")
    make_image(2).save(tmp_path / "cat.jpg")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    assert (tmp_path / "why.png").stat().st_size > 10_000


def test_the_session_prints_what_the_readme_shows(tmp_path: Path) -> None:
    run("bm25v demo", tmp_path)
    shutil.rmtree(tmp_path / "demo" / "gallery.bm25v")
    (session,) = blocks("console")
    steps = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", session, flags=re.MULTILINE)
    assert len(steps) >= 3
    for command, expected in steps:
        printed, expected = normalise(run(command, tmp_path)), normalise(expected)
        assert DECIMAL.sub("#", printed) == DECIMAL.sub("#", expected), command
        assert decimals(printed) == pytest.approx(decimals(expected), rel=0.02, abs=0.02), command


def test_other_numbers_than_the_readme_shows_are_noticed() -> None:
    (session,) = blocks("console")
    assert len(decimals(normalise(session))) > 20
    changed = normalise(session.replace("0.930", "0.830", 1))
    assert decimals(changed) != pytest.approx(decimals(normalise(session)), rel=0.02, abs=0.02)


def normalise(text: str) -> str:
    """Return a text without durations, and with single spaces."""
    lines = (re.sub(r"\s+", " ", line).strip() for line in text.strip().splitlines())
    return DURATION.sub("", "\n".join(lines))


def decimals(text: str) -> list[float]:
    return [float(number) for number in DECIMAL.findall(text)]
