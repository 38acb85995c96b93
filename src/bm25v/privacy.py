"""Keeps libraries from sending, looking up or storing anything that nobody asked for.

In: nothing. Out: settings in the environment, which libraries read when they are imported; `bm25v`
makes them when it is imported itself. Not this module's job: downloads that a user asks for
(`backbones.downloads`).
"""

import logging
import os
import sys
from typing import TYPE_CHECKING

from bm25v.errors import WrongUse

if TYPE_CHECKING:
    from pathlib import Path

_SETTINGS = {
    # ONNX Runtime: a device id and a database in the home folder, and events to its makers.
    "ORT_DISABLE_TELEMETRY": "1",
    # huggingface_hub and transformers: names of models and versions, beside each download.
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # Ray: facts about the cluster, every hour.
    "RAY_USAGE_STATS_ENABLED": "0",
    # FastAPI: addresses and durations of requests, to a server that OTEL_… variables name.
    "FASTAPI_OTEL_AUTO_CONFIGURE": "false",
}

_log = logging.getLogger(__name__)
_too_late: list[str] = []  # libraries that were imported before they could be silenced


def silence_libraries() -> None:
    """Switch off the telemetry of libraries that are not imported yet."""
    if "onnxruntime" in sys.modules and os.environ.get("ORT_DISABLE_TELEMETRY") != "1":
        _too_late.append("onnxruntime")
    os.environ.update(_SETTINGS)


def warn_about_telemetry() -> None:
    """Log once that the host program started ONNX Runtime's telemetry, which cannot be stopped."""
    for library in _too_late:
        _log.warning(
            "%s was imported before bm25v with its telemetry on: import bm25v first, or set "
            "ORT_DISABLE_TELEMETRY=1",
            library,
        )
    _too_late.clear()


def cache_folder() -> "Path":
    """Return the one folder that bm25v keeps files in without being told to."""
    import platformdirs

    folder = platformdirs.user_cache_path("bm25v")
    if not folder.is_absolute():
        raise WrongUse(
            "this user has no home folder to keep files in: set XDG_CACHE_HOME to a folder, or "
            "BM25V_MODELS for models alone"
        )
    return folder


def prepare_matplotlib() -> None:
    """Make matplotlib keep its list of fonts in bm25v's cache folder, or nowhere.

    Otherwise it makes folders in the home folder, and warns if it cannot.
    """
    if "matplotlib" not in sys.modules:
        _set_own_folder("MPLCONFIGDIR", "matplotlib")


def prepare_torch() -> None:
    """Make torch keep what it compiles in bm25v's cache folder, not in the folder of all users."""
    _set_own_folder("TORCHINDUCTOR_CACHE_DIR", "torch")


def _set_own_folder(variable: str, name: str) -> None:
    """Let an environment variable name a folder in the cache, or one that is deleted at the end."""
    if variable in os.environ:
        return
    try:
        folder = cache_folder() / name
        folder.mkdir(parents=True, exist_ok=True)
        is_usable = os.access(folder, os.W_OK)
    except (OSError, WrongUse):
        is_usable = False
    if not is_usable:
        import atexit
        import shutil
        import tempfile
        from pathlib import Path

        folder = Path(tempfile.mkdtemp(prefix="bm25v-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ[variable] = str(folder)
