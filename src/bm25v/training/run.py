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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from bm25v import backbones
from bm25v.backbones import Backbone
from bm25v.backbones.huggingface import find_device
from bm25v.errors import ImageError, VocabularyError, WrongUse
from bm25v.explain.samples import Samples
from bm25v.sae.batches import Patches, Windows, batches
from bm25v.sae.recipe import Recipe
from bm25v.sae.train import check, describe, start_run
from bm25v.sae.trainer import StepFigures, Trainer
from bm25v.training import checkpoints, curves
from bm25v.training.extraction import Extraction, extract, pictures_in, streamed
from bm25v.training.processes import Processes
from bm25v.training.samples import gather
from bm25v.training.store import Store, StoreWindows
from bm25v.training.views import ABOUT
from bm25v.vocabulary import Vocabulary

CHECKPOINT_SECONDS = 60.0

_LOG = "training.jsonl"


@dataclass(frozen=True)
class TrainingOptions:
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
    on_start: Callable[[float], None] = lambda pictures_a_step: None
    on_step: Callable[[StepFigures, int], None] = lambda figures, steps: None
    on_error: Callable[[Path, ImageError], None] = lambda path, error: None
    say: Callable[[str], None] = lambda line: None


def train_vocabulary(options: TrainingOptions, listener: Listener | None = None) -> Vocabulary:
    """Train a vocabulary on a folder of pictures and save it."""
    listener = listener or Listener()
    refuse_overwriting(options.output)
    _refuse_unfinished(options)
    start = time.perf_counter()
    options = replace(options, device=_own(options.device))
    device = str(find_device(torch, options.device or "cpu"))
    extraction = _extraction(options)
    with Processes.join(device) as processes:
        backbone = _backbone(options)
        key = _run_key(options, extraction.key(backbone))
        _refuse_early(options, extraction, backbone, key)
        windows, held_out = _patches(options, extraction, backbone, processes, listener)
        n_patches = sum(map(windows.n_patches, range(len(windows))))
        check((n_patches, backbone.patch_dim), options.recipe)
        trainer = start_run(windows, options.recipe, device=device)
        if options.resume:
            trainer.restore(checkpoints.load(options.work))
        batch = min(options.recipe.batch, n_patches)
        listener.on_start(batch / extraction.patches_per_picture(backbone))
        _train(options, trainer, windows, key, processes, listener)
        sae = trainer.autoencoder()
        report = {
            "data": _data_report(options, extraction, n_patches),
            "training": {
                **describe(trainer, sae, held_out),
                "processes": processes.n,
                "seconds": round(time.perf_counter() - start, 1),
            },
        }
        vocabulary = Vocabulary.build(
            options.output.stem, backbone=backbone, sae=sae, k_post=options.k_post, report=report
        )
        processes.wait()  # the others may still be reading what is about to be removed
        if processes.is_first:
            samples = gather(
                backbone,
                vocabulary.sae,
                extraction.paths,
                seed=options.recipe.seed,
                progress=listener.on_extract,
            )
            _finish(options, vocabulary, samples)
        processes.wait()
    return vocabulary


def _own(device: str | None) -> str | None:
    """Return this process's GPU where `torchrun` started one process for each."""
    return f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if device == "cuda" else device


def refuse_overwriting(output: Path) -> None:
    """Refuse a place where a vocabulary, or a file, is already."""
    if output.is_file() or (output / "vocabulary.json").exists():
        raise VocabularyError(f"{output} exists already: give another place, or delete it")


def _refuse_unfinished(options: TrainingOptions) -> None:
    if not options.resume and (options.work / checkpoints.FILE_NAME).exists():
        raise WrongUse(
            f"an unfinished run is in {options.work}: continue it with --resume, or delete it"
        )


def _refuse_early(
    options: TrainingOptions, extraction: Extraction, backbone: Backbone, key: str
) -> None:
    """Refuse what cannot end well, before hours go into patches."""
    n_patches = len(extraction.paths) * extraction.patches_per_picture(backbone)
    check((n_patches, backbone.patch_dim), options.recipe)
    if options.resume:
        checkpoints.check(options.work, key=key)


def _backbone(options: TrainingOptions) -> Backbone:
    """Return the backbone on the wanted device; the built-in ones know only the cpu."""
    device = None if options.backbone in backbones.backbone_names() else options.device
    return backbones.load_backbone(options.backbone, layer=options.layer, device=device)


def _extraction(options: TrainingOptions) -> Extraction:
    paths, recipe = pictures_in(options.folder), options.recipe
    return Extraction(paths, options.views, options.patches, recipe.held_out, recipe.seed)


def _patches(
    options: TrainingOptions,
    extraction: Extraction,
    backbone: Backbone,
    processes: Processes,
    listener: Listener,
) -> tuple[Windows, list[Patches]]:
    """Return patches to train on and those of held-out pictures, from a store or as a stream."""
    if options.stream:
        training, whole = streamed(extraction, backbone, listener.on_error)
        return training, [*whole]
    numbers = list(range(len(extraction.shards(backbone))))
    n_held_out = extraction.n_held_out(len(numbers))
    store = _filled_store(options, extraction, backbone, processes, listener)
    held_out: list[Patches] = [
        extraction.of_whole_pictures(store.read(number), backbone)
        for number in numbers[:n_held_out]
    ]
    if not any(map(len, held_out)):
        raise WrongUse(
            "none of the pictures held out for measuring can be read: "
            "take out what is unreadable, or give another --seed"
        )
    return StoreWindows(store, numbers[n_held_out:]), held_out


def _filled_store(
    options: TrainingOptions,
    extraction: Extraction,
    backbone: Backbone,
    processes: Processes,
    listener: Listener,
) -> Store:
    folder = options.activations or options.work / "activations"
    key = extraction.key(backbone)
    if processes.is_first:
        store = Store(folder, key=key, dim=backbone.patch_dim)
        if options.activations and store.is_of_another_run:
            raise WrongUse(
                f"{folder} holds patches of other pictures or settings: "
                "name another folder, or delete it"
            )
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


def _run_key(options: TrainingOptions, data_key: str) -> str:
    settings = json.dumps({"recipe": asdict(options.recipe), "data": data_key}, sort_keys=True)
    return hashlib.sha256(settings.encode()).hexdigest()[:16]


def _train(
    options: TrainingOptions,
    trainer: Trainer,
    windows: Windows,
    key: str,
    processes: Processes,
    listener: Listener,
) -> None:
    def save() -> None:
        if processes.is_first:
            checkpoints.save(options.work, trainer.state(), key=key)

    last = time.monotonic()
    with _log(options, trainer.step_number, processes) as write, _late_interrupt() as stop:
        try:
            left = trainer.steps - trainer.step_number
            order = batches(windows, trainer.recipe, start=trainer.step_number)
            for batch in itertools.islice(order, left):
                if stop.is_set():
                    raise KeyboardInterrupt
                figures = trainer.step(processes.part(batch))
                write(figures)
                listener.on_step(figures, trainer.steps)
                if time.monotonic() - last > CHECKPOINT_SECONDS:
                    save()
                    last = time.monotonic()
        except KeyboardInterrupt:
            save()
            raise


@contextmanager
def _log(
    options: TrainingOptions, after: int, processes: Processes
) -> Iterator[Callable[[StepFigures], None]]:
    """Give a function that writes down the figures of the steps after some step."""
    if not processes.is_first:
        yield lambda figures: None
        return
    options.work.mkdir(parents=True, exist_ok=True)
    with (
        (options.work / _LOG).open("a" if options.resume else "w") as log,
        curves.curves(options.work, after=after) as draw,
    ):

        def write(figures: StepFigures) -> None:
            log.write(json.dumps(figures._asdict()) + "\n")
            draw(figures)

        yield write


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


def _data_report(
    options: TrainingOptions, extraction: Extraction, n_patches: int
) -> dict[str, Any]:
    return {
        "about": options.about or os.path.basename(os.path.abspath(options.folder)),
        "pictures": len(extraction.paths),
        "views": f"{options.views}: {ABOUT}",
        "patches_a_view": options.patches,
        "patches": n_patches,
    }


def _finish(options: TrainingOptions, vocabulary: Vocabulary, samples: Samples) -> None:
    vocabulary.save(options.output)
    samples.save(options.output)
    shutil.copy(options.work / _LOG, options.output / _LOG)
    curves.keep(options.work, options.output)
    shutil.rmtree(options.work)
