"""Reads one tower of a model in the Hugging Face hub's format, and nothing of the other."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bm25v.backbones import checkpoint
from bm25v.errors import BackboneError


def configuration(name: str, folder: Path) -> Any:
    """Return what a model's config.json says, checked by transformers."""
    transformers = checkpoint.imported("transformers", name)
    try:
        with _quiet(transformers):
            return transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # each configuration checks itself in its own way
        reason = first_line(error)
        raise BackboneError(f"config.json in {folder} cannot be used: {reason}") from error


def read(name: str, folder: Path, architecture: str, config: Any, **options: Any) -> Any:
    """Return a tower with its weights, in single precision."""
    torch = checkpoint.imported("torch", name)
    transformers = checkpoint.imported("transformers", name)
    try:
        with _quiet(transformers):
            model, report = getattr(transformers, architecture).from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                local_files_only=True,
                output_loading_info=True,
                **options,
            )
    except Exception as error:  # readers of three formats, each with its own errors
        raise BackboneError(f"{name} cannot be read: {first_line(error)}") from error
    missing = sorted(report["missing_keys"])
    if missing:  # transformers would go on with random numbers in their place
        raise BackboneError(f"{name} lacks weights, {len(missing)} in all: {missing[0]} …")
    return model.eval()


def tokenizer(name: str, folder: Path) -> Any:
    """Return what turns texts into the numbers that a text tower takes."""
    transformers = checkpoint.imported("transformers", name)
    try:
        with _quiet(transformers):
            return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # files missing, or of a kind that needs another package
        raise BackboneError(f"{name} has no usable tokenizer: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """Return the gist of an error that goes on for a page."""
    return str(error).strip().partition("\n")[0]


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Keep transformers from remarks on the tower that is left out."""
    logging = transformers.utils.logging
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()
