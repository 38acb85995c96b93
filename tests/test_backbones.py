"""Backbones: the registry, ONNX graphs whose inner tensors become features, and text towers."""

import hashlib
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bm25v import backbones
from bm25v.backbones import downloads, text
from bm25v.backbones.onnx import SPECS, TINYVIT, OnnxBackbone
from bm25v.backbones.onnx_model import create_session
from bm25v.backbones.onnx_spec import ModelShape, PatchOutput
from bm25v.backbones.protocol import Floats
from bm25v.errors import ModelUnavailable, UnknownBackbone


def tiny_model() -> bytes:
    """A graph like TinyViT's: tokens (B, 2, 2, 5) inside, the norm of their mean as output."""
    rng = np.random.default_rng(0)
    arrays = {
        "kernel": rng.standard_normal((5, 3, 4, 4)).astype(np.float32),
        "axes": np.array([1, 2]),
        "norm.weight": rng.standard_normal(5).astype(np.float32),
        "norm.bias": rng.standard_normal(5).astype(np.float32),
    }
    constants = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    norm = ["mean", "norm.weight", "norm.bias"]
    nodes = [
        helper.make_node("Conv", ["input", "kernel"], ["maps"], strides=[4, 4]),
        helper.make_node("Relu", ["maps"], ["active"]),
        helper.make_node("Transpose", ["active"], ["inner/tokens"], perm=[0, 2, 3, 1]),
        helper.make_node("ReduceMean", ["inner/tokens", "axes"], ["mean"], keepdims=0),
        helper.make_node("LayerNormalization", norm, ["output"], epsilon=1e-5),
    ]
    inputs = [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, 8, 8])]
    outputs = [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", 5])]
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, constants)
    opset = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=9)
    return bytes(model.SerializeToString())


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OnnxBackbone:
    """A backbone whose model is made here."""
    content = tiny_model()
    (tmp_path / "tiny.onnx").write_bytes(content)
    monkeypatch.setenv("BM25V_MODELS", str(tmp_path))
    digest = hashlib.sha256(content).hexdigest()
    return OnnxBackbone(
        replace(
            TINYVIT,
            file=replace(TINYVIT.file, name="tiny.onnx", sha256=digest),
            pixels=TINYVIT.pixels._replace(size=8),
            patches=PatchOutput("inner/tokens", "BHWD"),
            dense=TINYVIT.dense._replace(norm_of_mean=("norm.weight", "norm.bias")),
            shape=ModelShape(grid=(2, 2), patch_dim=5, dense_dim=5),
        )
    )


def test_patch_features_and_dense_vector_come_from_one_pass(tiny: OnnxBackbone) -> None:
    image = np.random.default_rng(1).integers(0, 256, (30, 20, 3), dtype=np.uint8)
    pixels = tiny.prepare_image(image)
    assert pixels.shape == (1, 3, 8, 8)
    features = tiny.forward(pixels)
    assert features.patches_pd.shape == (4, 5)
    kernel = numpy_helper.to_array(onnx.load_from_string(tiny_model()).graph.initializer[0])
    top_left = np.maximum((pixels[0, :, :4, :4] * kernel).sum(axis=(1, 2, 3)), 0)
    np.testing.assert_allclose(features.patches_pd[0], top_left, rtol=1e-4, atol=1e-5)


def test_pool_dense_gives_the_dense_vector_of_any_mean(tiny: OnnxBackbone) -> None:
    """The constants that it needs are read from the model."""
    for backbone in (tiny, backbones.load_backbone("toy")):
        image = np.random.default_rng(1).integers(0, 256, (30, 20, 3), dtype=np.uint8)
        features = backbone.forward(backbone.prepare_image(image))
        pooled = backbone.pool_dense(features.patches_pd.mean(axis=0))
        assert pooled is not None
        np.testing.assert_allclose(pooled, features.dense_e, rtol=1e-4, atol=1e-5)
    assert OnnxBackbone(SPECS["dinov2-s"]).pool_dense(features.dense_e) is None


def test_a_batch_gives_the_same_floats_as_single_images(tiny: OnnxBackbone) -> None:
    rng = np.random.default_rng(2)
    toy = backbones.load_backbone("toy")
    for backbone in (tiny, toy):
        images = rng.integers(0, 256, (backbone.batch_size + 1, 30, 20, 3), dtype=np.uint8)
        batch = [backbone.prepare_image(image) for image in images]
        for pixels, features in zip(batch, backbone.forward_batch(batch), strict=True):
            np.testing.assert_array_equal(features.patches_pd, backbone.forward(pixels).patches_pd)
            np.testing.assert_array_equal(features.dense_e, backbone.forward(pixels).dense_e)
        assert backbone.forward_batch([]) == []


def test_pixels_are_normalised_like_imagenet(tiny: OnnxBackbone) -> None:
    grey = np.full((8, 8, 3), 128, dtype=np.uint8)
    expected = (128 / 255 - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])
    np.testing.assert_allclose(tiny.prepare_image(grey)[0, :, 0, 0], expected, rtol=1e-5)


def test_threads_that_start_at_once_load_the_weights_once(
    tiny: OnnxBackbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    created: list[Path] = []

    def create_slowly(
        path: Path, model: bytes, tensors: Sequence[str], *, batch_axis: str | None
    ) -> object:
        time.sleep(0.05)
        created.append(path)
        return create_session(path, model, tensors, batch_axis=batch_axis)

    monkeypatch.setattr("bm25v.backbones.onnx.create_session", create_slowly)
    with ThreadPoolExecutor(4) as pool:
        sessions = list(pool.map(lambda _: tiny.load_weights(), range(4)))
    assert len(created) == 1
    assert all(session is sessions[0] for session in sessions)


@pytest.fixture
def started(tiny: OnnxBackbone, monkeypatch: pytest.MonkeyPatch) -> OnnxBackbone:
    """A built-in backbone, which nothing has started to load yet."""
    monkeypatch.setattr(backbones, "_started", {})
    monkeypatch.setitem(SPECS, "tiny", tiny.spec)
    return tiny


def test_weights_that_a_thread_loads_are_those_of_the_next_backbone(
    started: OnnxBackbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions: list[object] = []

    def create(*arguments: Any, **options: Any) -> object:
        sessions.append(create_session(*arguments, **options))
        return sessions[-1]

    monkeypatch.setattr("bm25v.backbones.onnx.create_session", create)
    backbones.start_loading("tiny")
    assert [backbones.load_backbone("tiny").load_weights()] == sessions
    assert [backbones.load_backbone("tiny").load_weights()] == sessions
    backbones.start_loading("toy")  # has no weights
    assert len(sessions) == 1


def test_damaged_weights_that_a_thread_has_loaded_are_an_error_at_first_use(
    started: OnnxBackbone,
) -> None:
    path, _ = started.spec.read_model()
    path.write_bytes(b"damaged")
    backbones.start_loading("tiny")
    with pytest.raises(ModelUnavailable, match="not the pinned file"):
        backbones.load_backbone("tiny").load_weights()


def test_weights_that_must_be_downloaded_are_not_loaded_by_a_thread(
    started: OnnxBackbone, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BM25V_MODELS", str(tmp_path / "empty"))
    backbones.start_loading("tiny")
    assert backbones.load_backbone("tiny") is not backbones.load_backbone("tiny")


def test_fingerprints_of_built_in_backbones_are_those_of_vocabularies_on_disk() -> None:
    assert {name: backbones.load_backbone(name).fingerprint for name in SPECS} == {
        "tinyvit-5m": "ee03ebccde9ba654",
        "mobilenet-v2": "97f5429631f99356",
        "dinov2-s": "b9b0dbdc02c27dc4",
    }


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UnknownBackbone, match="'resnet'; known are: tinyvit-5m, mobilenet-v2"):
        backbones.load_backbone("resnet")


def photo() -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """A smooth image, the same on every machine."""
    y, x = np.mgrid[0:240, 0:320]
    channels = [np.sin(x / 17 + y / 31), np.cos(y / 13), np.sin((x * y) / 900)]
    return (127 + 120 * np.stack(channels, axis=2)).astype(np.uint8)


@pytest.mark.parametrize("name", ["tinyvit-5m", "mobilenet-v2"])
def test_a_real_model_matches_its_specification(name: str) -> None:
    backbone = backbones.load_backbone(name)
    features = backbone.forward(backbone.prepare_image(photo()))
    rows, columns = backbone.grid
    assert features.patches_pd.shape == (rows * columns, backbone.patch_dim)
    assert features.dense_e.shape == (backbone.dense_dim,)
    assert features.patches_pd.dtype == features.dense_e.dtype == np.float32
    pooled = backbone.pool_dense(features.patches_pd.mean(axis=0))
    assert pooled is not None
    np.testing.assert_allclose(pooled, features.dense_e, rtol=1e-4, atol=1e-5)
    spread = features.patches_pd.std(axis=0)
    assert (spread > 0).mean() > 0.5


def test_an_added_output_does_not_change_the_dense_vector() -> None:
    import onnxruntime

    backbone = OnnxBackbone(TINYVIT)
    pixels = backbone.prepare_image(photo())
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    plain = onnxruntime.InferenceSession(
        downloads.read_file(TINYVIT.file), options, providers=["CPUExecutionProvider"]
    )
    (expected,) = plain.run(["output"], {"input": pixels})
    np.testing.assert_allclose(backbone.forward(pixels).dense_e, expected[0], rtol=1e-4, atol=1e-5)


def test_a_session_for_one_image_gives_the_same_bits() -> None:
    assert TINYVIT.batch_axis
    backbone, general = OnnxBackbone(TINYVIT), OnnxBackbone(replace(TINYVIT, batch_axis=None))
    pixels = backbone.prepare_image(photo())
    for actual, expected in zip(backbone.forward(pixels), general.forward(pixels), strict=True):
        np.testing.assert_array_equal(actual, expected)
    mean_d = backbone.forward(pixels).patches_pd.mean(axis=0)
    np.testing.assert_array_equal(backbone.pool_dense(mean_d), general.pool_dense(mean_d))


class StubTower(text.TextTower):
    """A tower without a model, which records the texts that it has to compute."""

    def __init__(self) -> None:
        super().__init__(self.record)
        self.computed: list[str] = []

    def record(self, texts: list[str]) -> Floats:
        time.sleep(0.01)
        self.computed += texts
        return np.array([[ord(word[0])] for word in texts], dtype=np.float32)


def test_vectors_of_texts_are_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "CACHE_SIZE", 3)
    tower = StubTower()
    tower.embed(["a", "b"])
    tower.embed(["A", "c", "d", "d"])
    assert tower.computed == ["a", "b", "c", "d"]
    tower.embed(["b", "d"])
    assert tower.computed == ["a", "b", "c", "d"]
    assert tower.embed(list("vwxyz"))[:, 0].tolist() == [ord(letter) for letter in "vwxyz"]
    tower.embed(["z", "v"])
    assert tower.computed[-1] == "v", "only the last three are kept"


def test_threads_compute_the_vector_of_a_text_once() -> None:
    tower = StubTower()
    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(tower.embed, [["cat", "dog"]] * 4))) == 4
    assert tower.computed == ["cat", "dog"]
