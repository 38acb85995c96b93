"""What turns an image into words: a backbone, an SAE and the settings of a bag, in one folder."""

import hashlib
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v import backbones, images
from bm25v.backbones import Backbone, Features
from bm25v.backbones.paired import PairedBackbone, pair_fingerprints
from bm25v.backbones.protocol import Floats
from bm25v.backbones.text import TextTower, has_text_tower, load_text_tower
from bm25v.dense import normalise
from bm25v.display import count, first_line
from bm25v.errors import (
    InvalidOption,
    MissingExtra,
    UnknownBackbone,
    UnknownVocabulary,
    VocabularyError,
)
from bm25v.images import ImageInput, Metadata
from bm25v.privacy import import_quietly
from bm25v.sae.model import Codes, SparseAutoEncoder
from bm25v.schema import show_value
from bm25v.threads import locked_cached_property
from bm25v.vocabulary import bag as bags
from bm25v.vocabulary import names
from bm25v.vocabulary.bag import Bag, FullBag
from bm25v.vocabulary.folder import (
    NAMES,
    SETTINGS,
    SUGGESTED,
    WEIGHTS,
    check_settings,
    make_label,
    read_folder,
    write_folder,
)
from bm25v.vocabulary.lexicon import NAMES as LEXICON_NAMES
from bm25v.vocabulary.lexicon import TENSORS as LEXICON_TENSORS
from bm25v.vocabulary.lexicon import Lexicon, read_lexicon

DEFAULT = "default"
HUB_FILES = [  # downloaded from the hub
    SETTINGS,
    WEIGHTS,
    NAMES,
    SUGGESTED,
    LEXICON_NAMES,
    LEXICON_TENSORS,
    "*.onnx",  # this and the next are a backbone of the author's own
    "*.onnx.data",
]

_SHIPPED = Path(__file__).parent / "shipped"
HUB_PREFIX = "hf://"


class Encoding(NamedTuple):
    """An image as a vocabulary describes it."""

    bag: Bag
    dense_e: NDArray[np.float32]  # of length 1
    codes: Codes
    full_bag: FullBag
    patches_pd: NDArray[np.float32] | None = None  # only if the image was encoded alone
    all_words: Bag | None = None  # that a query has; None if only the stored bags are known

    def __repr__(self) -> str:
        words, n_patches = count(len(self.bag.words), "word"), len(self.codes.words_pk)
        return f"<Encoding: {words}, {n_patches} patches, dense vector of {len(self.dense_e)}>"


@dataclass(frozen=True)
class Vocabulary:
    """The visual words of one backbone.

    >>> vocabulary = Vocabulary.load("toy")
    >>> vocabulary.n_words
    192
    >>> red = np.full((64, 64, 3), (255, 0, 0), dtype=np.uint8)
    >>> len(vocabulary.bag(red).words)
    8
    """

    name: str
    backbone_name: str
    backbone_fingerprint: str
    sae: SparseAutoEncoder
    k_post: int  # words of the bag that is indexed
    fingerprint: str
    source: str  # the name or path that `load` takes
    k_full: int | None = None  # words of the full bag; None: as many as fit
    stop_words: tuple[int, ...] = ()  # ascending: words that say nothing, which no bag has
    folder: Path | None = None  # where it was read from; None if it was built in memory
    backbone_definition: Mapping[str, Any] | None = None  # of an ONNX model of one's own
    dense: str | None = None  # a second backbone, whose dense vectors follow those of the first
    word_names: Mapping[int, str] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        words = count(self.n_words, "word")
        return f"<Vocabulary {self.source}: {words}, backbone {self.backbone_name}>"

    @classmethod
    def load(
        cls, name_or_path: str | os.PathLike[str] = DEFAULT, *, download: bool = True
    ) -> "Vocabulary":
        """Return a shipped vocabulary by its exact name, one from a folder, or one from the hub.

        A path may start with "~"; "./toy" is a folder, "toy" is shipped. The hub is Hugging
        Face's: "hf://owner/name"; without `download`, its cache. The backbone is loaded later.
        """
        if name_or_path == "toy":
            return _toy()
        if name_or_path in shipped_names():
            return _read(_SHIPPED / name_or_path, source=str(name_or_path))
        if str(name_or_path).startswith(HUB_PREFIX):
            folder = _find_snapshot(str(name_or_path), download=download)
            return _read(folder, source=str(name_or_path))
        folder = _find_folder(name_or_path)
        return _read(folder, source=str(folder))

    @classmethod
    def build(
        cls,
        name: str,
        *,
        backbone: Backbone,
        sae: SparseAutoEncoder,
        k_post: int = 16,
        k_full: int | None = None,
        stop_words: Sequence[int] = (),
        report: Mapping[str, Any] | None = None,
    ) -> "Vocabulary":
        """Return a vocabulary of a backbone and an SAE that was trained on it."""
        stop_words = tuple(sorted(set(stop_words)))
        check_settings(
            backbone,
            k=sae.k,
            n_words=sae.n_words,
            k_post=k_post,
            k_full=k_full,
            stop_words=stop_words,
        )
        _check_width(backbone, sae)
        sae = _round_weights(sae)
        return cls(
            name=make_label(name),
            backbone_name=backbone.name,
            backbone_fingerprint=backbone.fingerprint,
            sae=sae,
            k_post=k_post,
            k_full=k_full,
            stop_words=stop_words,
            fingerprint=_fingerprint(backbone.fingerprint, sae, k_post, stop_words),
            source=name,
            backbone_definition=backbone.definition,
            report=report or {},
        )

    def with_dense(self, backbone: str | None) -> "Vocabulary":
        """Return the same words, with dense vectors of two backbones: its own and a built-in one.

        None stands for its own alone. The fingerprint, which is about words, stays the same.

        >>> vocabulary = Vocabulary.load("toy").with_dense("toy")
        >>> len(vocabulary.encode(np.zeros((64, 64, 3), dtype=np.uint8)).dense_e)
        24
        """
        known = backbones.backbone_names()
        if backbone not in (None, *known):
            raise UnknownBackbone(
                f"dense vectors of {backbone!r}: choose a built-in backbone, {', '.join(known)}"
            )
        return replace(self, dense=backbone)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the vocabulary as a folder; weights are stored as float16.

        `vocabulary.json` is written last: until then, there is no vocabulary in the folder.
        """
        definition = self.backbone_definition
        settings = {
            "name": self.name,
            "backbone": {
                "name": self.backbone_name,
                "fingerprint": self.backbone_fingerprint,
                "definition": definition and dict(definition),
            },
            "words": self.n_words,
            "k": self.sae.k,
            "k_post": self.k_post,
            "k_full": self.k_full,
            "stop_words": list(self.stop_words),
            "scale": bags.SCALE,
            "report": dict(self.report),
        }
        table = names.format_names(self.word_names, vocabulary=self.fingerprint)
        names_table = table if self.word_names else None
        write_folder(Path(folder), settings, self.sae, names_table=names_table)

    @property
    def n_words(self) -> int:
        """V, the number of visual words."""
        return self.sae.n_words

    @cached_property
    def full_bag_words(self) -> int:
        """How many words a full bag has at most; it has all words of the bag."""
        rows, columns = self.backbone.grid
        n_words = bags.full_bag_words(self.n_words, rows * columns)
        return max(self.k_post, min(self.k_full or n_words, n_words))

    @locked_cached_property
    def backbone(self) -> Backbone:
        """The backbone, loaded on first use."""
        backbone = backbones.restore_backbone(
            self.backbone_name, self.backbone_definition, self.folder
        )
        if backbone.fingerprint != self.backbone_fingerprint:
            raise VocabularyError(
                f"vocabulary {self.name} was trained on another {self.backbone_name} "
                f"({self.backbone_fingerprint}) than this bm25v has ({backbone.fingerprint}): "
                "use the bm25v or the model files that it was trained with"
            )
        _check_width(backbone, self.sae)
        if self.dense is None:
            return backbone
        return PairedBackbone(backbone, backbones.load_backbone(self.dense))

    @property
    def features_fingerprint(self) -> str:
        """The fingerprint of what computes the features; no backbone is loaded for it."""
        if self.dense is None:
            return self.backbone_fingerprint
        second = backbones.load_backbone(self.dense)
        return pair_fingerprints(self.backbone_fingerprint, second.fingerprint)

    @locked_cached_property
    def lexicon(self) -> Lexicon | None:
        """What English words mean in this vocabulary, read on first use; None if it has none."""
        if self.folder is None:
            return None
        lexicon = read_lexicon(self.folder, vocabulary=self.fingerprint, n_words=self.n_words)
        backbone = self.backbone
        width = (backbone.first if isinstance(backbone, PairedBackbone) else backbone).dense_dim
        if lexicon is not None and lexicon.dense_dim != width:
            raise VocabularyError(
                f"{self.folder}: the lexicon has directions of {lexicon.dense_dim} values, and "
                f"dense vectors of {self.backbone_name} have {width}: make it again"
            )
        return lexicon

    @locked_cached_property
    def suggested_names(self) -> Mapping[int, str]:
        """Names that a gallery gives to words if its images confirm them, read on first use."""
        if self.folder is None:
            return {}
        return _read_table(self.folder / SUGGESTED, self.n_words, self.fingerprint)

    @locked_cached_property
    def text_tower(self) -> TextTower | None:
        """The model that turns texts into vectors, loaded on first use; None if there is none."""
        if not has_text_tower(self.backbone_name):
            return None
        return load_text_tower(self.backbone_name)

    def report_section(self, name: str) -> Mapping[str, Any]:
        """Return a section of the report; empty if there is none, as other programs write others.

        >>> Vocabulary.load().report_section("data")["n_images"]
        13444
        """
        section = self.report.get(name)
        return section if isinstance(section, Mapping) else {}

    def encode(self, image: ImageInput) -> Encoding:
        """Return the bag, the dense vector and the codes of a path, bytes or RGB array."""
        features = self.backbone.forward(self.prepare(image))
        (encoding,) = self.encode_features([features])
        return encoding._replace(patches_pd=features.patches_pd)

    def prepare(self, image: ImageInput) -> Floats:
        """Return an image as input of the backbone."""
        return self.backbone.prepare_image(self.decode(image))

    def encode_features(self, features: Sequence[Features]) -> list[Encoding]:
        """Return the encodings of several images.

        Each is what the image gets alone: the codes of a patch do not depend on other patches.
        """
        if not features:
            return []
        n = len(features)
        words, activations = self.sae.encode(np.concatenate([f.patches_pd for f in features]))
        if self.stop_words:
            activations[np.isin(words, self.stop_words)] = 0
        encodings = []
        for image, codes in zip(
            features, map(Codes, np.split(words, n), np.split(activations, n)), strict=True
        ):
            bag, full_bag, all_words = bags.pool_bags(
                codes, k_post=self.k_post, k_full=self.full_bag_words
            )
            dense_e = normalise(image.dense_e)
            encodings.append(Encoding(bag, dense_e, codes, full_bag, all_words=all_words))
        return encodings

    def decode(self, image: ImageInput) -> NDArray[np.uint8]:
        """Return an upright RGB array; one from a file is not much larger than the input."""
        return self.decode_with_metadata(image)[0]

    def decode_with_metadata(self, image: ImageInput) -> tuple[NDArray[np.uint8], Metadata]:
        """Return what `decode` returns, and the image's size and date."""
        source = images.read_input(image)
        if isinstance(source, np.ndarray):
            return source, Metadata(source.shape[1], source.shape[0])
        return images.decode_with_metadata(source, short_side=2 * self.backbone.input_size)

    def bag(self, image: ImageInput) -> Bag:
        """Return the bag of an image."""
        return self.encode(image).bag


def shipped_names() -> list[str]:
    folders = _SHIPPED.iterdir() if _SHIPPED.is_dir() else ()
    return [*sorted(folder.name for folder in folders if folder.is_dir()), "toy"]


def _find_folder(name_or_path: str | os.PathLike[str]) -> Path:
    given = os.fspath(name_or_path)
    if not given:
        raise InvalidOption("an empty name of a vocabulary: give a name or a folder, such as .")
    folder = Path(os.path.abspath(os.path.expanduser(given)))
    try:
        if (folder / SETTINGS).is_file():
            return folder
        problem = f"no vocabulary {str(given)!r}"
    except OSError as error:  # a name that is too long, a folder that cannot be entered
        problem = f"no vocabulary {show_value(given)} ({error.strerror})"
    raise UnknownVocabulary(
        f"{problem}: give a folder with a {SETTINGS}, "
        f"{HUB_PREFIX}owner/name, or one of: {', '.join(shipped_names())}"
    )


def _find_snapshot(name: str, *, download: bool) -> Path:
    try:
        hub = import_quietly("huggingface_hub")
    except ImportError as error:
        raise MissingExtra(f"the vocabulary {name}", "hf") from error
    try:
        folder = hub.snapshot_download(
            name.removeprefix(HUB_PREFIX), allow_patterns=HUB_FILES, local_files_only=not download
        )
    except (OSError, ValueError, RuntimeError) as error:  # base classes of all that it raises
        if not download:
            raise UnknownVocabulary(
                f"{name} is not on this machine; to download it: "
                f"bm25v models get {shlex.quote(name)}"
            ) from error
        reason = first_line(str(error)) or type(error).__name__
        raise UnknownVocabulary(
            f"{name} cannot be downloaded ({reason}): check the name, or give a local folder"
        ) from error
    return Path(folder)


def _read(folder: Path, source: str) -> Vocabulary:
    settings, sae = read_folder(folder)
    backbone, k_post = settings["backbone"], settings["k_post"]
    stop_words = tuple(settings["stop_words"])
    fingerprint = _fingerprint(backbone["fingerprint"], sae, k_post, stop_words)
    return Vocabulary(
        name=settings["name"],
        backbone_name=backbone["name"],
        backbone_fingerprint=backbone["fingerprint"],
        backbone_definition=backbone["definition"],
        sae=sae,
        k_post=k_post,
        k_full=settings["k_full"],
        stop_words=stop_words,
        fingerprint=fingerprint,
        source=source,
        folder=folder,
        word_names=_read_table(folder / NAMES, sae.n_words, fingerprint),
        report=settings["report"],
    )


def _read_table(path: Path, n_words: int, fingerprint: str) -> dict[int, str]:
    """Return the names in a table; none if there is no such file."""
    if not path.is_file():
        return {}
    try:
        return names.read_names(path, n_words=n_words, vocabulary=fingerprint)
    except InvalidOption as error:
        raise VocabularyError(
            f"{error}; correct the file, or delete it to remove all names"
        ) from error
    except OSError as error:
        raise VocabularyError(f"{path} cannot be read ({error.strerror})") from error


def _fingerprint(
    backbone_fingerprint: str, sae: SparseAutoEncoder, k_post: int, stop_words: Sequence[int]
) -> str:
    """Return what identifies the bags of the index; full bags do not change them."""
    settings = f"{backbone_fingerprint} {sae.k} {k_post} {bags.SCALE}"
    if stop_words:  # older vocabularies have none
        settings += f" without {','.join(map(str, stop_words))}"
    digest = hashlib.sha256(settings.encode())
    digest.update(sae.w_enc_dv.ravel().data)
    digest.update(sae.b_enc_v.ravel().data)
    return digest.hexdigest()[:16]


def _check_width(backbone: Backbone, sae: SparseAutoEncoder) -> None:
    if backbone.patch_dim != sae.patch_dim:
        raise VocabularyError(
            f"patches of the backbone {backbone.name} have {backbone.patch_dim} values, "
            f"those of the SAE {sae.patch_dim}: use an SAE that was trained on this backbone"
        )


def _round_weights(sae: SparseAutoEncoder) -> SparseAutoEncoder:
    """Return the weights as they are stored, so that saving a vocabulary changes no bag."""
    rounded = [array.astype(np.float16).astype(np.float32) for array in sae.arrays]
    if not all(np.isfinite(array).all() for array in rounded):
        raise VocabularyError("the SAE has weights outside the range of float16: rescale it")
    return SparseAutoEncoder.from_arrays(rounded, sae.k)


def _toy() -> Vocabulary:
    backbone = backbones.load_backbone("toy")
    rng = np.random.default_rng(0)
    w_dec_vd = rng.standard_normal((192, backbone.patch_dim)).astype(np.float32)
    w_dec_vd /= np.linalg.norm(w_dec_vd, axis=1, keepdims=True)
    zeros_v, zeros_d = np.zeros(192, np.float32), np.zeros(backbone.patch_dim, np.float32)
    sae = SparseAutoEncoder(w_dec_vd.T.copy(), zeros_v, w_dec_vd, zeros_d, k=8)
    return Vocabulary.build("toy", backbone=backbone, sae=sae)
