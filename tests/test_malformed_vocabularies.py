"""Whatever is in a vocabulary's folder: it is loaded as it says, or refused in one clear line."""

import copy
import json
import math
import os
import random
import re
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save

from bm25v.errors import Bm25vError, InvalidOption, VocabularyError
from bm25v.sae.model import SparseAutoEncoder
from bm25v.schema import SchemaError, check_values, parse_object, show_value, whole
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.bag import MAX_K_POST
from bm25v.vocabulary.folder import NAMES, SETTINGS, WEIGHTS
from tests.children import REFUSED, Report, finish, needs_fork, start
from tests.conftest import make_pixels

pytestmark = pytest.mark.filterwarnings("ignore:.*fork")

DEFINITION = {
    "name": "mine",
    "model": "model.onnx",
    "input": {"size": 64, "preset": "imagenet"},
    "patches": {"output": "maps", "layout": "BDHW"},
    "dense": {"pool": "mean"},
}
REPORT = {
    "data": {"about": "photos", "n_images": 40, "views": "2: whole", "patches": 900},
    "training": {"fvu": 0.2, "dead_share": 0.1, "recipe": {"held_out": 0.02, "seed": 0}},
}
TOY = Vocabulary.load("toy")
FLIPS = 150
SPARSE_BYTES = 1 << 40


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a vocabulary with a report."""
    folder = tmp_path_factory.mktemp("intact") / "v"
    Vocabulary.build("mine", backbone=TOY.backbone, sae=TOY.sae, report=REPORT).save(folder)
    return folder


@pytest.fixture
def folder(intact: Path, tmp_path: Path) -> Path:
    return shutil.copytree(intact, tmp_path / "v")


def read(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / SETTINGS).read_text())
    return content


def change(folder: Path, key: str, value: Any) -> None:
    """Write another value to a key such as "backbone.name"."""
    content = read(folder)
    *outer, last = key.split(".")
    inner = content
    for part in outer:
        inner = inner[part]
    inner[last] = value
    (folder / SETTINGS).write_text(json.dumps(content))


def refusal(folder: Path) -> str:
    """Return the message of the error that loading raises: one short line."""
    with pytest.raises(VocabularyError) as caught:
        Vocabulary.load(folder)
    message = str(caught.value)
    assert type(caught.value) is VocabularyError
    assert message.isprintable()
    assert len(message) < len(str(folder)) + 400
    return message


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("format", True, "format is True, not a whole number of at least 1"),
        ("name", "\x1b[2J", r"name is '\x1b[2J', not a text"),
        ("backbone", [], "backbone is [], not a JSON object"),
        ("backbone.name", ["toy"], "backbone.name is ['toy'], not a text"),
        ("backbone.definition", "toy", "backbone.definition is 'toy', not null or a JSON object"),
        ("words", 191, "it has 192 words, and vocabulary.json says 191"),
        ("words", 0, "words is 0, not a whole number from 1 to 2,147,483,647"),
        ("k", 2.5, "k is 2.5, not"),
        ("k", 193, "k is 193, not a whole number from 1 to 192"),
        ("k_post", 10**9, "k_post is 1000000000, not"),
        ("k_full", 0, "k_full is 0, not null or a whole number from 1 to 256"),
        ("stop_words", [3, 2], "stop_words are not numbers of words below 192, ascending"),
        ("stop_words", [192], "stop_words are not numbers of words below 192, ascending"),
        ("stop_words", ["3"], "stop_words is ['3'], not a list of values, each a whole number"),
        ("scale", 200, "scale is 200, not 100"),
        ("report", None, "report is None, not a JSON object"),
        ("report", {"training": {"fvu": math.nan}}, "it has nan, which is not a number of JSON"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_file_key_and_value(
    folder: Path, key: str, value: Any, problem: str
) -> None:
    change(folder, key, value)
    message = refusal(folder)
    assert problem in message
    assert message.startswith(f"{folder / (WEIGHTS if key == 'words' and value else SETTINGS)}: ")
    assert message.endswith("restore the folder, or download or train the vocabulary again")


@pytest.mark.parametrize(
    "key", ["format", "name", "backbone", "words", "k", "k_post", "scale", "report"]
)
def test_a_missing_setting_is_refused(folder: Path, key: str) -> None:
    content = read(folder)
    del content[key]
    (folder / SETTINGS).write_text(json.dumps(content))
    assert f"{SETTINGS}: {key} is missing: restore" in refusal(folder)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "it is not JSON"),
        (b"[1, 2]", "it is [1, 2], not a JSON object"),
        (b"\xff\xfe{}", "it is not UTF-8 text"),
        (b'{"k": 1e999}', "it has inf, which is not a number of JSON"),
        (b'{"k": ' + b"9" * 5000 + b"}", "it is not JSON"),
        (b'{"a": ' * 100_000, "it is nested deeper than 32 levels"),
        (b'{"a":' * 40 + b"1" + b"}" * 40, "it is nested deeper than 32 levels"),
        (b'{"report": "\\ud800"}', r"it has the text '\ud800', which is not Unicode"),
        (b"[" * 10_000_000, "it is nested deeper than 32 levels"),
        (b" " * 16_000_001, "it has more than 16,000,000 bytes"),
    ],
    ids=range(10),
)
def test_settings_that_are_no_json_object_are_refused(
    folder: Path, content: bytes, problem: str
) -> None:
    (folder / SETTINGS).write_bytes(content)
    assert problem in refusal(folder)


def tensors(folder: Path) -> dict[str, Any]:
    return load_file(folder / WEIGHTS)


def nan_in(array: Any, value: float) -> Any:
    array = array.copy()
    array.ravel()[-1] = value
    return array


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda t: t | {"W_enc": nan_in(t["W_enc"], np.nan)}, "NaN or infinite values in its enc"),
        (lambda t: t | {"b_dec": nan_in(t["b_dec"], np.inf)}, "infinite values in its decoder bi"),
        (lambda t: t | {"W_enc": t["W_enc"].T.copy()}, "has shapes that do not match"),
        (lambda t: t | {"W_enc": np.zeros((1,) * 60)}, "has shapes that do not match"),
        (lambda t: t | {"W_enc": t["W_enc"].astype(np.int16)}, "stores W_enc as I16"),
        (lambda t: {name: t[name] for name in ("W_enc", "b_enc")}, "lacks W_dec, b_dec"),
        (lambda t: t | {"gate\x1b": t["b_enc"]}, "contains 'gate\\x1b', which a TopK auto-encoder"),
        (
            lambda t: {str(n): t["b_enc"] for n in range(99)},
            "it contains 0, 1, 10, 11, 12, 94 more",
        ),
    ],
    ids=range(8),
)
def test_wrong_weights_are_refused(
    folder: Path, damage: Callable[[dict[str, Any]], dict[str, Any]], problem: str
) -> None:
    (folder / WEIGHTS).write_bytes(save(damage(tensors(folder))))
    message = refusal(folder)
    assert message.startswith(str(folder / WEIGHTS))
    assert problem in message


def test_missing_files_and_folders_in_their_place_are_refused(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    assert f"{folder / WEIGHTS}: it is missing, or not a file" in refusal(folder)
    (folder / WEIGHTS).mkdir()
    assert "it is missing, or not a file" in refusal(folder)
    if hasattr(os, "mkfifo"):
        (folder / WEIGHTS).rmdir()
        os.mkfifo(folder / WEIGHTS)  # reading it would wait forever
        assert "it is missing, or not a file" in refusal(folder)


def test_weights_for_another_backbone_are_refused_before_they_are_used(folder: Path) -> None:
    n = 192
    arrays = {"W_enc": (5, n), "b_enc": (n,), "W_dec": (n, 5), "b_dec": (5,)}
    narrow = {name: np.ones(shape, np.float16) for name, shape in arrays.items()}
    (folder / WEIGHTS).write_bytes(save(narrow))
    with pytest.raises(VocabularyError, match="backbone toy have 12 values, those of the SAE 5"):
        Vocabulary.load(folder).bag(make_pixels(0))


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        (
            "input",
            {"size": 0, "preset": "clip"},
            "input.size is 0, not a whole number from 1 to 4,096",
        ),
        (
            "input",
            {"size": 10**30, "preset": "clip"},
            "000, not a whole number from 1 to 4,096",
        ),
        (
            "input",
            {"size": 8, "mean": [10**400, 0, 0], "std": [1, 1, 1]},
            "0, 0], not a list of three numbers",
        ),
        (
            "input",
            {"size": 8, "mean": [0, 0, 0], "std": [1e-320, 1, 1]},
            "input.std is [1e-320, 1, 1], not a list of three numbers, of which none is close to 0",
        ),
        ("model", "a\0b", "model is 'a\\x00b', not the path of a file"),
        ("model", "x" * 10_000, "xxx', not the path of a file"),
        ("patches", {"layout": {}}, "patches.layout is {}, not one of BDHW, BHWD, BND"),
        ("\x1b", 1, "'\\x1b' is not a known key"),
        ("name", None, "name is None, not a name of letters"),
    ],
)
def test_a_wrong_definition_of_a_backbone_names_the_vocabulary(
    folder: Path, key: str, value: Any, problem: str
) -> None:
    change(folder, "backbone.definition", {**DEFINITION, key: value})
    message = refusal(folder)
    assert message.startswith(f"{folder / SETTINGS}, backbone.definition: ")
    assert problem in message


def test_no_vocabulary_is_built_that_could_not_be_loaded(tmp_path: Path) -> None:
    for k_post in (0, MAX_K_POST + 1, True, 2.0):
        with pytest.raises(
            InvalidOption, match=r"k_post is .*, not a whole number from 1 to 65,535"
        ):
            Vocabulary.build("x", backbone=TOY.backbone, sae=TOY.sae, k_post=k_post)  # type: ignore[arg-type]
    sae = TOY.sae
    for k in (0, 193):
        wrong = SparseAutoEncoder(sae.w_enc_dv, sae.b_enc_v, sae.w_dec_vd, sae.b_dec_d, k)
        with pytest.raises(InvalidOption, match=rf"k is {k}, not"):
            Vocabulary.build("x", backbone=TOY.backbone, sae=wrong)
    TOY.save(tmp_path / "v")
    before = (tmp_path / "v" / SETTINGS).read_bytes()
    for value in (math.nan, object(), "\udce9"):
        report = {"training": {"fvu": value}}
        wrong_report = Vocabulary.build("x", backbone=TOY.backbone, sae=TOY.sae, report=report)
        with pytest.raises(VocabularyError):
            wrong_report.save(tmp_path / "v")
        assert (tmp_path / "v" / SETTINGS).read_bytes() == before
    strange = Vocabulary.build("caf\udce9\n", backbone=TOY.backbone, sae=TOY.sae)
    strange.save(tmp_path / "strange")
    assert Vocabulary.load(tmp_path / "strange").name == "caf??"


# From here on, folders are damaged at random.

LONG = "x" * 3000
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.sampled_from([10**9, -(10**30), 2**63, int("9" * 4000), 1e308, -0.0, 2.0, 8.0, math.nan])
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["", "8", "toy", "\x1b[2J", "a\nb", "\ud800", "default", LONG, "model.toml"])
)
KEYS = st.text(max_size=4) | st.sampled_from(["0", "3", "03", "-1", "k", "name", "data", "seed"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


def paths(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every value in a JSON object."""
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from paths(inner, (*path, key))


def damage(content: dict[str, Any], data: st.DataObject) -> Any:
    """Return a JSON object in which some values are replaced, dropped or added."""
    content = copy.deepcopy(content)
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(list(paths(content))))
        if not path:
            action = data.draw(st.sampled_from(["add", "add", "add", "replace"]))
            if action == "replace":
                return data.draw(VALUES)
            content[data.draw(KEYS)] = data.draw(VALUES)
            continue
        *outer, last = path
        inner = content
        for part in outer:
            inner = inner[part]
        if data.draw(st.booleans()) or not data.draw(st.booleans()):
            inner[last] = data.draw(VALUES)
        else:
            del inner[last]
    return content


def use(folder: Path, content: Any) -> None:
    """Load a folder with these settings; whatever is loaded has these settings, and works."""
    try:
        loaded = Vocabulary.load(folder)
    except VocabularyError as error:
        assert str(error).startswith(str(folder))
        assert len(str(error)) < len(str(folder)) + 600
        return
    for value, key in ((loaded.sae.k, "k"), (loaded.k_post, "k_post"), (loaded.n_words, "words")):
        assert type(content[key]) is int
        assert value == content[key]
    backbone = content["backbone"]
    assert loaded.backbone_fingerprint == backbone["fingerprint"]
    same = (backbone["fingerprint"], content["k"], content["k_post"]) == ("toy-1", 8, 16)
    same &= not content.get("stop_words")
    assert (loaded.fingerprint == TOY.fingerprint) == same
    loaded.save(folder.with_name("again"))
    assert Vocabulary.load(folder.with_name("again")).fingerprint == loaded.fingerprint
    if backbone["name"] == "toy" and backbone.get("definition") is None:
        with suppress(Bm25vError):
            loaded.bag(make_pixels(1))


@settings(max_examples=200)
@given(data=st.data(), has_definition=st.booleans())
def test_any_settings_are_loaded_as_they_say_or_refused(
    intact: Path, data: st.DataObject, has_definition: bool
) -> None:
    content = read(intact)
    if has_definition:
        content["backbone"]["definition"] = copy.deepcopy(DEFINITION)
    changed = damage(content, data)
    with tempfile.TemporaryDirectory() as scratch:
        folder = shutil.copytree(intact, Path(scratch) / "v")
        (folder / SETTINGS).write_text(json.dumps(changed))
        use(folder, changed)


@settings(max_examples=100)
@given(data=st.data())
def test_any_bytes_as_settings_are_loaded_or_refused(intact: Path, data: st.DataObject) -> None:
    content = bytearray((intact / SETTINGS).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content)))
        content[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=6))
    with tempfile.TemporaryDirectory() as scratch:
        folder = shutil.copytree(intact, Path(scratch) / "v")
        (folder / SETTINGS).write_bytes(content)
        try:
            loaded = parse_object(bytes(content))
        except SchemaError:
            loaded = {}
        use(folder, loaded)


TYPES = ["f2", "f4", "f8", "i1", "u2", "i8", "?"]
SHAPES = st.lists(st.integers(0, 13), max_size=4)


@settings(max_examples=100)
@given(data=st.data())
def test_any_tensors_are_loaded_finite_and_fitting_or_refused(
    intact: Path, data: st.DataObject
) -> None:
    arrays = tensors(intact)
    for name in data.draw(st.lists(st.sampled_from(sorted(arrays)), min_size=1, max_size=3)):
        match data.draw(st.sampled_from(["type", "shape", "value", "drop", "rename", "transpose"])):
            case "type":
                with np.errstate(invalid="ignore"):
                    arrays[name] = arrays[name].astype(data.draw(st.sampled_from(TYPES)))
            case "shape":
                arrays[name] = np.ones(data.draw(SHAPES), arrays[name].dtype)
            case "value" if arrays[name].size:
                at = data.draw(st.integers(0, arrays[name].size - 1))
                values = [np.nan, np.inf, -np.inf, 65504.0, -0.0]
                with np.errstate(invalid="ignore"):
                    flat = arrays[name].copy().ravel()
                    flat[at] = np.array(data.draw(st.sampled_from(values))).astype(flat.dtype)
                arrays[name] = flat.reshape(arrays[name].shape)
            case "transpose":
                arrays[name] = arrays[name].T.copy()
            case "rename":
                arrays[data.draw(KEYS)] = arrays[name]
            case _:
                arrays.pop(name, None)
                if not arrays:
                    break
        if name not in arrays:
            break
    with tempfile.TemporaryDirectory() as scratch:
        folder = shutil.copytree(intact, Path(scratch) / "v")
        (folder / WEIGHTS).write_bytes(save(arrays))
        try:
            loaded = Vocabulary.load(folder)
        except VocabularyError as error:
            assert str(error).startswith(str(folder / WEIGHTS))
            return
        sae = loaded.sae
        for array, name in zip(
            (sae.w_enc_dv, sae.b_enc_v, sae.w_dec_vd, sae.b_dec_d),
            ("W_enc", "b_enc", "W_dec", "b_dec"),
            strict=True,
        ):
            assert array.dtype == np.float32
            assert np.isfinite(array).all()
            assert array.tobytes() == arrays[name].astype(np.float32).tobytes()
        assert (sae.n_words, sae.patch_dim) == (192, 12)
        loaded.bag(make_pixels(2))


def test_flipped_bytes_and_cut_files_are_refused_or_harmless(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (header_bytes,) = struct.unpack("<Q", content[:8])
    rng = random.Random(0)
    damaged = [content[:length] for length in (0, 1, 7, 8, 9, len(content) // 2, len(content) - 1)]
    damaged += [content + b"\0", bytes(len(content)), b"\xff" * 8 + content[8:]]
    for _ in range(FLIPS):
        flipped = bytearray(content)
        flipped[rng.randrange(8 + header_bytes)] ^= 1 << rng.randrange(8)
        damaged.append(bytes(flipped))
    refused = 0
    for part in damaged:
        (folder / WEIGHTS).write_bytes(part)
        try:
            assert Vocabulary.load(folder).n_words == 192
        except VocabularyError as error:
            assert str(error).startswith(str(folder / WEIGHTS))
            refused += 1
    assert refused > FLIPS / 2


def limit_memory(n_bytes: int) -> None:
    """Let this process take no more than `n_bytes` in addition to what it has."""
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + n_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


@needs_fork
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")
@pytest.mark.parametrize("name", [SETTINGS, WEIGHTS, NAMES])
def test_a_file_of_a_terabyte_takes_no_memory(folder: Path, name: str) -> None:
    with (folder / name).open("ab") as file:
        try:
            file.truncate(SPARSE_BYTES)
        except OSError:
            pytest.skip("the disk has no sparse files of this size")

    def load(report: Report) -> None:
        limit_memory(300_000_000)
        Vocabulary.load(folder)

    assert finish(*start(load))[0] == REFUSED


def test_matrices_too_large_for_any_memory_are_refused_unread(folder: Path) -> None:
    words, width = 1 << 30, 2
    shapes = {
        "W_enc": (width, words),
        "b_enc": (words,),
        "W_dec": (words, width),
        "b_dec": (width,),
    }
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": (end, end + size)}
        end += size
    text = json.dumps(header).encode()
    with (folder / WEIGHTS).open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        try:
            file.truncate(8 + len(text) + end)
        except OSError:
            pytest.skip("the disk has no sparse files of this size")
    change(folder, "words", words)
    assert "has matrices of 2 × 1,073,741,824 values: at most" in refusal(folder)


@given(value=VALUES)
def test_every_value_is_shown_in_a_short_line(value: Any) -> None:
    shown = show_value(value)
    assert len(shown) < 400
    assert "\n" not in shown
    assert "\x1b" not in shown
    message = re.escape("k is ")
    with pytest.raises(SchemaError, match=message):
        check_values({"k": [value]}, {"k": whole(1)})
