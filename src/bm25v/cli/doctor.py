"""`bm25v doctor`."""

import importlib.metadata
import importlib.util
import platform
import time
from typing import Any

import click

from bm25v import __version__
from bm25v.cli.options import json_option, print_json

_LIBRARIES = ("numpy", "numba", "onnxruntime", "pillow", "safetensors")
_EXTRAS = {
    "hf": "transformers",
    "train": "torch",
    "research": "faiss",
    "heic": "pillow_heif",
}


@click.command("doctor")
@json_option
def command(as_json: bool) -> None:
    """Show versions, backbones and vocabularies, and warm the compiler's cache."""
    facts = _facts()
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {detail}" for key, detail in value.items())
        click.echo(f"{name:<13} {value}")


def _facts() -> dict[str, Any]:
    from bm25v.backbones import downloads
    from bm25v.backbones.onnx import SPECS
    from bm25v.vocabulary.vocabulary import Vocabulary, shipped_names

    here = {True: "here", False: "not fetched"}
    extras = {name: importlib.util.find_spec(module) for name, module in _EXTRAS.items()}
    return {
        "bm25v": __version__,
        "python": f"{platform.python_version()} on {platform.platform()}",
        "libraries": {name: importlib.metadata.version(name) for name in _LIBRARIES},
        "extras": {name: "installed" if found else "absent" for name, found in extras.items()},
        "models": str(downloads.models_folder()),
        "backbones": {
            name: here[downloads.cached_path(spec.file).is_file()] for name, spec in SPECS.items()
        },
        "vocabularies": {name: Vocabulary.load(name).fingerprint for name in shipped_names()},
        "compiler": _warm_compiler(),
    }


def _warm_compiler() -> str:
    import numpy as np

    from bm25v.index import kernels
    from bm25v.index.bm25 import WeightedWords
    from bm25v.index.searcher import Searcher

    start = time.perf_counter()
    one = np.ones((1, 1), dtype=np.uint16)
    query = WeightedWords(np.ones(1, np.int32), np.ones(1), np.ones(1))
    searcher = Searcher(one, one, n_words=2)
    searcher.build_index()
    searcher.search(query, 1)
    seconds = time.perf_counter() - start
    return f"warm in {seconds:.1f}s, cache at {kernels.search_block.stats.cache_path}"
