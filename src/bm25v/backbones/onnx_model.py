"""ONNX files: the hash of a model, and a session that computes any of its tensors.

The package `onnx` is not needed: the few fields that matter are read and written here, in the
format of protocol buffers.
"""

import difflib
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bm25v import privacy
from bm25v.display import first_line
from bm25v.errors import BackboneError

# Numbers of fields in ONNX's messages.
_GRAPH = 7  # of a model
_NODE, _INITIALIZER, _OUTPUT = 1, 5, 12  # of a graph
_NODE_OUTPUT = 2
_OUTPUT_NAME = 1
_INITIALIZER_NAME, _EXTERNAL_DATA = 8, 13  # the second: pairs of a key and a value
_KEY, _VALUE = 1, 2

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # how a field's value is stored
_EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"
_LISTED_OUTPUTS = 8

# Where every shape is known, these apply to more nodes, and change the last bits of features.
_MORE_FUSIONS = ["MatMulAddFusion", "MatMulScaleFusion"]


def hash_model(path: Path) -> str:
    """Return the SHA-256 of a model's file; if its weights are in other files, of all of them."""
    model = path.read_bytes()
    digest = hashlib.sha256(model)
    for name in _find_external_files(path, model):
        try:
            with (path.parent / name).open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise BackboneError(
                f"{path} keeps weights in {name}, which cannot be read ({error.strerror}): "
                "copy that file to the same folder"
            ) from error
    return digest.hexdigest()


def create_session(
    path: Path, model: bytes, tensors: Sequence[str], *, batch_axis: str | None = None
) -> Any:
    """Return an ONNX Runtime session that can also compute these inner tensors and constants.

    With the name of its batch axis it takes one image at a time, and is created faster.
    """
    onnxruntime = privacy.import_quietly("onnxruntime")
    options = onnxruntime.SessionOptions()
    # Callers encode several images at once in threads of their own, which is faster than one image
    # on several threads and gives the same floats on any number of cores.
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry(_EXTERNAL_FOLDER, str(path.parent))
    if batch_axis is not None:
        options.add_free_dimension_override_by_name(batch_axis, 1)
        options.enable_mem_reuse = False  # as for unknown shapes; a forward pass is faster then
    with _report_damage(path):
        outputs = _read_names(model, _OUTPUT, _OUTPUT_NAME)
    # Messages merge by concatenation: what is appended adds outputs to the graph.
    names = (_field(_OUTPUT_NAME, tensor.encode()) for tensor in tensors if tensor not in outputs)
    more_outputs = b"".join(_field(_GRAPH, _field(_OUTPUT, name)) for name in names)
    providers = ["CPUExecutionProvider"]
    try:
        return onnxruntime.InferenceSession(
            model + more_outputs,
            options,
            providers=providers,
            disabled_optimizers=None if batch_axis is None else _MORE_FUSIONS,
        )
    except Exception as error:  # ONNX Runtime's errors have no common class
        _check_tensors(path, model, outputs, tensors)
        reason = first_line(str(error))
        raise BackboneError(f"{path} cannot be loaded by ONNX Runtime: {reason}") from error


def _check_tensors(path: Path, model: bytes, outputs: list[str], tensors: Sequence[str]) -> None:
    """Raise an error that lists the outputs, if the model lacks one of the tensors."""
    with _report_damage(path):
        inner = _read_names(model, _NODE, _NODE_OUTPUT)
        constants = _read_names(model, _INITIALIZER, _INITIALIZER_NAME)
    for tensor in tensors:
        if tensor in (*outputs, *inner, *constants):
            continue
        listed = ", ".join(outputs[:_LISTED_OUTPUTS])
        more = ", …" if len(outputs) > _LISTED_OUTPUTS else ""
        close = [name for name in difflib.get_close_matches(tensor, inner) if name not in outputs]
        hint = f"; similar inner tensors: {', '.join(close)}" if close else ""
        raise BackboneError(f"{path} has no output {tensor!r}, only: {listed}{more}{hint}")


def _find_external_files(path: Path, model: bytes) -> list[str]:
    """Return the names of the files beside a model that hold weights; most models have none."""
    with _report_damage(path):
        pairs = [
            {key: str(text, "utf-8") for key, text in _read_fields(entry)}
            for initializer in _read_graph(model, _INITIALIZER)
            for number, entry in _read_fields(initializer)
            if number == _EXTERNAL_DATA
        ]
        return sorted({pair[_VALUE] for pair in pairs if pair[_KEY] == "location"})


def _read_names(model: bytes, message: int, name: int) -> list[str]:
    """Return the names that messages of one kind have in a model's graph."""
    return [
        str(value, "utf-8")
        for content in _read_graph(model, message)
        for number, value in _read_fields(content)
        if number == name
    ]


def _read_graph(model: bytes, message: int) -> Iterator[memoryview]:
    for number, graph in _read_fields(memoryview(model)):
        if number == _GRAPH:
            yield from (content for key, content in _read_fields(graph) if key == message)


@contextmanager
def _report_damage(path: Path) -> Iterator[None]:
    try:
        yield
    except (KeyError, ValueError) as error:
        raise BackboneError(f"{path} is not an ONNX model, or it is damaged: {error}") from error


def _field(number: int, payload: bytes) -> bytes:
    head, length = bytes([number << 3 | _BYTES]), len(payload)
    while length > 127:
        head, length = head + bytes([length & 127 | 128]), length >> 7
    return head + bytes([length]) + payload


def _read_fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the number and the bytes of each text, bytes or message field; skip numbers."""
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        kind = key & 7
        if kind in (_VARINT, _BYTES):
            length, at = _read_varint(message, at)
            if kind == _VARINT:
                continue
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"no protocol buffer has a value of kind {kind}")
        if length > len(message) - at:
            raise ValueError("the protocol buffer is cut off")
        if kind == _BYTES:
            yield key >> 3, message[at : at + length]
        at += length


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return a number and the position after it; seven bits per byte, the lowest ones first."""
    value = 0
    for index, byte in enumerate(message[at : at + 10]):
        value |= (byte & 127) << 7 * index
        if byte < 128:
            return value, at + index + 1
    raise ValueError("the protocol buffer is cut off, or has a number of more than ten bytes")
