"""Models with weights of 8 bits: the plain formula, and ONNX Runtime's own quantiser."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bm25v.backbones.quantise import quantise_weights

RNG = np.random.default_rng(3)
CONSTANTS = {
    "first": RNG.standard_normal((8, 32)).astype(np.float32) * np.linspace(0.1, 3, 32, dtype="f4"),
    "second": RNG.standard_normal((32, 4)).astype(np.float32),
    "third": RNG.standard_normal((4, 4)).astype(np.float32),
    "bias": RNG.standard_normal(32).astype(np.float32),
}
CONSTANTS["second"][:, 2] = 0


def make_model() -> bytes:
    """Return a model with two products by matrices, and three that must stay as they are."""
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["hidden"]),
        helper.make_node("Add", ["hidden", "bias"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["active"]),
        helper.make_node("MatMul", ["active", "second"], ["small"]),
        helper.make_node("Transpose", ["small"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["turned", "small"], ["squared"]),  # of two tensors
        helper.make_node("MatMul", ["squared", "third"], ["mixed"]),
        helper.make_node("Add", ["mixed", "third"], ["y"]),  # the matrix is used elsewhere, too
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 5, 8])],
        [
            helper.make_tensor_value_info("small", TensorProto.FLOAT, ["batch", 5, 4]),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4, 4]),
        ],
        [numpy_helper.from_array(array, name) for name, array in CONSTANTS.items()],
    )
    opset = [helper.make_opsetid("", 14)]
    return bytes(helper.make_model(graph, opset_imports=opset, ir_version=7).SerializeToString())


def run(model: bytes | str, x: NDArray[np.float32]) -> Any:
    """Return the tensor "small", which two products by matrices make."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(["small"], {"x": x})[0]


def test_the_matrices_are_rounded_by_the_plain_formula() -> None:
    quantised = onnx.load_from_string(quantise_weights(make_model()))
    onnx.checker.check_model(quantised)
    arrays = {entry.name: numpy_helper.to_array(entry) for entry in quantised.graph.initializer}
    assert set(arrays) - {"third", "bias"} == {
        f"{name}/{part}" for name in ("first", "second") for part in ("int8", "scales")
    }
    for name in ("first", "second"):
        scales_n = arrays[f"{name}/scales"]
        np.testing.assert_array_equal(scales_n, np.abs(CONSTANTS[name]).max(axis=0) / 64)
        assert arrays[f"{name}/int8"].dtype == np.int8
        error_kn = arrays[f"{name}/int8"] * scales_n - CONSTANTS[name]
        assert np.all(np.abs(error_kn) <= scales_n * np.float32(0.5001))


def test_the_result_is_that_of_onnx_runtimes_own_quantiser(tmp_path: Path) -> None:
    from onnxruntime.quantization import quantize_dynamic

    model = make_model()
    (tmp_path / "model.onnx").write_bytes(model)
    expected = str(tmp_path / "int8.onnx")
    settings = {"per_channel": True, "reduce_range": True, "op_types_to_quantize": ["MatMul"]}
    quantize_dynamic(tmp_path / "model.onnx", expected, **settings)
    x = RNG.standard_normal((3, 5, 8)).astype(np.float32)
    own = run(quantise_weights(model), x)
    np.testing.assert_allclose(own, run(expected, x), rtol=1e-5, atol=1e-5)
    difference = np.linalg.norm(own - run(model, x)) / np.linalg.norm(run(model, x))
    assert 0 < difference < 0.03


def test_a_model_without_such_products_stays_the_same() -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2]) for name in "xy"]
    graph = helper.make_graph([node], "tiny", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=7)
    assert onnx.load_from_string(quantise_weights(model.SerializeToString())) == model
