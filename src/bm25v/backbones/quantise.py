"""An ONNX model in, the same model with weights of 8 bits out, which runs twice as fast.

Products of a tensor and a constant matrix are computed in integers: the matrix is rounded here,
with one scale per column, and the tensor when the model runs. The result depends on the model
alone, not on other packages or the machine, so one fingerprint identifies it. Not this module's
job: which models lose no quality by it.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bm25v.protobuf import field, read_fields, read_numbers

# Numbers of fields in ONNX's messages.
_IR_VERSION, _GRAPH = 1, 7  # of a model
_NODE, _INITIALIZER = 1, 5  # of a graph
_INPUT, _OUTPUT, _OPERATOR, _ATTRIBUTE = 1, 2, 4, 5  # of a node
_DIMENSION, _TYPE, _NAME, _VALUES = 1, 2, 8, 9  # of a constant
_FLOAT, _INT8 = 1, 3  # types of constants
_TO_FLOAT = field(1, "to") + field(3, _FLOAT) + field(20, 2)  # attribute of Cast; 2: an integer

# Not 127: processors without VNNI sum two products in 16 bits, which would overflow.
_LARGEST = 64

_Matrices = Mapping[str, NDArray[np.float32]]


def quantise_weights(model: bytes) -> bytes:
    """Return a model that computes with constant matrices of 8 bits."""
    view = memoryview(model)
    parts = [field(_IR_VERSION, read_numbers(view, _IR_VERSION)[0])]
    for number, value in read_fields(view):
        content = b"".join(_rewrite_graph(value)) if number == _GRAPH else bytes(value)
        parts.append(field(number, content))
    return b"".join(parts)


def _rewrite_graph(graph: memoryview) -> Iterator[bytes]:
    """Yield the fields of a graph; products of constant matrices are replaced."""
    matrices: _Matrices = dict(_find_matrices(graph))
    for number, value in read_fields(graph):
        if number == _NODE and (product := _find_product(value, matrices)):
            yield from _multiply_integers(*product)
        elif number != _INITIALIZER or _read_text(value, _NAME)[0] not in matrices:
            yield field(number, bytes(value))
    for name, matrix_kn in matrices.items():
        yield from _quantise_matrix(name, matrix_kn)


def _find_matrices(graph: memoryview) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield the constant matrices that only products use, by name."""
    nodes = [value for number, value in read_fields(graph) if number == _NODE]
    inputs = [(_read_text(node, _OPERATOR), _read_text(node, _INPUT)) for node in nodes]
    multiplied = {names[1] for operator, names in inputs if operator == ["MatMul"]}
    others = {
        name
        for operator, names in inputs
        for position, name in enumerate(names)
        if operator != ["MatMul"] or position != 1
    }
    for number, value in read_fields(graph):
        if number != _INITIALIZER:
            continue
        (name,), shape = _read_text(value, _NAME), read_numbers(value, _DIMENSION)
        is_float = read_numbers(value, _TYPE) == [_FLOAT]
        if name in multiplied - others and len(shape) == 2 and is_float:
            (values,) = (content for key, content in read_fields(value) if key == _VALUES)
            yield name, np.frombuffer(values, "<f4").reshape(shape)


def _find_product(node: memoryview, matrices: _Matrices) -> tuple[str, str, str] | None:
    """Return the tensor, the matrix and the output of a node that multiplies by a matrix."""
    inputs = _read_text(node, _INPUT)
    if _read_text(node, _OPERATOR) != ["MatMul"] or inputs[1] not in matrices:
        return None
    return inputs[0], inputs[1], _read_text(node, _OUTPUT)[0]


def _multiply_integers(tensor: str, matrix: str, output: str) -> Iterator[bytes]:
    """Yield the nodes of a product in integers."""
    rounded, scale, zero = (f"{output}/{part}" for part in ("rounded", "scale", "zero"))
    integers, floats, scales_n = (f"{output}/{part}" for part in ("integers", "floats", "scales"))
    yield _node("DynamicQuantizeLinear", [tensor], [rounded, scale, zero])
    yield _node("MatMulInteger", [rounded, f"{matrix}/int8", zero], [integers])
    yield _node("Cast", [integers], [floats], field(_ATTRIBUTE, _TO_FLOAT))
    yield _node("Mul", [scale, f"{matrix}/scales"], [scales_n])
    yield _node("Mul", [floats, scales_n], [output])


def _quantise_matrix(name: str, matrix_kn: NDArray[np.float32]) -> Iterator[bytes]:
    """Yield a matrix in integers, and the scales of its columns."""
    scales_n = np.abs(matrix_kn).max(axis=0) / np.float32(_LARGEST)
    rounded_kn = np.rint(matrix_kn / np.where(scales_n > 0, scales_n, 1)).astype(np.int8)
    yield _constant(f"{name}/int8", _INT8, rounded_kn)
    yield _constant(f"{name}/scales", _FLOAT, scales_n.astype("<f4"))


def _node(
    operator: str, inputs: Sequence[str], outputs: Sequence[str], attribute: bytes = b""
) -> bytes:
    names = [field(_INPUT, name) for name in inputs] + [field(_OUTPUT, name) for name in outputs]
    return field(_NODE, b"".join([*names, field(_OPERATOR, operator), attribute]))


def _constant(name: str, kind: int, values: NDArray[np.generic]) -> bytes:
    shape = [field(_DIMENSION, size) for size in values.shape]
    content = [field(_TYPE, kind), field(_NAME, name), field(_VALUES, values.tobytes())]
    return field(_INITIALIZER, b"".join([*shape, *content]))


def _read_text(message: memoryview, number: int) -> list[str]:
    return [str(value, "utf-8") for key, value in read_fields(message) if key == number]
