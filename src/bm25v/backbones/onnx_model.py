"""ONNX files: the hash of a model, and a session that computes any of its tensors.

In: the path of a model, and its bytes. Out: a SHA-256, an ONNX Runtime session. The package `onnx`
is not needed: the few fields that matter are read and written by `protobuf`. Not this module's job:
what the tensors mean (see `onnx_spec`).
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
from bm25v.protobuf import field, read_fields

# Numbers of fields in ONNX's messages.
_GRAPH = 7  # of a model
_NODE, _INITIALIZER, _OUTPUT = 1, 5, 12  # of a graph
_NODE_OUTPUT = 2
_OUTPUT_NAME = 1
_INITIALIZER_NAME, _EXTERNAL_DATA = 8, 13  # the second: pairs of a key and a value
_KEY, _VALUE = 1, 2

_EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"
_LISTED_OUTPUTS = 8


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


def create_session(path: Path, model: bytes, tensors: Sequence[str]) -> Any:
    """Return an ONNX Runtime session that can also compute these inner tensors and constants."""
    import onnxruntime

    privacy.warn_about_telemetry()
    options = onnxruntime.SessionOptions()
    # Callers encode several images at once in threads of their own, which is faster than one image
    # on several threads and gives the same floats on any number of cores.
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry(_EXTERNAL_FOLDER, str(path.parent))
    with _report_damage(path):
        outputs = _read_names(model, _OUTPUT, _OUTPUT_NAME)
    inner = b"".join(_declare_output(tensor) for tensor in tensors if tensor not in outputs)
    providers = ["CPUExecutionProvider"]
    try:
        return onnxruntime.InferenceSession(model + inner, options, providers=providers)
    except Exception as error:  # ONNX Runtime's errors have no common class
        _check_tensors(path, model, tensors)
        reason = first_line(str(error))
        raise BackboneError(f"{path} cannot be loaded by ONNX Runtime: {reason}") from error


def _declare_output(tensor: str) -> bytes:
    """Return bytes that, at the end of a model, make an inner tensor one of its outputs.

    Protocol buffers merge by concatenation: appending `ModelProto{graph{output{name}}}` adds one
    output.
    """
    return field(_GRAPH, field(_OUTPUT, field(_OUTPUT_NAME, tensor)))


def _check_tensors(path: Path, model: bytes, tensors: Sequence[str]) -> None:
    """Raise an error that lists the outputs, if the model lacks one of the tensors."""
    with _report_damage(path):
        outputs = _read_names(model, _OUTPUT, _OUTPUT_NAME)
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
            {key: str(text, "utf-8") for key, text in read_fields(entry)}
            for initializer in _read_graph(model, _INITIALIZER)
            for number, entry in read_fields(initializer)
            if number == _EXTERNAL_DATA
        ]
        return sorted({pair[_VALUE] for pair in pairs if pair[_KEY] == "location"})


def _read_names(model: bytes, message: int, name: int) -> list[str]:
    """Return the names that messages of one kind have in a model's graph."""
    return [
        str(value, "utf-8")
        for content in _read_graph(model, message)
        for number, value in read_fields(content)
        if number == name
    ]


def _read_graph(model: bytes, message: int) -> Iterator[memoryview]:
    for number, graph in read_fields(memoryview(model)):
        if number == _GRAPH:
            yield from (content for key, content in read_fields(graph) if key == message)


@contextmanager
def _report_damage(path: Path) -> Iterator[None]:
    try:
        yield
    except (KeyError, ValueError) as error:
        raise BackboneError(f"{path} is not an ONNX model, or it is damaged: {error}") from error
