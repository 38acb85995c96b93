"""Print the lowest version of each dependency that pyproject.toml allows, as pip constraints.

`make lowest` installs these and runs tests, so that the minimums are versions that work.
"""

import re
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
for requirement in project["dependencies"]:
    name, version = re.fullmatch(r"([\w-]+)>=([\w.]+)", requirement).groups()
    print(f"{name}=={version}")
