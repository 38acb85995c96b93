"""The matrix product of the SAE, in one thread: several threads encode images at once.

ONNX Runtime computes it. The BLAS of numpy would use all cores for each product, where nobody has
limited its threads, and takes longer in one.
"""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bm25v.privacy import import_quietly

Floats = NDArray[np.float32]

# ONNX models are protocol buffers; these are numbers of fields, and whole fields.
_GRAPH, _OPERATOR_SET = 7, 8  # of a model
_NODE, _NAME, _INPUT, _OUTPUT = 1, 2, 11, 12  # of a graph
_NODE_INPUT, _NODE_OUTPUT, _NODE_TYPE = 1, 2, 4
_VALUE_NAME, _VALUE_TYPE, _TENSOR_TYPE = 1, 2, 1
_IR_VERSION_8, _VERSION_13, _FLOAT = b"\x08\x08", b"\x10\x0d", b"\x08\x01"


def multiply_add(rows_pd: Floats, matrix_dv: Floats, bias_v: Floats, *, out: Floats) -> None:
    """Write the product of two matrices plus a vector into `out`.

    >>> twos, product = np.full((2, 2), 2, np.float32), np.empty((1, 2), np.float32)
    >>> multiply_add(np.ones((1, 2), np.float32), twos, np.ones(2, np.float32), out=product)
    >>> product.tolist()
    [[5.0, 5.0]]
    """
    (product_pv,) = _session().run(None, {"rows": rows_pd, "matrix": matrix_dv})
    np.add(product_pv, bias_v, out=out)


@cache
def _session() -> Any:
    onnxruntime = import_quietly("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # it would keep the memory of the largest product
    return onnxruntime.InferenceSession(_model(), options, providers=["CPUExecutionProvider"])


def _model() -> bytes:
    """Return a model with one operator."""
    inputs, output = (b"rows", b"matrix"), b"product"
    node = b"".join(_field(_NODE_INPUT, name) for name in inputs)
    node += _field(_NODE_OUTPUT, output) + _field(_NODE_TYPE, b"MatMul")
    graph = _field(_NODE, node) + _field(_NAME, b"product")
    graph += b"".join(_field(_INPUT, _describe_tensor(name)) for name in inputs)
    graph += _field(_OUTPUT, _describe_tensor(output))
    return _IR_VERSION_8 + _field(_GRAPH, graph) + _field(_OPERATOR_SET, _VERSION_13)


def _describe_tensor(name: bytes) -> bytes:
    return _field(_VALUE_NAME, name) + _field(_VALUE_TYPE, _field(_TENSOR_TYPE, _FLOAT))


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content  # of at most 127 bytes
