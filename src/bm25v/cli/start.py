"""`bm25v demo` and `bm25v doctor`."""

import importlib.metadata
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bm25v import __version__
from bm25v.cli.options import FOLDER, json_option
from bm25v.cli.printing import echo, emit, make_columns, print_facts, print_table
from bm25v.display import display_path

if TYPE_CHECKING:
    from bm25v.demo import DemoReport


@click.command("demo")
@click.option(
    "--folder",
    default="demo",
    show_default=True,
    type=FOLDER,
    help="The folder for the photos, the gallery and the report.",
)
@json_option
def demo(folder: Path, as_json: bool) -> None:
    """Index photos of flowers, search, and write a report page."""
    from bm25v import demo
    from bm25v.cli.progress import progress_bar

    with progress_bar() as progress:
        report = demo.run(folder, progress=progress, say=lambda line: echo(line, err=True))
    emit(report.to_dict, as_json, lambda: _print_demo(report))


def _print_demo(report: "DemoReport") -> None:
    header = ("query", "species", "first hit", "its species", "cosine", "BM25", "agree")
    rows = []
    for search in report.searches:
        best = search.results[0]
        cosine, bm25 = f"{best.dense:.3f}", f"{best.sparse:.2f}"
        agree = f"{search.n_agree} of {len(search.results)}"
        names = (Path(search.query).name, search.species, Path(best.path).name)
        rows.append((*names, search.hit_species[0], cosine, bm25, agree))
    print_table(make_columns(header, rows, texts=header[:4]))
    hits, by_words = report.agreement, report.agreement_by_words
    echo()
    echo(
        f"species agrees in {hits.first} of {hits.queries} first hits, "
        f"{hits.all} of {hits.hits} hits in all"
    )
    echo(f"by words alone, without dense vectors: {by_words.first} and {by_words.all}")
    echo(f"report: {display_path(str(report.page))}")
    echo(f"one explanation: {display_path(str(report.drawing))}")
    echo()
    echo("try it yourself:")
    for command in report.commands:
        echo(f"  {command}")


@click.command("doctor")
@json_option
def doctor(as_json: bool) -> None:
    """Show what is installed, and precompile.

    Precompiled loops make the first search in a large gallery fast.
    """
    from bm25v.backbones import downloads
    from bm25v.backbones.onnx import SPECS
    from bm25v.extras import list_extras
    from bm25v.vocabulary.vocabulary import Vocabulary, shipped_names

    libraries = ("numpy", "numba", "onnxruntime", "pillow", "safetensors", "jinja2")
    extras = list_extras()
    cached = {n: downloads.cached_path(spec.file).is_file() for n, spec in SPECS.items()}
    facts: dict[str, str | dict[str, str]] = {
        "bm25v": __version__,
        "python": f"{platform.python_version()} on {platform.platform()}",
        "libraries": {name: importlib.metadata.version(name) for name in libraries},
        "extras": {name: "installed" if here else "absent" for name, here in extras.items()},
        "models": str(downloads.models_folder()),
        "backbones": {name: "here" if here else "not here" for name, here in cached.items()},
        "vocabularies": {name: Vocabulary.load(name).fingerprint for name in shipped_names()},
        "compiler": _precompile(),
    }
    lines = {
        name: value if isinstance(value, str) else [f"{key} {text}" for key, text in value.items()]
        for name, value in facts.items()
    }
    emit(facts, as_json, lambda: print_facts(lines))


def _precompile() -> str:
    """Compile the loops of the first and of the second stage; they stay in numba's cache."""
    import numpy as np

    from bm25v.index import kernels
    from bm25v.index.bm25 import WeightedWords
    from bm25v.index.searcher import Searcher
    from bm25v.index.second_stage import cosines

    start = time.perf_counter()
    bags = np.ones((1, 1), dtype=np.uint16)
    query = WeightedWords(np.ones(1, np.int32), np.ones(1), np.ones(1))
    searcher = Searcher(bags, bags, n_words=2)
    searcher.build_index()
    ranked = searcher.search(query, 1)
    cosines(np.ones((1, 8), np.float16), np.ones(8, np.float32), ranked.rows, compiled=True)
    seconds = time.perf_counter() - start
    return f"ready in {seconds:.1f}s, cache at {kernels.search_block.stats.cache_path}"
