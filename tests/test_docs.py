"""What the README claims is true: its commands, its JSON, its code, its session."""

import json
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

NUMBER = re.compile(r"(?<=in )[\dhms. ]+$|\d+\.\d+|(?<=\s)\d+(?= ms)")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


def run(command: str, folder: Path) -> str:
    words = shlex.split(command)
    assert words[0] == "bm25v"
    done = subprocess.run(
        [sys.executable, "-m", "bm25v.cli", *words[1:]],
        cwd=folder,
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
    for command, shown in steps:
        printed = run(command, tmp_path)
        assert NUMBER.sub("#", squeezed(printed)) == NUMBER.sub("#", squeezed(shown)), command
        for found, claimed in zip(decimals(printed), decimals(shown), strict=True):
            assert found == pytest.approx(claimed, rel=0.05, abs=0.05) or "ms" in printed


def squeezed(text: str) -> str:
    return "\n".join(re.sub(r"\s+", " ", line).strip() for line in text.strip().splitlines())


def decimals(text: str) -> list[float]:
    lines = [line for line in text.splitlines() if " ms" not in line and " in " not in line]
    return [float(number) for number in re.findall(r"\d+\.\d+", "\n".join(lines))]
