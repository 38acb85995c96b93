"""Optional parts of the package: which ones are installed, and the command that adds one."""

import importlib.metadata
import json
import re
import sys
import urllib.parse
import urllib.request
from pathlib import Path

_NOT_PARTS = ("all", "dev", "docs")


def list_extras() -> dict[str, bool]:
    """Return each extra of this package, and whether all that it requires is installed."""
    try:
        package = importlib.metadata.distribution("bm25v")
    except importlib.metadata.PackageNotFoundError:  # a source tree that is not installed
        return {}
    required: dict[str, list[str]] = {
        name: []
        for name in package.metadata.get_all("Provides-Extra") or []
        if name not in _NOT_PARTS
    }
    for line in package.requires or []:
        match = re.match(r"([\w.-]+).*extra == ['\"]([\w-]+)['\"]", line)
        if match is not None and match[2] in required:
            required[match[2]].append(match[1])
    return {name: all(map(_is_installed, packages)) for name, packages in required.items()}


def install_command(extra: str) -> str:
    """Return the command that adds an extra to this installation: by uv, pipx or pip."""
    prefix = Path(sys.prefix)
    for tool, record in {"uv tool": "uv-receipt.toml", "pipx": "pipx_metadata.json"}.items():
        if (prefix / record).is_file():  # it installs anew, so name what is there already
            present = {name for name, is_installed in list_extras().items() if is_installed}
            return f"{tool} install --force {_name_package(','.join(sorted(present | {extra})))}"
    python = f'"{sys.executable}"' if " " in sys.executable else sys.executable
    return f"{python} -m pip install {_name_package(extra)}"


def _is_installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _name_package(extras: str) -> str:
    """Return this package as an installer takes it, from where it was installed before."""
    try:
        source = importlib.metadata.distribution("bm25v").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return f'--editable "{Path(__file__).parents[2]}[{extras}]"'
    if source is None:  # from a package index
        return f'"bm25v[{extras}]"'
    record = json.loads(source)
    if "vcs_info" in record:
        return f'"bm25v[{extras}] @ {record["vcs_info"]["vcs"]}+{record["url"]}"'
    path = urllib.request.url2pathname(urllib.parse.urlsplit(record["url"]).path)
    editable = "--editable " if record.get("dir_info", {}).get("editable") else ""
    return f'{editable}"{path}[{extras}]"'
