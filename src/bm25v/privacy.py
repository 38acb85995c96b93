"""Keeps libraries from sending, looking up or storing anything on their own.

A program that imports bm25v keeps its settings: only a process that is bm25v's own, such as the
command line, changes its environment and its filters of warnings.
"""

import logging
import os
import sys
import threading
import warnings
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from bm25v.errors import InvalidOption

_SETTINGS = {
    # ONNX Runtime: a device id and a database in the home folder, and events to its makers.
    "ORT_DISABLE_TELEMETRY": "1",
    # huggingface_hub and transformers: names of models and versions, beside each download.
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # Ray: facts about the cluster, every hour.
    "RAY_USAGE_STATS_ENABLED": "0",
}

_log = logging.getLogger(__name__)
_importing = threading.Lock()
_imported: set[str] = set()
_is_own_process = False


def own_process() -> None:
    """Say that this process runs nothing but bm25v, so that its settings may be changed.

    What is wrong with an image file is then told by exceptions alone.
    """
    global _is_own_process
    _is_own_process = True
    silence_libraries()
    warnings.filterwarnings("ignore", module=r"PIL\.")
    logging.getLogger("PIL").addHandler(logging.NullHandler())  # else its errors go to stderr


def is_own_process() -> bool:
    return _is_own_process


def silence_libraries() -> None:
    """Switch off the telemetry of libraries and of processes that are started from now on."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)


def import_quietly(name: str) -> Any:
    """Import a library with its telemetry switched off, and leave the environment as it was."""
    with _importing:
        is_late = name in sys.modules and name not in _imported
        if is_late and name == "onnxruntime" and os.environ.get("ORT_DISABLE_TELEMETRY") != "1":
            _log.warning(
                "onnxruntime was imported before bm25v needed it, with its telemetry on: set "
                "ORT_DISABLE_TELEMETRY=1"
            )
        added = [variable for variable in _SETTINGS if variable not in os.environ]
        silence_libraries()
        try:
            module = import_module(name)
        finally:
            for variable in added:
                os.environ.pop(variable, None)
        _imported.add(name)
        return module


def cache_folder() -> Path:
    """Return the one folder that bm25v keeps files in by default; a new one is the user's alone."""
    import platformdirs

    folder = platformdirs.user_cache_path("bm25v")
    if not folder.is_absolute():
        raise InvalidOption(
            "this user has no home folder to keep files in: set XDG_CACHE_HOME to a folder, or "
            "BM25V_MODELS for models alone"
        )
    with suppress(OSError):  # who writes there says why it cannot be done
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
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
    except (OSError, InvalidOption):
        is_usable = False
    if not is_usable:
        import atexit
        import shutil
        import tempfile

        folder = Path(tempfile.mkdtemp(prefix="bm25v-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ[variable] = str(folder)
