"""The files for containers and systemd call commands that exist, and give away no rights."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import click
import pytest
import yaml  # type: ignore[import-untyped]

from tests.test_docs import find_command

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")
FINAL_STAGE = DOCKERFILE[DOCKERFILE.rindex("FROM ") :]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
UNIT = ROOT / "deploy" / "bm25v.service"


def instruction(name: str, text: str = FINAL_STAGE) -> str:
    (line,) = re.findall(rf"^{name} (.*)$", text, flags=re.MULTILINE)
    return str(line)


def read_unit() -> configparser.ConfigParser:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    unit.read(UNIT, encoding="utf-8")
    return unit


def commands() -> list[list[str]]:
    """Return every call of bm25v in these files, without the name of the program."""
    entry = json.loads(instruction("ENTRYPOINT"))
    service = shlex.split(read_unit()["Service"]["ExecStart"])
    built = re.findall(r"/bin/bm25v ([^&\n]+)", DOCKERFILE)
    assert (entry[0], Path(service[0]).name) == ("bm25v", "bm25v")
    return [
        [*entry[1:], *json.loads(instruction("CMD"))],
        [*entry[1:], *COMPOSE["services"]["bm25v"]["command"]],
        service[1:],
        *map(shlex.split, built),
    ]


def test_every_command_and_option_exists() -> None:
    assert len(commands()) == 4
    for words in commands():
        command, arguments = find_command(words)
        context = click.Context(command)
        command.parse_args(context, [word.replace("%d/token", "token") for word in arguments])


def test_the_image_has_what_it_copies_and_no_tools_to_build() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for sources in re.findall(r"^COPY (?!--)(.*) \S+$", DOCKERFILE, flags=re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists()
            assert f"!{source}" in ignored
    assert "pip install" not in FINAL_STAGE
    assert not re.search(r"\b(apt|apt-get|gcc|build-essential)\b", DOCKERFILE)
    assert "PIP_CONSTRAINT=/source/constraints.txt" in DOCKERFILE


def test_no_torch_comes_with_the_extras_of_the_image() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (extras,) = re.findall(r"pip install '\.\[(.*?)\]'", DOCKERFILE)
    chosen = [
        *project["dependencies"],
        *(
            entry
            for extra in extras.split(",")
            for entry in project["optional-dependencies"][extra]
        ),
    ]
    names = {re.split(r"[<>=\[ ]", entry)[0] for entry in chosen}
    assert {"fastapi", "uvicorn", "watchfiles"} <= names
    assert not names & {"torch", "transformers"}


def test_the_container_runs_without_rights() -> None:
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", instruction("USER"))
    assert "/healthz" in instruction("HEALTHCHECK")
    assert instruction("VOLUME") == "/data"
    service = COMPOSE["services"]["bm25v"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert "./photos:/images:ro" in service["volumes"]
    assert "--token-file" in service["command"]


def test_the_service_runs_without_rights() -> None:
    service = read_unit()["Service"]
    for name in ("DynamicUser", "NoNewPrivileges", "PrivateDevices", "PrivateTmp", "ProtectHome"):
        assert service[name] == "yes", name
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""
    assert service["StateDirectory"] == service["CacheDirectory"] == "bm25v"


def test_the_variables_that_are_set_are_documented() -> None:
    page = (ROOT / "docs" / "reference" / "environment.md").read_text(encoding="utf-8")
    unit = UNIT.read_text(encoding="utf-8")
    names = set(re.findall(r"\b([A-Z][A-Z0-9_]+)=", instruction("ENV")))
    names |= set(re.findall(r"^Environment=(\w+)=", unit, flags=re.MULTILINE))
    of_python = {"PATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"}
    assert {"BM25V_GALLERY", "NUMBA_CACHE_DIR"} <= names
    assert all(f"`{name}`" in page for name in names - of_python)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = UNIT.read_text(encoding="utf-8").replace(
        "/opt/bm25v/bin/bm25v", shutil.which("true") or ""
    )
    copy = tmp_path / "bm25v.service"
    copy.write_text(text, encoding="utf-8")
    verify = ["systemd-analyze", "verify", str(copy)]
    done = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
