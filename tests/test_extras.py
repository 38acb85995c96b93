"""What needs a missing extra says so, with the command of this installation that adds it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bm25v.cli import main
from bm25v.errors import MissingExtra
from bm25v.extras import install_command, list_extras
from bm25v.gallery import Gallery
from tests.children import run_python

METADATA = """Metadata-Version: 2.4
Name: bm25v
Version: 9.9
Requires-Dist: numpy>=2
Provides-Extra: all
Provides-Extra: fast
Provides-Extra: slow
Requires-Dist: pytest>=8; extra == 'fast'
Requires-Dist: nowhere-to-be-seen[x]>=1 ; extra == "slow"
Requires-Dist: pytest>=8 ; extra == "slow"
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The record of an installation from a package index, into an environment of its own."""
    record = tmp_path / "bm25v-9.9.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(METADATA)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return record


def install_from(record: Path, **source: Any) -> None:
    (record / "direct_url.json").write_text(json.dumps(source))


def test_extras_come_from_the_metadata(installed: Path) -> None:
    assert list_extras() == {"fast": True, "slow": False}


def test_in_an_environment_its_own_pip_adds_an_extra(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = f"{sys.executable} -m pip install"
    assert install_command("slow") == f'{pip} "bm25v[slow]"'
    install_from(installed, url="file:///home/me/my%20code", dir_info={"editable": True})
    assert install_command("slow") == f'{pip} --editable "/home/me/my code[slow]"'
    install_from(installed, url="file:///home/me/code", dir_info={})
    assert install_command("slow") == f'{pip} "/home/me/code[slow]"'
    install_from(installed, url="https://host/bm25v", vcs_info={"vcs": "git", "commit_id": "0"})
    assert install_command("slow") == f'{pip} "bm25v[slow] @ git+https://host/bm25v"'
    assert str(MissingExtra("this", "slow")).startswith(f"this needs an extra: {pip} ")
    monkeypatch.setattr(sys, "executable", "/my env/bin/python")
    assert install_command("slow").startswith('"/my env/bin/python" -m pip install ')


@pytest.mark.parametrize(
    ("file", "command"), [("pipx_metadata.json", "pipx"), ("uv-receipt.toml", "uv tool")]
)
def test_a_tool_keeps_the_extras_that_it_has(
    installed: Path, tmp_path: Path, file: str, command: str
) -> None:
    (tmp_path / file).write_text("")
    assert install_command("slow") == f'{command} install --force "bm25v[fast,slow]"'
    install_from(installed, url="file:///home/me/code", dir_info={})
    assert install_command("slow") == f'{command} install --force "/home/me/code[fast,slow]"'


def test_the_doctor_prints_how_to_add_what_is_missing(
    installed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bm25v", "doctor"])
    main()
    lines = capsys.readouterr().out.splitlines()
    assert "extras        fast installed, slow absent" in lines
    assert [line for line in lines if line.startswith("to add ")] == [
        f"to add slow: {install_command('slow')}"
    ]


@pytest.mark.parametrize(
    ("missing", "extra", "feature", "before", "call"),
    [
        (
            *("torch", "train", "a search on a device"),
            "gallery = bm25v.Gallery.open('gallery.bm25v'); gallery.search_many(['photos/0.png'])",
            "gallery.search_many(['photos/0.png'], device='cpu', candidates=2, k=2)",
        ),
        ("torch", "train", "training a vocabulary", "bm25v.train", "bm25v.train('photos', 'mine')"),
        (
            *("torch", "train", "training a vocabulary"),
            "import bm25v.training.patches, bm25v.training.recipe",  # research needs these
            "from bm25v.training import train_vocabulary",
        ),
        ("httpx", "serve", "bm25v.Client", "bm25v.Client", "bm25v.Client('http://127.0.0.1:8025')"),
    ],
)
def test_a_call_names_the_extra_that_it_needs(
    missing: str, extra: str, feature: str, before: str, call: str, gallery: Gallery, tmp_path: Path
) -> None:
    script = f"""
import sys, bm25v
sys.modules[{missing!r}] = None
{before}
try:
    {call}
except bm25v.MissingExtra as error:
    print(error)
"""
    expected = f"{feature} needs an extra: {install_command(extra)}\n"
    assert run_python(script, cwd=tmp_path).stdout == expected


@pytest.mark.parametrize(
    ("missing", "extra", "feature", "command"),
    [
        ("pyarrow", "parquet", "a folder of bags", "bags encode photos -o bags --vocabulary toy"),
        ("fastapi", "serve", "bm25v serve", "serve -g gallery.bm25v"),
        ("torch", "train", "", "index training -g new --backbone toy"),
        ("torch", "hf", "", "index training -g new --backbone siglip2-base"),
    ],
)
def test_a_command_names_the_extra_that_it_needs_and_writes_nothing(
    missing: str,
    extra: str,
    feature: str,
    command: str,
    gallery: Gallery,
    training_images: Path,
    tmp_path: Path,
) -> None:
    names = sorted(path.name for path in tmp_path.iterdir())
    script = f"import sys; sys.modules[{missing!r}] = None; from bm25v.cli import main; main()"
    done = run_python(script, *command.split(), cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {feature}")
    assert line.endswith(f" needs an extra: {install_command(extra)}")
    assert sorted(path.name for path in tmp_path.iterdir()) == names
