"""One training run, from pictures to a vocabulary folder; interrupted, it goes on."""

import hashlib
import itertools
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bm25v import backbones, images
from bm25v.backbones import Backbone
from bm25v.errors import ImageError, VocabularyError, WrongUse
from bm25v.explain.samples import Samples
from bm25v.sae.batches import Patches, Windows, batches
from bm25v.sae.recipe import Recipe
from bm25v.sae.train import check, describe, start_run
from bm25v.sae.trainer import StepFigures, Trainer
from bm25v.training import checkpoints
from bm25v.training.extraction import Extraction, Streamed, extract
from bm25v.training.processes import Processes
from bm25v.training.samples import gather
from bm25v.training.store import Store, StoreWindows
from bm25v.training.views import ABOUT
from bm25v.vocabulary import Vocabulary

CHECKPOINT_SECONDS = 60.0

_LOG = "training.jsonl"


@dataclass(frozen=True)
class Wish:
    """What is to be trained, from what, and where it goes."""

    folder: Path
    output: Path
    backbone: str = "tinyvit-5m"
    layer: int | None = None  # None: the last
    device: str | None = None  # None: the best there is for the backbone, the cpu for training
    recipe: Recipe = field(default_factory=Recipe)
    k_post: int = 16
    views: int = 1
    patches: int | None = None  # a view; None keeps all
    about: str = ""  # the pictures, in a sentence, for the report
    resume: bool = False
    activations: Path | None = None  # None: beside the output, until it is done
    stream: bool = False  # make patches anew each time rather than keep them

    @property
    def work(self) -> Path:
        """Where an unfinished run is kept."""
        return self.output.with_name(self.output.name + ".work")


@dataclass(frozen=True)
class Listener:
    """What a run tells while it goes."""

    on_extract: Callable[[int, int], None] = lambda done, total: None
    on_step: Callable[[StepFigures, int], None] = lambda figures, steps: None
    on_error: Callable[[Path, ImageError], None] = lambda path, error: None
    say: Callable[[str], None] = lambda line: None


def train_vocabulary(wish: Wish, listener: Listener | None = None) -> Vocabulary:
    """Train a vocabulary on a folder of pictures and save it."""
    listener = listener or Listener()
    _refuse_overwriting(wish)
    start = time.perf_counter()
    with Processes.join(wish.device or "cpu") as processes:
        backbone = backbones.load(wish.backbone, layer=wish.layer, device=wish.device)
        extraction = _extraction(wish)
        windows, held_out = _patches(wish, extraction, backbone, processes, listener)
        n_patches = sum(map(windows.n_patches, range(len(windows))))
        check((n_patches, backbone.patch_dim), wish.recipe)
        trainer = start_run(windows, wish.recipe, device=wish.device or "cpu")
        key = _run_key(wish, extraction.key(backbone))
        if wish.resume:
            trainer.restore(checkpoints.load(wish.work, key=key))
        _train(wish, trainer, windows, key, processes, listener)
        sae = trainer.autoencoder()
        report = {
            "data": _data_report(wish, extraction, n_patches),
            "training": {
                **describe(trainer, sae, held_out),
                "processes": processes.n,
                "seconds": round(time.perf_counter() - start, 1),
            },
        }
        vocabulary = Vocabulary.build(
            wish.output.stem, backbone=backbone, sae=sae, k_post=wish.k_post, report=report
        )
        processes.wait()  # the others may still be reading what is about to be removed
        if processes.is_first:
            samples = gather(
                backbone,
                vocabulary.sae,
                extraction.paths,
                seed=wish.recipe.seed,
                progress=listener.on_extract,
            )
            _finish(wish, vocabulary, samples)
        processes.wait()
    return vocabulary


def _refuse_overwriting(wish: Wish) -> None:
    if (wish.output / "vocabulary.json").exists():
        raise VocabularyError(f"{wish.output} exists already: give another place, or delete it")
    if not wish.resume and (wish.work / checkpoints.FILE_NAME).exists():
        raise WrongUse(
            f"an unfinished run is in {wish.work}: go on with --resume, or delete it to start anew"
        )


def _extraction(wish: Wish) -> Extraction:
    paths = tuple(sorted(images.find(wish.folder)))
    if not paths:
        raise WrongUse(f"no pictures in {wish.folder}")
    recipe = wish.recipe
    return Extraction(paths, wish.views, wish.patches, recipe.held_out, recipe.seed)


def _patches(
    wish: Wish,
    extraction: Extraction,
    backbone: Backbone,
    processes: Processes,
    listener: Listener,
) -> tuple[Windows, list[Patches]]:
    """Return the patches to train on and those held out, from a store or as a stream."""
    numbers = list(range(len(extraction.shards(backbone))))
    n_held_out = extraction.n_held_out(len(numbers))
    if wish.stream:
        streamed = Streamed(extraction, backbone, numbers, listener.on_error)
        training = Streamed(extraction, backbone, numbers[n_held_out:], listener.on_error)
        return training, [streamed.read(number) for number in numbers[:n_held_out]]
    store = _filled_store(wish, extraction, backbone, processes, listener)
    held_out = [store.read(number) for number in numbers[:n_held_out]]
    return StoreWindows(store, numbers[n_held_out:]), list(held_out)


def _filled_store(
    wish: Wish,
    extraction: Extraction,
    backbone: Backbone,
    processes: Processes,
    listener: Listener,
) -> Store:
    folder = wish.activations or wish.work / "activations"
    key = extraction.key(backbone)
    if processes.is_first:
        store = Store(folder, key=key, dim=backbone.patch_dim)
        per_picture = extraction.patches_per_picture(backbone) * backbone.patch_dim * 2
        n_bytes = per_picture * len(extraction.paths)
        listener.say(f"{len(extraction.paths):,} pictures, {n_bytes / 1e9:.2f} GB of patches")
        have = sum(shard.patches for shard in store.shards.values()) * store.dim * 2
        store.refuse_small_disk(n_bytes - have)
        extract(
            extraction,
            backbone,
            store,
            progress=listener.on_extract,
            on_error=listener.on_error,
        )
    processes.wait()
    return Store(folder, key=key, dim=backbone.patch_dim)


def _run_key(wish: Wish, data_key: str) -> str:
    settings = json.dumps({"recipe": asdict(wish.recipe), "data": data_key}, sort_keys=True)
    return hashlib.sha256(settings.encode()).hexdigest()[:16]


def _train(
    wish: Wish,
    trainer: Trainer,
    windows: Windows,
    key: str,
    processes: Processes,
    listener: Listener,
) -> None:
    def save() -> None:
        if processes.is_first:
            checkpoints.save(wish.work, trainer.state(), key=key)

    wish.work.mkdir(parents=True, exist_ok=True)
    last = time.monotonic()
    path = wish.work / _LOG if processes.is_first else Path(os.devnull)
    with path.open("a" if wish.resume else "w") as log, _late_interrupt() as stop:
        try:
            left = trainer.steps - trainer.step_number
            order = batches(windows, trainer.recipe, start=trainer.step_number)
            for batch in itertools.islice(order, left):
                if stop.is_set():
                    raise KeyboardInterrupt
                figures = trainer.step(processes.part(batch))
                log.write(json.dumps(figures._asdict()) + "\n")
                listener.on_step(figures, trainer.steps)
                if time.monotonic() - last > CHECKPOINT_SECONDS:
                    save()
                    last = time.monotonic()
        except KeyboardInterrupt:
            save()
            raise


@contextmanager
def _late_interrupt() -> Iterator[threading.Event]:
    """Turn Ctrl-C into an event, so that it takes effect between two steps, never within one."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: stop.set())
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def _data_report(wish: Wish, extraction: Extraction, n_patches: int) -> dict[str, Any]:
    return {
        "about": wish.about or os.path.basename(os.path.abspath(wish.folder)),
        "pictures": len(extraction.paths),
        "views": f"{wish.views}: {ABOUT}",
        "patches": n_patches,
    }


def _finish(wish: Wish, vocabulary: Vocabulary, samples: Samples) -> None:
    vocabulary.save(wish.output)
    samples.save(wish.output)
    shutil.copy(wish.work / _LOG, wish.output / _LOG)
    shutil.rmtree(wish.work)
