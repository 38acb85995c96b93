"""One training run: a folder of images → a vocabulary folder.

An interrupted run can resume: it ends with the same weights as one that was never interrupted.
Several processes that `torchrun` started train together. Not this module's job: the mathematics of
a step (`trainer`).
"""

import hashlib
import itertools
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from bm25v import backbones
from bm25v.backbones import Backbone
from bm25v.backbones.huggingface import find_device
from bm25v.display import duration, printable
from bm25v.errors import ImageError, WrongUse
from bm25v.explanations.samples import Samples
from bm25v.files import make_folder, reporting_full_disk
from bm25v.progress import Progress, no_progress
from bm25v.schema import SchemaError, check_values, nullable, whole
from bm25v.training import checkpoints
from bm25v.training.extraction import (
    VIEWS_ABOUT,
    Extraction,
    extract_patches,
    find_training_images,
    stream_patches,
)
from bm25v.training.feature_store import PatchStore, PatchWindows
from bm25v.training.paths import check_output, check_run_space, check_work, work_folder
from bm25v.training.quality import check_held_out
from bm25v.training.recipe import Patches, Recipe, Windows, iterate_batches
from bm25v.training.trainer import (
    StepFigures,
    Trainer,
    check_patches,
    describe_run,
    start_trainer,
)
from bm25v.training.word_samples import gather_samples
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.folder import check_settings

CHECKPOINT_SECONDS = 60.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingOptions:
    """What to train on, how, and where the vocabulary is written."""

    folder: Path
    output: Path
    backbone: str = "tinyvit-5m"
    layer: int | None = None  # None: the last
    device: str | None = None  # None: the best one for the backbone, the CPU for training
    recipe: Recipe = field(default_factory=Recipe)
    k_post: int = 16
    views: int = 1
    patches: int | None = None  # per view; None keeps all
    about: str = ""  # describes the images in the report
    resume: bool = False
    activations: Path | None = None  # keeps the patches; None: a folder that is deleted at the end
    stream: bool = False  # extract patches in every epoch instead of keeping them
    images: tuple[Path, ...] = ()  # some of those in the folder; empty: all

    @property
    def work(self) -> Path:
        """The folder of the unfinished run."""
        return work_folder(self.output)


@dataclass(frozen=True)
class Listener:
    """Functions that a run calls to report what it does."""

    progress: Progress = no_progress  # while images are read
    on_step: Callable[[StepFigures, int], None] = lambda figures, steps: None
    on_error: Callable[[Path, ImageError], None] = lambda path, error: None  # an unreadable image
    on_message: Callable[[str], None] = lambda line: None


@dataclass(frozen=True)
class Processes:
    """The processes that train together: those that `torchrun` started, or this one alone."""

    rank: int = 0  # of this process
    n: int = 1

    @classmethod
    @contextmanager
    def join(cls, device: str) -> Iterator["Processes"]:
        """Connect with the other processes, if `torchrun` started any."""
        n = int(os.environ.get("WORLD_SIZE", "1"))
        if n == 1:
            yield cls()
            return
        distributed.init_process_group("nccl" if device.startswith("cuda") else "gloo")
        try:
            yield cls(distributed.get_rank(), n)
        finally:
            distributed.destroy_process_group()

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    def part(self, batch_nd: Patches) -> Patches:
        """Return this process's part of a batch."""
        return batch_nd[self.rank :: self.n]

    def wait(self) -> None:
        """Wait until all processes have called this."""
        if self.n > 1:
            distributed.barrier()


def train_vocabulary(options: TrainingOptions, listener: Listener | None = None) -> Vocabulary:
    """Train a vocabulary on a folder of images and save it."""
    _check_options(options)
    with reporting_full_disk(options.work):
        return _train_vocabulary(options, listener or Listener())


def _train_vocabulary(options: TrainingOptions, listener: Listener) -> Vocabulary:
    start = time.perf_counter()
    options = replace(options, device=_device_of_process(options.device))
    device = str(find_device(torch, options.device or "cpu"))
    extraction = _extraction(options)
    with Processes.join(device) as processes:
        backbone = _load_backbone(options)
        key = _run_key(options, extraction.key(backbone))
        run_bytes = _check_run(options, extraction, backbone, key)
        patches = _read_patches(options, extraction, backbone, run_bytes, processes, listener)
        windows, held_out = patches
        n_patches = sum(map(windows.n_patches, range(len(windows))))
        check_patches((n_patches, backbone.patch_dim), options.recipe)
        check_held_out(held_out)
        trainer = start_trainer(windows, options.recipe, device=device)
        if options.resume:
            trainer.restore(checkpoints.load_checkpoint(options.work))
        _log.info(
            "training on %s patches of %s images, from step %s to %s",
            f"{n_patches:,}",
            f"{len(extraction.paths):,}",
            f"{trainer.step_number:,}",
            f"{trainer.steps:,}",
        )
        _train(options, trainer, windows, key, processes, listener)
        sae = trainer.autoencoder()
        report = {
            "data": _data_report(options, extraction, n_patches),
            "training": {
                **describe_run(trainer, sae, held_out),
                "processes": processes.n,
                "seconds": round(time.perf_counter() - start, 1),
            },
        }
        name = Path(os.path.abspath(options.output)).stem
        processes.wait()  # others may still read files that are deleted next
        if processes.is_first:
            samples = gather_samples(
                backbone,
                sae,
                extraction.paths,
                seed=options.recipe.seed,
                progress=listener.progress,
            )
            vocabulary = Vocabulary.build(
                name,
                backbone=backbone,
                sae=sae,
                k_post=options.k_post,
                stop_words=samples.stop_words,
                report=report,
            )
            _finish(options, vocabulary, samples)
            _log.info("trained %s in %s", options.output, duration(time.perf_counter() - start))
        processes.wait()
    return vocabulary if processes.is_first else Vocabulary.load(options.output)


def _device_of_process(device: str | None) -> str | None:
    """Return this process's GPU, as `torchrun` starts one process for each."""
    return f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if device == "cuda" else device


def _check_options(options: TrainingOptions) -> None:
    """Raise the errors that can be known before any image is read."""
    try:
        counts = {"views": options.views, "patches": options.patches}
        check_values(counts, {"views": whole(1), "patches": nullable(whole(1))})
    except SchemaError as error:
        raise WrongUse(f"{error}: give another number") from error
    check_output(options.output, None if options.images else options.folder)
    check_work(options.work, options.folder, options.activations)
    if not options.resume and (options.work / checkpoints.FILE_NAME).exists():
        raise WrongUse(
            f"{options.work} has an unfinished run: continue it with --resume (in Python "
            "resume=True), or delete the folder"
        )


def _check_run(
    options: TrainingOptions, extraction: Extraction, backbone: Backbone, key: str
) -> int:
    """Raise the errors that can be known before extraction; return the bytes of the run's files."""
    recipe, patch_dim = options.recipe, backbone.patch_dim
    n_words = recipe.expansion * patch_dim
    check_patches(
        (len(extraction.paths) * extraction.patches_per_image(backbone), patch_dim), recipe
    )
    check_settings(backbone, k=recipe.k, n_words=n_words, k_post=options.k_post)
    if options.resume:
        checkpoints.check_checkpoint(options.work, key=key)
    return check_run_space(
        options.output, n_words=n_words, patch_dim=patch_dim, is_resumed=options.resume
    )


def _load_backbone(options: TrainingOptions) -> Backbone:
    """Return the backbone on its device; ONNX models run on the CPU only."""
    device = options.device if backbones.has_device(options.backbone) else None
    return backbones.load_backbone(options.backbone, layer=options.layer, device=device)


def _extraction(options: TrainingOptions) -> Extraction:
    paths, recipe = options.images or find_training_images(options.folder), options.recipe
    return Extraction(paths, options.views, options.patches, recipe.held_out, recipe.seed)


def _read_patches(
    options: TrainingOptions,
    extraction: Extraction,
    backbone: Backbone,
    run_bytes: int,
    processes: Processes,
    listener: Listener,
) -> tuple[Windows, list[Patches]]:
    """Return patches to train on and those of held-out images, from a store or as a stream."""
    if options.stream:
        training, whole = stream_patches(extraction, backbone, listener.on_error)
        return training, [*whole]
    numbers = list(range(len(extraction.shards(backbone))))
    n_held_out = extraction.n_held_out(len(numbers))
    store = _fill_store(options, extraction, backbone, run_bytes, processes, listener)
    held_out: list[Patches] = [
        extraction.whole_images(store.read(number), backbone) for number in numbers[:n_held_out]
    ]
    if not any(map(len, held_out)):
        raise WrongUse(
            "none of the images held out for measuring can be read: "
            "remove unreadable images, or give another --seed"
        )
    return PatchWindows(store, numbers[n_held_out:]), held_out


def _fill_store(
    options: TrainingOptions,
    extraction: Extraction,
    backbone: Backbone,
    run_bytes: int,
    processes: Processes,
    listener: Listener,
) -> PatchStore:
    folder = options.activations or options.work / checkpoints.ACTIVATIONS
    key = extraction.key(backbone)
    if processes.is_first:
        store = PatchStore(folder, key=key, dim=backbone.patch_dim)
        if store.has_other_patches and options.activations:
            raise WrongUse(
                f"{folder} has patches of other images or settings, or of an older bm25v: "
                "name another folder, or delete it"
            )
        if store.has_other_patches:
            store.clear()
        per_image = extraction.patches_per_image(backbone) * backbone.patch_dim * 2
        n_bytes = per_image * len(extraction.paths)
        listener.on_message(f"{len(extraction.paths):,} images, {n_bytes / 1e9:.2f} GB of patches")
        stored = sum(shard.patches for shard in store.shards.values()) * store.dim * 2
        store.check_disk_space(n_bytes - stored, reserved=0 if options.activations else run_bytes)
        extract_patches(
            extraction,
            backbone,
            store,
            progress=listener.progress,
            on_error=listener.on_error,
        )
    processes.wait()
    return PatchStore(folder, key=key, dim=backbone.patch_dim)


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
    def save(log: checkpoints.RunLog) -> None:
        if processes.is_first:
            log.sync()  # before: a log has every step up to the checkpoint
            checkpoints.save_checkpoint(options.work, trainer.state(), key=key)
            _log.debug("checkpoint after step %s", f"{trainer.step_number:,}")

    last = time.monotonic()
    with _open_log(options, trainer.step_number, processes) as log, _defer_interrupt() as stop:
        try:
            remaining = trainer.steps - trainer.step_number
            batches = iterate_batches(windows, trainer.recipe, start=trainer.step_number)
            for batch_nd in itertools.islice(batches, remaining):
                if stop.is_set():
                    raise KeyboardInterrupt
                figures = trainer.step(processes.part(batch_nd))
                log.write(figures)
                listener.on_step(figures, trainer.steps)
                if time.monotonic() - last > CHECKPOINT_SECONDS:
                    save(log)
                    last = time.monotonic()
        except KeyboardInterrupt:
            save(log)
            raise
        save(log)  # what follows may fail, for example on a full disk


@contextmanager
def _open_log(
    options: TrainingOptions, after: int, processes: Processes
) -> Iterator[checkpoints.RunLog]:
    """Yield the log of the run; only the first process writes."""
    if not processes.is_first:
        yield checkpoints.SilentLog()
        return
    with checkpoints.open_log(options.work, after=after) as log:
        yield log


@contextmanager
def _defer_interrupt() -> Iterator[threading.Event]:
    """Turn Ctrl-C into an event, so that it takes effect between two steps."""
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
        "about": printable(options.about or os.path.basename(os.path.abspath(options.folder))),
        "pictures": len(extraction.paths),
        "views": f"{options.views}: {VIEWS_ABOUT}",
        "patches_a_view": options.patches,
        "patches": n_patches,
    }


def _finish(options: TrainingOptions, vocabulary: Vocabulary, samples: Samples) -> None:
    make_folder(options.output)
    samples.save(options.output)
    checkpoints.copy_log(options.work, options.output)
    vocabulary.save(options.output)  # last, so that a vocabulary that exists is complete
    checkpoints.delete_run(options.work)
