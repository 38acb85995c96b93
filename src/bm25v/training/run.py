"""One training run: a folder of images → a vocabulary folder.

An interrupted run can resume: it ends with the same weights as one that was never interrupted.
Several processes that `torchrun` started train together.
"""

import hashlib
import itertools
import json
import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from torch import distributed

from bm25v import backbones
from bm25v.backbones.huggingface import find_device
from bm25v.display import duration, file_size, printable
from bm25v.errors import ImageError, InvalidOption, VocabularyError
from bm25v.files import make_folder, reporting_full_disk
from bm25v.progress import Progress, no_progress
from bm25v.schema import SchemaError, check_values, nullable, whole
from bm25v.training import checkpoints
from bm25v.training.patches import (
    VIEWS_ABOUT,
    Extraction,
    PatchStore,
    PatchWindows,
    StreamedPatches,
    extract_patches,
    find_training_images,
)
from bm25v.training.quality import check_held_out, find_stop_words
from bm25v.training.recipe import Patches, Recipe, Windows, iterate_batches
from bm25v.training.trainer import (
    StepFigures,
    Trainer,
    check_patches,
    describe_run,
    start_trainer,
)
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.folder import SETTINGS, check_settings

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
        """The folder of the unfinished run, beside its output."""
        output = Path(os.path.abspath(self.output))
        return output.parent / f"{output.name}.work"


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

    def wait(self) -> None:
        if self.n > 1:
            distributed.barrier()


def train_vocabulary(options: TrainingOptions, listener: Listener | None = None) -> Vocabulary:
    _check_options(options)
    start = time.perf_counter()
    listener, recipe = listener or Listener(), options.recipe
    if options.device == "cuda":  # torchrun starts one process for each GPU
        options = replace(options, device=f"cuda:{os.environ.get('LOCAL_RANK', 0)}")
    device = str(find_device(torch, options.device or "cpu"))
    paths = options.images or find_training_images(options.folder)
    with reporting_full_disk(options.work), Processes.join(device) as processes:
        backbone = backbones.load_backbone(  # ONNX models run on the CPU only
            options.backbone,
            layer=options.layer,
            device=options.device if backbones.has_device(options.backbone) else None,
        )
        extraction = Extraction(
            backbone, paths, options.views, options.patches, recipe.held_out, recipe.seed
        )
        settings = {"recipe": asdict(recipe), "data": extraction.key()}
        key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
        run_bytes = _check_run(options, extraction, key)
        windows, held_out = _read_patches(options, extraction, run_bytes, processes, listener)
        n_patches = sum(map(windows.n_patches, range(len(windows))))
        check_patches(n_patches, backbone.patch_dim, recipe)
        check_held_out(held_out)
        trainer = start_trainer(windows, recipe, device=device)
        if options.resume:
            trainer.restore(checkpoints.load_checkpoint(options.work))
        _log.info(
            "training on %s patches of %s images, from step %s to %s",
            f"{n_patches:,}",
            f"{len(paths):,}",
            f"{trainer.step_number:,}",
            f"{trainer.steps:,}",
        )
        train_steps(trainer, windows, options.work, key=key, listener=listener, processes=processes)
        sae = trainer.autoencoder()
        report = {
            "data": {
                "about": printable(options.about or Path(os.path.abspath(options.folder)).name),
                "n_images": len(paths),
                "views": f"{options.views}: {VIEWS_ABOUT}",
                "patches_per_view": options.patches,
                "patches": n_patches,
            },
            "training": {
                **describe_run(trainer, sae, held_out),
                "processes": processes.n,
                "seconds": round(time.perf_counter() - start, 1),
            },
        }
        processes.wait()  # others may still read files that are deleted next
        if processes.is_first:
            stop_words: tuple[int, ...] = ()
            if recipe.stop_words:
                stop_words = find_stop_words(
                    backbone, sae, paths, seed=recipe.seed, progress=listener.progress
                )
            vocabulary = Vocabulary.build(
                Path(os.path.abspath(options.output)).stem,
                backbone=backbone,
                sae=sae,
                k_post=options.k_post,
                stop_words=stop_words,
                report=report,
            )
            make_folder(options.output)
            checkpoints.copy_log(options.work, options.output)
            vocabulary.save(options.output)  # last: a vocabulary that exists is complete
            checkpoints.delete_run(options.work)
            _log.info("trained %s in %s", options.output, duration(time.perf_counter() - start))
        processes.wait()
    return vocabulary if processes.is_first else Vocabulary.load(options.output)


def _check_options(options: TrainingOptions) -> None:
    """Raise the errors that can be known before any image is read.

    Nothing is written among the images, and a folder that is deleted after the run must not contain
    anything of the user's.
    """
    try:
        counts = {"views": options.views, "patches": options.patches}
        check_values(counts, {"views": whole(1), "patches": nullable(whole(1))})
    except SchemaError as error:
        raise InvalidOption(f"{error}: give another number") from error
    output, work, folder = options.output, options.work, options.folder
    if not os.path.basename(os.path.abspath(output)):
        raise InvalidOption(f"{output} is not a folder for a vocabulary: give another path")
    if output.is_file() or (output / SETTINGS).exists():
        raise VocabularyError(f"{output} already exists: give another path, or delete it")
    if not options.images:
        _refuse_inside(output, folder, "the vocabulary")
    if _is_inside(folder, work):
        raise InvalidOption(
            f"the images in {folder} are in {work}, which is deleted after training: move them, or "
            "give another output"
        )
    if options.activations is not None:
        _refuse_inside(options.activations, folder, "the patches")
        if _is_inside(options.activations, work):
            raise InvalidOption(
                f"{options.activations} is in {work}, which is deleted after training: give "
                "another folder"
            )
    if not options.resume and (work / checkpoints.FILE_NAME).exists():
        raise InvalidOption(
            f"{work} has an unfinished run: continue it with --resume (in Python "
            "resume=True), or delete the folder"
        )


def _refuse_inside(path: Path, images: Path, content: str) -> None:
    if _is_inside(path, images):
        name = os.path.basename(os.path.abspath(path))
        beside = Path(os.path.abspath(images)).parent / name
        hint = "" if os.path.realpath(path) == os.path.realpath(images) else f", such as {beside}"
        raise InvalidOption(
            f"{path} is in the folder of images {images}, and {content} would be written among "
            f"them: give a path outside{hint}"
        )


def _is_inside(path: Path, folder: Path) -> bool:
    """Return whether a path is a folder or in it, whatever links lead there."""
    inner, outer = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    return inner == outer or outer in inner.parents


def _check_run(options: TrainingOptions, extraction: Extraction, key: str) -> int:
    """Raise the errors that can be known before extraction; return the bytes of the run's files."""
    recipe, patch_dim = options.recipe, extraction.backbone.patch_dim
    n_words = recipe.expansion * patch_dim
    check_patches(len(extraction.paths) * extraction.patches_per_image, patch_dim, recipe)
    check_settings(extraction.backbone, k=recipe.k, n_words=n_words, k_post=options.k_post)
    if options.resume:
        checkpoints.check_checkpoint(options.work, key=key)
    n_weights = 2 * n_words * patch_dim + n_words + patch_dim
    # Two for a moment, before the new checkpoint replaces the old one, which may exist already.
    n_checkpoints = 1 if options.resume else 2
    # A checkpoint has a weight and its two moments in float32, the result a weight in float16.
    needed = n_weights * (n_checkpoints * 3 * 4 + 2)
    existing = Path(os.path.abspath(options.output))
    while not existing.is_dir():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise InvalidOption(
            f"checkpoints and the vocabulary need {file_size(needed)}, the disk of "
            f"{options.output} has {file_size(free)} free: free some space, or give an output on "
            "another disk"
        )
    return needed


def _read_patches(
    options: TrainingOptions,
    extraction: Extraction,
    run_bytes: int,
    processes: Processes,
    listener: Listener,
) -> tuple[Windows, list[Patches]]:
    """Return patches to train on and those of held-out images, from a store or as a stream."""
    numbers = list(range(len(extraction.shards())))
    n_held_out = extraction.n_held_out(len(numbers))
    windows: Windows
    if options.stream:
        windows = StreamedPatches(extraction, numbers[n_held_out:], listener.on_error)
        first = StreamedPatches(extraction, numbers[:n_held_out], listener.on_error)
        shards = map(first.read, range(n_held_out))
    else:
        store = _fill_store(options, extraction, run_bytes, processes, listener)
        windows = PatchWindows(store, numbers[n_held_out:])
        shards = map(store.read, numbers[:n_held_out])
    held_out: list[Patches] = [extraction.whole_images(patches_nd) for patches_nd in shards]
    if not any(map(len, held_out)):
        raise InvalidOption(
            "none of the images held out for measuring can be read: "
            "remove unreadable images, or give another --seed"
        )
    return windows, held_out


def _fill_store(
    options: TrainingOptions,
    extraction: Extraction,
    run_bytes: int,
    processes: Processes,
    listener: Listener,
) -> PatchStore:
    folder = options.activations or options.work / checkpoints.ACTIVATIONS
    key, patch_dim = extraction.key(), extraction.backbone.patch_dim
    if processes.is_first:
        store = PatchStore(folder, key=key, dim=patch_dim)
        if store.has_other_patches and options.activations:
            raise InvalidOption(
                f"{folder} has patches of other images or settings: name another folder, or "
                "delete it"
            )
        if store.has_other_patches:
            store.clear()
        n_images = len(extraction.paths)
        n_bytes = n_images * extraction.patches_per_image * patch_dim * 2
        listener.on_message(f"{n_images:,} images, {n_bytes / 1e9:.2f} GB of patches")
        make_folder(folder)
        reserved = 0 if options.activations else run_bytes
        free = max(0, shutil.disk_usage(folder).free - reserved)
        if n_bytes - store.n_bytes > free:
            raise InvalidOption(
                f"the patches need {file_size(n_bytes - store.n_bytes)}, {folder} has "
                f"{file_size(free)} free: keep fewer with --patches, or name a larger disk with "
                "--activations"
            )
        extract_patches(extraction, store, progress=listener.progress, on_error=listener.on_error)
    processes.wait()
    return PatchStore(folder, key=key, dim=patch_dim)


def train_steps(
    trainer: Trainer,
    windows: Windows,
    work: Path,
    *,
    key: str,
    listener: Listener,
    processes: Processes = Processes(),  # noqa: B008 - this one alone
) -> None:
    """Train to the end; `work` gets the log, and checkpoints, with `key`, to resume from."""

    def save() -> None:
        if log is not None:
            log.sync()  # before: a log has every step up to the checkpoint
            checkpoints.save_checkpoint(work, trainer.state(), key=key)
            _log.debug("checkpoint after step %s", f"{trainer.step_number:,}")

    last = time.monotonic()
    after = trainer.step_number
    opening: AbstractContextManager[checkpoints.Log | None] = nullcontext()
    if processes.is_first:
        opening = checkpoints.open_log(work, after=after)
    with opening as log, _defer_interrupt() as stop:
        try:
            batches = iterate_batches(windows, trainer.recipe, start=after)
            for batch_nd in itertools.islice(batches, trainer.steps - after):
                if stop.is_set():
                    raise KeyboardInterrupt
                figures = trainer.step(batch_nd[processes.rank :: processes.n])
                if log is not None:
                    log.write(figures)
                listener.on_step(figures, trainer.steps)
                if time.monotonic() - last > CHECKPOINT_SECONDS:
                    save()
                    last = time.monotonic()
        except KeyboardInterrupt:
            save()
            raise
        save()  # what follows may fail, for example on a full disk


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
