"""ONNX models of one's own: the spec file, what is wrong with it, and vocabularies made with it."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bm25v import backbones
from bm25v.backbones import Backbone, downloads
from bm25v.errors import BackboneError, InvalidOption, ModelUnavailable
from bm25v.gallery import Gallery
from bm25v.sae.model import SparseAutoEncoder
from bm25v.vocabulary import Vocabulary
from tests.conftest import make_pixels

GUIDE = Path(__file__).parent.parent / "docs" / "how-to" / "own-backbone.md"
SIZE, PATCH, DIM = 32, 8, 6  # a grid of 4 × 4 patches with 6 values each

CONVOLUTION = {
    "name": "my-net",
    "model": "model.onnx",
    "licence": "MIT",
    "input": {"size": SIZE, "preset": "imagenet"},
    "patches": {"output": "maps", "layout": "BDHW"},
    "dense": {"pool": "mean"},
}
TRANSFORMER = {
    "name": "my-vit",
    "model": "model.onnx",
    "input": {"size": SIZE, "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]},
    "patches": {"output": "tokens", "layout": "BND", "leading_tokens": 1},
    "dense": {"pool": "class"},
}


def make_model(
    nodes: list[onnx.NodeProto],
    constants: dict[str, Any],
    outputs: list[str],
    batch: str | int = "batch",
) -> onnx.ModelProto:
    rng = np.random.default_rng(5)
    kernel = rng.standard_normal((DIM, 3, PATCH, PATCH)).astype(np.float32) / PATCH
    arrays = {"kernel": kernel, **constants}
    initializers = [numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items()]
    shape = [batch, 3, SIZE, SIZE]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["image", "kernel"], ["raw"], strides=[PATCH, PATCH]), *nodes],
        "tiny",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def convolution(batch: str | int = "batch") -> onnx.ModelProto:
    """Outputs: maps (B, D, H, W), and a vector of each image (B, D, 1, 1)."""
    nodes = [
        helper.make_node("Relu", ["raw"], ["maps"]),
        helper.make_node("GlobalMaxPool", ["maps"], ["vector"]),
    ]
    return make_model(nodes, {}, ["maps", "vector"], batch)


def transformer(batch: str | int = "batch") -> onnx.ModelProto:
    """Output: tokens (B, 1 + N, D), the mean of the patches as class token first."""
    constants = {"flat": np.array([0, DIM, -1]), "axis": np.array([1])}
    nodes = [
        helper.make_node("Reshape", ["raw", "flat"], ["columns"]),
        helper.make_node("Transpose", ["columns"], ["patches"], perm=[0, 2, 1]),
        helper.make_node("ReduceMax", ["patches", "axis"], ["class"], keepdims=1),
        helper.make_node("Concat", ["class", "patches"], ["joined"], axis=1),
        helper.make_node("Relu", ["joined"], ["tokens"]),
    ]
    return make_model(nodes, constants, ["tokens"], batch)


def write_toml(path: Path, spec: dict[str, Any]) -> Path:
    """Write a spec; JSON's texts, numbers and lists are TOML."""
    lines = [f"{key} = {json.dumps(v)}" for key, v in spec.items() if not isinstance(v, dict)]
    for name, table in spec.items():
        if isinstance(table, dict):
            lines += [f"[{name}]", *(f"{key} = {json.dumps(v)}" for key, v in table.items())]
    path.write_text("\n".join(lines), encoding="utf-8")
    assert tomllib.loads(path.read_text(encoding="utf-8")) == spec
    return path


def write(folder: Path, content: onnx.ModelProto, spec: dict[str, Any], **changes: Any) -> Path:
    """Write a model and its spec, changed in some keys; None removes a key."""
    folder.mkdir(exist_ok=True)
    (folder / "model.onnx").write_bytes(content.SerializeToString())
    return write_toml(folder / "spec.toml", change(spec, changes))


def change(table: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    changed = {
        key: change(table[key], value) if isinstance(value, dict) else value
        for key, value in changes.items()
    }
    return {key: value for key, value in {**table, **changed}.items() if value is not None}


def features(backbone: Backbone, seed: int = 3) -> list[bytes]:
    image = backbone.prepare_image(make_pixels(seed))
    return [part.tobytes() for part in backbone.forward(image)]


def train(folder: Path, images: Path, spec: Path) -> Path:
    """Train a small vocabulary in the folder."""
    pytest.importorskip("torch")
    from bm25v.training import TrainingOptions, train_vocabulary
    from bm25v.training.recipe import Recipe

    recipe = Recipe(expansion=4, k=4, batch=128, epochs=2)
    options = TrainingOptions(images, folder / "mine.vocab", backbone=str(spec), recipe=recipe)
    train_vocabulary(options)
    return options.output


@pytest.mark.parametrize(
    ("model", "spec"),
    [
        (convolution("batch"), CONVOLUTION),
        (convolution(3), {**CONVOLUTION, "dense": {"output": "vector"}}),
        (transformer("batch"), TRANSFORMER),
        (transformer(1), TRANSFORMER),
    ],
)
def test_a_model_of_ones_own_trains_indexes_searches_and_explains(
    model: onnx.ModelProto, spec: dict[str, Any], training_images: Path, tmp_path: Path
) -> None:
    path = write(tmp_path, model, spec)
    backbone = backbones.load_backbone(str(path))
    assert (backbone.name, backbone.grid) == (spec["name"], (4, 4))
    assert (backbone.patch_dim, backbone.dense_dim) == (DIM, DIM)
    vocabulary = train(tmp_path, training_images, path)
    gallery = Gallery.create(tmp_path / "g", vocabulary=vocabulary)
    gallery.add(training_images)
    best = gallery.search(make_pixels(7), k=3, mode="two-stage")[0]
    assert Path(best.path).name == "7.png"
    assert best.dense == pytest.approx(1, abs=1e-3)
    explanation = gallery.explain(make_pixels(7), best.path, mode="two-stage")
    total = sum(part.word.contribution for part in explanation.parts)
    assert total == pytest.approx(best.sparse, abs=1e-5)
    assert all(
        part.in_hit is not None and part.in_hit.shape == (4, 4) for part in explanation.parts
    )


@pytest.mark.parametrize("n", [1, 3, 4])
def test_a_fixed_batch_gives_the_features_of_a_dynamic_one(n: int, tmp_path: Path) -> None:
    dynamic = backbones.load_backbone(str(write(tmp_path / "a", transformer(), TRANSFORMER)))
    fixed = backbones.load_backbone(str(write(tmp_path / "b", transformer(3), TRANSFORMER)))
    batch = [dynamic.prepare_image(make_pixels(seed)) for seed in range(n)]
    pairs = zip(dynamic.forward_batch(batch), fixed.forward_batch(batch), strict=True)
    for expected, actual in pairs:
        np.testing.assert_allclose(actual.patches_pd, expected.patches_pd, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(actual.dense_e, expected.dense_e, rtol=1e-5, atol=1e-6)


def test_layouts_say_where_the_patches_are(tmp_path: Path) -> None:
    maps = backbones.load_backbone(str(write(tmp_path / "a", convolution(), CONVOLUTION)))
    image = make_pixels(1)
    expected = maps.forward(maps.prepare_image(image))
    assert expected.patches_pd.shape == (16, DIM)
    np.testing.assert_allclose(expected.dense_e, expected.patches_pd.mean(axis=0), rtol=1e-5)
    preset = {"preset": "imagenet", "mean": None, "std": None}
    path = write(tmp_path / "b", transformer(), TRANSFORMER, input=preset)
    tokens = backbones.load_backbone(str(path))
    actual = tokens.forward(tokens.prepare_image(image))
    np.testing.assert_allclose(actual.patches_pd, expected.patches_pd, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(actual.dense_e, expected.patches_pd.max(axis=0), rtol=1e-5)
    nodes = [
        helper.make_node("Relu", ["raw"], ["maps"]),
        helper.make_node("Transpose", ["maps"], ["last"], perm=[0, 2, 3, 1]),
    ]
    patches = {"output": "last", "layout": "BHWD"}
    path = write(tmp_path / "c", make_model(nodes, {}, ["last"]), CONVOLUTION, patches=patches)
    last = backbones.load_backbone(str(path))
    np.testing.assert_array_equal(
        last.forward(last.prepare_image(image)).patches_pd, expected.patches_pd
    )


def test_an_inner_tensor_can_hold_the_patches(tmp_path: Path) -> None:
    model = convolution()
    del model.graph.output[0]  # the maps
    inner = backbones.load_backbone(str(write(tmp_path / "a", model, CONVOLUTION)))
    plain = backbones.load_backbone(str(write(tmp_path / "b", convolution(), CONVOLUTION)))
    assert features(inner) == features(plain)


def test_pixels_are_scaled_and_ordered_as_the_spec_says(tmp_path: Path) -> None:
    image = np.full((9, 9, 3), (255, 51, 0), dtype=np.uint8)
    mean, std = [0.2, 0.1, 0.4], [0.5, 0.25, 1.0]
    own = {"preset": None, "mean": mean, "std": std}
    for channels, values in (("RGB", (1, 0.2, 0)), ("BGR", (0, 0.2, 1))):
        spec = write(tmp_path, convolution(), CONVOLUTION, input={**own, "channels": channels})
        pixels = backbones.load_backbone(str(spec)).prepare_image(image)
        expected = (np.array(values) - mean) / std
        np.testing.assert_allclose(pixels[0, :, 4, 4], expected, atol=1e-6)


def test_the_fingerprint_follows_what_decides_the_output(tmp_path: Path) -> None:
    def fingerprint(model: onnx.ModelProto | None = None, **changes: Any) -> str:
        path = write(tmp_path, model or convolution(), CONVOLUTION, **changes)
        return backbones.load_backbone(str(path)).fingerprint

    numbers = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    first = fingerprint()
    assert fingerprint(name="another", licence=None, input={"preset": None, **numbers}) == first
    others = {
        fingerprint(input={"preset": "half"}),
        fingerprint(input={"channels": "BGR"}),
        fingerprint(dense={"pool": None, "output": "vector"}),
        fingerprint(patches={"output": "raw"}),
        fingerprint(convolution(4)),
    }
    assert len(others - {first}) == 5


def test_weights_in_a_second_file_are_read_and_part_of_the_hash(tmp_path: Path) -> None:
    path = write(tmp_path, convolution(), CONVOLUTION)
    plain = features(backbones.load_backbone(str(path)))
    onnx.save(
        convolution(),
        tmp_path / "model.onnx",
        save_as_external_data=True,
        location="weights.data",
        size_threshold=1,
    )
    split = backbones.load_backbone(str(path))
    assert features(split) == plain
    weights = tmp_path / "weights.data"
    weights.write_bytes(weights.read_bytes()[::-1])
    assert backbones.load_backbone(str(path)).fingerprint != split.fingerprint
    weights.unlink()
    with pytest.raises(
        BackboneError, match=r"keeps weights in weights\.data, which cannot be read"
    ):
        backbones.load_backbone(str(path))


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    """A vocabulary of a model of one's own, both in folders of their own."""
    backbone = backbones.load_backbone(str(write(tmp_path / "model", convolution(), CONVOLUTION)))
    weights_dv = np.random.default_rng(0).standard_normal((DIM, 20)).astype(np.float32)
    zeros_v, zeros_d = np.zeros(20, np.float32), np.zeros(DIM, np.float32)
    sae = SparseAutoEncoder(weights_dv, zeros_v, weights_dv.T.copy(), zeros_d, k=4)
    Vocabulary.build("mine", backbone=backbone, sae=sae).save(tmp_path / "mine.vocab")
    return tmp_path / "mine.vocab"


def words(vocabulary: Path) -> list[int]:
    return list(Vocabulary.load(vocabulary).bag(make_pixels(2)).words)


def test_a_vocabulary_needs_the_model_and_no_spec_file(
    vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = words(vocabulary)
    (tmp_path / "model" / "spec.toml").unlink()
    monkeypatch.chdir("/")
    assert words(vocabulary) == expected
    definition = json.loads((vocabulary / "vocabulary.json").read_text())["backbone"]["definition"]
    assert definition["model"] == str(tmp_path / "model" / "model.onnx")
    assert definition["licence"] == "MIT"


def test_a_moved_vocabulary_finds_the_model_in_its_folder_or_among_the_downloads(
    vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = words(vocabulary)
    moved = vocabulary.rename(tmp_path / "elsewhere")
    model = (tmp_path / "model" / "model.onnx").rename(tmp_path / "model.onnx")
    monkeypatch.setenv("BM25V_MODELS", str(tmp_path / "downloads"))
    with pytest.raises(ModelUnavailable) as caught:
        words(moved)
    assert str(caught.value) == (
        f"the model of vocabulary {moved} is missing: copy model.onnx to one of these paths: "
        f"{tmp_path}/model/model.onnx, {moved}/model.onnx, {tmp_path}/downloads/model.onnx"
    )
    (tmp_path / "downloads").mkdir()
    shutil.copy(model, tmp_path / "downloads" / "model.onnx")
    assert words(moved) == expected
    (tmp_path / "downloads" / "model.onnx").rename(moved / "model.onnx")
    assert words(moved) == expected


def test_another_model_under_the_same_name_is_refused(vocabulary: Path, tmp_path: Path) -> None:
    expected = words(vocabulary)
    model = tmp_path / "model" / "model.onnx"
    shutil.copy(model, tmp_path / "kept.onnx")
    model.write_bytes(transformer().SerializeToString())
    message = rf"{model} is another model \(SHA-256 \w+…\) than the one in vocabulary {vocabulary}"
    with pytest.raises(ModelUnavailable, match=message):
        words(vocabulary)
    (tmp_path / "kept.onnx").rename(vocabulary / "model.onnx")  # this one has the right hash
    assert words(vocabulary) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": None}, "name is missing"),
        ({"name": "a/b"}, "name is 'a/b', not a name of letters, digits and . _ - only, up to 200"),
        ({"model": 3}, "model is 3, not the path of a file"),
        ({"input": {"size": None}}, "input.size is missing"),
        ({"input": {"size": "224"}}, "input.size is '224', not a whole number from 1 to 4,096"),
        ({"input": {"size": True}}, "input.size is True, not a whole number from 1 to 4,096"),
        ({"input": {"size": 0}}, "input.size is 0, not a whole number from 1 to 4,096"),
        ({"input": {"preset": None}}, "input.mean is missing"),
        (
            {"input": {"preset": "image"}},
            "input.preset is 'image', not one of imagenet, clip, half, none",
        ),
        ({"input": {"mean": [0, 0, 0]}}, "input.preset contradicts input.mean and input.std"),
        (
            {"input": {"preset": None, "mean": [0, 0], "std": [1, 1, 1]}},
            "input.mean is [0, 0], not a list of three numbers",
        ),
        (
            {"input": {"preset": None, "mean": [0, 0, 0], "std": [1, 0, 1]}},
            "input.std is [1, 0, 1], not a list of three numbers, of which none is close to 0",
        ),
        ({"input": {"channels": "GBR"}}, "input.channels is 'GBR', not one of RGB, BGR"),
        ({"patches": {"output": None}}, "patches.output is missing"),
        ({"patches": {"layout": "NCHW"}}, "patches.layout is 'NCHW', not one of BDHW, BHWD, BND"),
        ({"patches": {"ouput": "x"}}, "patches.ouput is not a known key; did you mean patches."),
        (
            {"patches": {"leading_tokens": 1}},
            "patches.leading_tokens is 1, and BDHW has none",
        ),
        ({"dense": {"output": "vector"}}, "dense.output or dense.pool is needed, and not both"),
        ({"dense": {"pool": None}}, "dense.output or dense.pool is needed, and not both"),
        ({"dense": {"pool": "class"}}, "dense.pool is 'class', which needs patches.leading_tokens"),
        ({"patches": "maps"}, "patches is not a known key; did you mean patches.output?"),
        ({"colour": "blue"}, "colour is not a known key; "),
    ],
)
def test_everything_wrong_in_a_spec_is_one_clear_line(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path, convolution(), CONVOLUTION, **changes)
    with pytest.raises(BackboneError) as caught:
        backbones.load_backbone(str(path))
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


def test_a_missing_or_broken_spec_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BackboneError, match=r"no\.toml cannot be read \(No such file"):
        backbones.load_backbone(str(tmp_path / "no.toml"))
    (tmp_path / "broken.toml").write_text("name: my-net")
    with pytest.raises(BackboneError, match=r"is not a TOML file: Expected '=' after a key .*line"):
        backbones.load_backbone(str(tmp_path / "broken.toml"))
    (tmp_path / "latin.toml").write_bytes(b'name = "caf\xe9"')
    with pytest.raises(BackboneError, match="is not a TOML file"):
        backbones.load_backbone(str(tmp_path / "latin.toml"))
    path = write(tmp_path, convolution(), CONVOLUTION, model="models/none.onnx")
    with pytest.raises(
        ModelUnavailable, match=rf"copy none\.onnx .*: {tmp_path}/models/none\.onnx"
    ):
        backbones.load_backbone(str(path))


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        (convolution(), {"patches": {"output": "map"}}, "has no output 'map', only: maps, vector"),
        (convolution(), {"patches": {"output": "rawe"}}, "; similar inner tensors: raw"),
        (convolution(), {"input": {"size": 64}}, "(batch, 3, 32, 32), but gets"),
        (
            convolution(),
            {"patches": {"layout": "BHWD"}},
            "backbone my-net: maps has shape (1, 6, 4, 4), which is no square grid of patches in "
            "the layout BHWD with 0 leading tokens: correct patches.output,",
        ),
        (convolution(), {"patches": {"layout": "BND"}}, "in the layout BND with 0 leading tokens"),
        (
            transformer(),
            {"patches": {"output": "tokens", "layout": "BND", "leading_tokens": 2}},
            "tokens has shape (1, 17, 6)",
        ),
        (
            convolution(),
            {"dense": {"pool": None, "output": "maps"}},
            "maps has shape (1, 6, 4, 4), which is not one vector per image",
        ),
        (
            make_model([helper.make_node("Log", ["raw"], ["maps"])], {}, ["maps"]),
            {},
            "values of maps are not finite",
        ),
        (
            make_model([helper.make_node("Nothing", ["raw"], ["maps"])], {}, ["maps"]),
            {},
            "cannot be loaded by ONNX Runtime: ",
        ),
    ],
)
def test_a_model_that_does_not_fit_its_spec_is_one_clear_line(
    model: onnx.ModelProto, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path, model, CONVOLUTION, **changes)
    with pytest.raises(BackboneError) as caught:
        _ = backbones.load_backbone(str(path)).grid
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_models_with_other_inputs_are_refused(tmp_path: Path) -> None:
    two = convolution()
    two.graph.input.append(helper.make_tensor_value_info("text", TensorProto.INT64, [1]))
    path = write(tmp_path, two, CONVOLUTION)
    with pytest.raises(BackboneError, match=r"my-net has 2 inputs \(image, text\): export only"):
        _ = backbones.load_backbone(str(path)).grid
    halves = make_model([helper.make_node("Cast", ["raw"], ["maps"], to=1)], {}, ["maps"])
    halves.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    kernel = numpy_helper.to_array(halves.graph.initializer[0]).astype(np.float16)
    halves.graph.initializer[0].CopyFrom(numpy_helper.from_array(kernel, "kernel"))
    path = write(tmp_path, halves, CONVOLUTION)
    with pytest.raises(
        BackboneError, match=r"takes tensor\(float16\) of shape \(batch, 3, 32, 32\)"
    ):
        _ = backbones.load_backbone(str(path)).grid


@pytest.mark.parametrize(
    "content", [b"junk", b"\x3a\xff\xff", convolution().SerializeToString()[:-9]]
)
def test_a_damaged_model_is_refused(content: bytes, tmp_path: Path) -> None:
    path = write(tmp_path, convolution(), CONVOLUTION)
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(BackboneError, match=r"model\.onnx is not an ONNX model, or it is damaged"):
        backbones.load_backbone(str(path))


def test_layers_and_devices_are_for_other_backbones(tmp_path: Path) -> None:
    path = write(tmp_path, convolution(), CONVOLUTION)
    with pytest.raises(InvalidOption, match="has a fixed layer and runs on the CPU only"):
        backbones.load_backbone(str(path), layer=2)


def test_the_example_of_the_guide_runs(training_images: Path, tmp_path: Path) -> None:
    """The steps are those of the guide, with a shorter training."""
    pytest.importorskip("torch")
    text = GUIDE.read_text(encoding="utf-8")
    example, *_ = re.findall(r"^```toml\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    (tmp_path / "fine.toml").write_text(example, encoding="utf-8")
    training_images.rename(tmp_path / "photos")
    sessions = re.findall(r"^```console\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    commands = re.findall(r"^\$ (.*)$", "".join(sessions), flags=re.MULTILINE)
    printed = {command: _run_step(command, tmp_path) for command in commands}
    show = printed["bm25v models show fine.toml"]
    assert re.sub(r"\w+$", "0123456789abcdef", show.strip()) in text
    assert "photos/" in printed["bm25v search photos/3.png"]
    assert (tmp_path / "why.html").stat().st_size > 10_000


def _run_step(command: str, folder: Path) -> str:
    words = shlex.split(command)
    if words[0] == "cp":
        shutil.copy(downloads.models_folder() / Path(words[1]).name, folder)
        return ""
    if words[1] == "train":
        words += ["--expansion", "2", "--k", "4", "--epochs", "1"]
    module = [sys.executable, "-m", "bm25v", *words[1:]]
    done = subprocess.run(module, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
