"""A vocabulary becomes a page: numbers of its training, charts, sample words.

In: a `Vocabulary`, with what training wrote into its folder, and its words in a gallery. Out: HTML.
Not this module's job: choosing sample words.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from bm25v.display import word_label
from bm25v.errors import VocabularyError
from bm25v.explanations.crops import cut_examples, encode_jpeg
from bm25v.explanations.gallery_samples import GallerySamples
from bm25v.explanations.samples import FILE_NAME, Samples
from bm25v.pages.charts import draw_density_histogram, draw_frequencies, draw_training_curve
from bm25v.pages.commands import join_command
from bm25v.pages.render import EmbeddedImage, render
from bm25v.schema import SchemaError, check_values, number, parse_object, whole
from bm25v.vocabulary import Vocabulary

LOG_NAME = "training.jsonl"

_LOG_ENTRY = {"step": whole(0, 1 << 53), "fvu": number(0, 1e9)}
_MAX_SILENT = 2000  # silent words that are listed
_CROP_SIDE = 128  # pixels


def render_vocabulary(vocabulary: Vocabulary, gallery: GallerySamples | None = None) -> str:
    """Return the page; if neither folder nor gallery show words, it says how to get them.

    >>> page = render_vocabulary(Vocabulary.load("toy"))
    >>> "<dd>192</dd>" in page, "No curve" in page, "No densities" in page
    (True, True, True)
    """
    folder = vocabulary.folder
    samples = _load_samples(vocabulary, folder) if folder else None
    points = read_log(folder / LOG_NAME) if folder else []
    training, data = (vocabulary.report_section(name) for name in ("training", "data"))
    final = training.get("fvu")
    return render(
        "vocabulary.html",
        name=vocabulary.name,
        n_words=vocabulary.n_words,
        backbone=vocabulary.backbone_name,
        data=str(data.get("about") or "").rstrip("."),
        facts=list(_facts(vocabulary, training, data)),
        details=list(_details(vocabulary, training, data)),
        curve=draw_training_curve(points, final if _is_number(final) else None) if points else None,
        log_name=LOG_NAME,
        samples=samples,
        samples_name=FILE_NAME,
        max_silent=_MAX_SILENT,
        **({} if samples is None else _describe_samples(vocabulary, samples)),
        gallery=None if gallery is None else _describe_gallery(gallery),
        commands=[
            join_command("demo"),
            join_command("words", "report", vocabulary.source, "-g", "demo/gallery.bm25v"),
        ],
    )


def read_log(path: Path) -> list[tuple[int, float]]:
    """Return the unexplained share of the variance at each step of a training run.

    A run that was resumed may have logged a step twice; the last value counts.
    """
    fvu_by_step: dict[int, float] = {}
    content = path.read_bytes() if path.is_file() else b""
    for line in content.splitlines():
        try:
            entry = parse_object(line)
            check_values(entry, _LOG_ENTRY)
        except SchemaError:  # a line cut off when a run was killed
            continue
        fvu_by_step[entry["step"]] = float(entry["fvu"])
    return sorted(fvu_by_step.items())


def _load_samples(vocabulary: Vocabulary, folder: Path) -> Samples | None:
    samples = Samples.load(folder)
    if samples is not None and len(samples.counts_v) != vocabulary.n_words:
        raise VocabularyError(f"{folder / FILE_NAME} belongs to another vocabulary: delete it")
    return samples


def _describe_samples(vocabulary: Vocabulary, samples: Samples) -> dict[str, Any]:
    n_patches = max(samples.patches, 1)
    return {
        "histogram": draw_density_histogram(samples.counts_v / n_patches),
        "silent": np.flatnonzero(samples.counts_v == 0).tolist(),
        "n_examples": max((len(word.examples) for word in samples.words), default=0),
        "words": [
            {
                "label": word_label(word.word, vocabulary.word_names.get(word.word)),
                "share": int(samples.counts_v[word.word]) / n_patches,
                "n_images": word.n_images,
                "heat_map": word.heat_map,
                "examples": word.examples,
            }
            for word in samples.words
        ],
    }


def _describe_gallery(gallery: GallerySamples) -> dict[str, Any]:
    cut = cut_examples((e for word in gallery.words for e in word.examples), side=_CROP_SIDE)
    n_images = max(gallery.n_images, 1)
    return {
        "name": Path(gallery.gallery).name,
        "path": gallery.gallery,
        "n_images": gallery.n_images,
        "n_words": int(np.count_nonzero(gallery.df_v)),
        "frequencies": draw_frequencies(gallery.df_v),
        "histogram": draw_density_histogram(gallery.df_v / n_images, of="images"),
        "words": [
            {
                "label": word.label,
                "share": word.df / n_images,
                "df": word.df,
                "crops": [
                    EmbeddedImage(encode_jpeg(cut[e]), f"{word.label} in {Path(e.path).name}")
                    for e in word.examples
                    if e in cut
                ],
            }
            for word in gallery.words
        ],
    }


def _facts(
    vocabulary: Vocabulary, training: Mapping[str, Any], data: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    fvu, dead, n_images = training.get("fvu"), training.get("dead_share"), data.get("pictures")
    yield f"{vocabulary.n_words:,}", "words"
    if _is_number(fvu):
        yield f"{1 - fvu:.1%}", "of the variance explained"
    if _is_number(dead):
        yield f"{dead:.1%}", "dead words"
    if _is_number(n_images):
        yield f"{n_images:,}", "training images"


def _details(
    vocabulary: Vocabulary, training: Mapping[str, Any], data: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    yield vocabulary.backbone_name, "backbone"
    yield str(vocabulary.sae.k), "words per patch (k)"
    yield str(vocabulary.k_post), "words per image (k_post)"
    for section, key, label, form in (
        (data, "patches", "patches", "{:,}"),
        (training, "held_out_patches", "held-out patches", "{:,}"),
        (training, "l0", "active words per patch (L0)", "{:.1f}"),
        (training, "silent_share", "silent words", "{:.1%}"),
        (training, "dense_share", "dense words", "{:.1%}"),
        (training, "coherence", "coherence", "{:.2f}"),
    ):
        if _is_number(section.get(key)):
            yield form.format(section[key]), label
    yield vocabulary.fingerprint, "fingerprint"


def _is_number(value: Any) -> TypeGuard[int | float]:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max
