"""Auto-encoders of other projects: each project's own formulas are the oracle for what is read."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from bm25v.cli.vocabulary import vocabulary as command
from bm25v.errors import Bm25vError, InvalidOption, MissingExtra, VocabularyError
from bm25v.sae.formats import export_saelens, load, recognise
from bm25v.sae.model import SparseAutoEncoder
from bm25v.vocabulary import Vocabulary

D, V, K = 10, 40, 5
Array = NDArray[Any]
Tensors = dict[str, Array]


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    values = np.random.default_rng([seed, *shape]).normal(scale=scale, size=shape)
    return np.asarray(values, dtype=np.float32)


W_ENC, B_ENC = normal(D, V), normal(V, scale=0.3)
W_DEC, B_DEC = normal(V, D, seed=1), normal(D, seed=2, scale=3)
NAMED = {"W_enc": W_ENC, "b_enc": B_ENC, "W_dec": W_DEC, "b_dec": B_DEC}
X = normal(300, D, seed=3, scale=2) + B_DEC


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Keep tiny matrices on one thread: steady on busy machines."""
    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else 0
    if torch:
        torch.set_num_threads(1)
    yield
    if torch:
        torch.set_num_threads(threads)


def relu(values: Array) -> Array:
    return np.maximum(values, 0)


def top_k(values_nv: Array, k: int = K) -> Array:
    """Keep the k largest values of each row, whatever their sign."""
    order = np.argsort(-values_nv, axis=1)[:, :k]
    kept = np.zeros_like(values_nv)
    np.put_along_axis(kept, order, np.take_along_axis(values_nv, order, axis=1), axis=1)
    return kept


def same(sae: SparseAutoEncoder, acts_nv: Array, decoded_nd: Array) -> None:
    """Expect the codes and reconstructions of X that the project's own formulas give."""
    codes = sae.encode(X)
    dense_nv = np.zeros((len(X), V), np.float32)
    np.put_along_axis(dense_nv, codes.words_pk, codes.activations_pk, axis=1)
    scale = np.abs(acts_nv).max()
    np.testing.assert_array_equal(dense_nv > 0, acts_nv > 0)
    np.testing.assert_allclose(dense_nv, acts_nv, atol=2e-6 * scale)
    np.testing.assert_allclose(sae.decode(codes), decoded_nd, rtol=1e-4, atol=1e-4)


def write_safetensors(folder: Path, file: str, settings: Any, tensors: Tensors) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    save_file({name: np.ascontiguousarray(a) for name, a in tensors.items()}, folder / file)
    (folder / "cfg.json").write_text(json.dumps(settings))
    return folder


def save_torch(tensors: dict[str, Any], path: Path, header: bytes = b"") -> Path:
    torch = pytest.importorskip("torch")
    path.parent.mkdir(exist_ok=True, parents=True)
    with path.open("wb") as file:
        file.write(header)
        torch.save({name: torch.tensor(value) for name, value in tensors.items()}, file)
    return path


# SAELens: its layout before version 6 is flat, with topk as an activation; since then `metadata`

NEW = {
    "architecture": "topk",
    "d_in": D,
    "d_sae": V,
    "dtype": "float32",
    "device": "cpu",
    "apply_b_dec_to_input": True,
    "normalize_activations": "none",
    "reshape_activations": "none",
    "k": K,
    "rescale_acts_by_decoder_norm": False,
    "metadata": {"sae_lens_version": "6.18.0", "hook_name": "blocks.3.hook_resid_post"},
}
OLD = {
    "architecture": "standard",
    "d_in": D,
    "d_sae": V,
    "dtype": "torch.float32",
    "activation_fn_str": "topk",
    "activation_fn_kwargs": {"k": K},
    "apply_b_dec_to_input": True,
    "finetuning_scaling_factor": False,
    "normalize_activations": False,
    "hook_point": "blocks.3.hook_resid_post",
    "context_size": 128,
}


def saelens(tmp_path: Path, settings: Any, tensors: Tensors | None = None) -> Path:
    return write_safetensors(
        tmp_path / "sae", "sae_weights.safetensors", settings, tensors or NAMED
    )


def saelens_forward(
    x: Array, *, subtract: bool = True, rescale: bool = False, finetuned: Array | None = None
) -> tuple[Array, Array]:
    sae_in = x - B_DEC * subtract
    hidden = sae_in @ W_ENC + B_ENC
    norms = np.linalg.norm(W_DEC, axis=-1)
    acts = relu(top_k(hidden * norms if rescale else hidden))
    weighted = acts / norms if rescale else acts
    weighted = weighted if finetuned is None else weighted * finetuned
    return acts, weighted @ W_DEC + B_DEC


@pytest.mark.parametrize("settings", [NEW, OLD])
@pytest.mark.parametrize("subtract", [True, False])
def test_saelens(tmp_path: Path, settings: dict[str, Any], subtract: bool) -> None:
    folder = saelens(tmp_path, {**settings, "apply_b_dec_to_input": subtract})
    assert recognise(folder) == "saelens"
    same(load(folder), *saelens_forward(X, subtract=subtract))
    same(load(folder / "sae_weights.safetensors"), *saelens_forward(X, subtract=subtract))


def test_saelens_subtracts_the_decoder_bias_unless_told_otherwise(tmp_path: Path) -> None:
    settings = {name: OLD[name] for name in OLD if name != "apply_b_dec_to_input"}
    same(load(saelens(tmp_path, settings)), *saelens_forward(X))


def test_saelens_activations_rescaled_by_decoder_norms(tmp_path: Path) -> None:
    sae = load(saelens(tmp_path, {**NEW, "rescale_acts_by_decoder_norm": True}))
    same(sae, *saelens_forward(X, rescale=True))


def test_saelens_finetuned_decoder(tmp_path: Path) -> None:
    factor = np.abs(normal(V, seed=9)) + 0.5
    settings = {**OLD, "finetuning_scaling_factor": True}
    sae = load(saelens(tmp_path, settings, {**NAMED, "scaling_factor": factor}))
    same(sae, *saelens_forward(X, finetuned=factor))
    ones = {**NAMED, "scaling_factor": np.ones(V, np.float32)}
    same(load(saelens(tmp_path, OLD, ones)), *saelens_forward(X))
    with pytest.raises(VocabularyError, match="finetuning_scaling_factor is off"):
        load(saelens(tmp_path, OLD, {**NAMED, "scaling_factor": factor}))


@pytest.mark.parametrize("how", [True, "expected_average_only_in"])
def test_saelens_constant_input_scale_is_folded_where_it_is_stored(
    tmp_path: Path, how: object
) -> None:
    folder = saelens(tmp_path, {**NEW, "normalize_activations": how})
    with pytest.raises(VocabularyError, match="fold_activation_norm_scaling_factor"):
        load(folder)
    (folder / "activation_scaler.json").write_text('{"scaling_factor": 0.37}')
    acts, decoded = saelens_forward(X * np.float32(0.37))
    same(load(folder), acts, decoded / np.float32(0.37))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"architecture": "gated"}, "'gated'"),
        ({"architecture": "jumprelu"}, "'jumprelu'"),
        ({"architecture": "batchtopk"}, "'batchtopk'"),
        ({"architecture": "standard", "activation_fn": "tanh-relu"}, "'tanh-relu'"),
        ({"normalize_activations": "layer_norm"}, "'layer_norm'"),
        ({"normalize_activations": "constant_norm_rescale"}, "'constant_norm_rescale'"),
        ({"k": "many"}, "'many'"),
        ({"k": V + 1}, f"k = {V + 1} "),
        ({"k": None}, "give k"),
        ({"architecture": "standard"}, "activation relu and no k: give k"),
    ],
)
def test_saelens_refused(tmp_path: Path, change: dict[str, Any], found: str) -> None:
    with pytest.raises(VocabularyError, match=re.escape(found)):
        load(saelens(tmp_path, {**NEW, **change}))


def test_relu_autoencoder_with_a_k(tmp_path: Path) -> None:
    settings = {**NEW, "architecture": "standard"}
    same(load(saelens(tmp_path, settings), k=K), *saelens_forward(X))


def test_stored_k_is_overridden(tmp_path: Path) -> None:
    assert load(saelens(tmp_path, NEW), k=3).k == 3
    for impossible in (0, V + 1):
        with pytest.raises(InvalidOption, match=f"from 1 to {V}"):
            load(saelens(tmp_path, NEW), k=impossible)


# saev

TOP_K = {"cls": "TopK", "params": {"key": "top-k", "top_k": K, "aux": {"cls": "AuxK"}}}


def saev(tmp_path: Path, header: Any, **more: Any) -> Path:
    line = json.dumps(header).encode() + b"\n"
    return save_torch({**NAMED, **more}, tmp_path / "run" / "checkpoint" / "sae.pt", line)


def saev_forward(x: Array) -> tuple[Array, Array]:
    acts = top_k(x @ W_ENC + B_ENC)
    assert (acts >= 0).all()
    return acts, acts @ W_DEC + B_DEC


@pytest.mark.parametrize("schema", [2, 3, 4, 5])
def test_saev(tmp_path: Path, schema: int) -> None:
    header = {"schema": schema, "cfg": {"d_model": D, "d_sae": V, "activation": TOP_K}}
    file = saev(tmp_path, {**header, "commit": "3d73f1f", "lib": "0.1.0"})
    for path in (file, file.parent, file.parent.parent):
        assert recognise(path) == "saev"
        same(load(path), *saev_forward(X))


@pytest.mark.parametrize(
    ("header", "k"),
    [
        ({"schema": 1, "cls": "TopK", "cfg": {"d_vit": D, "exp_factor": 4, "top_k": K}}, None),
        ({"schema": 1, "cls": "Relu", "cfg": {"d_vit": D, "exp_factor": 4}}, K),
        ({"d_vit": D, "exp_factor": 4, "sparsity_coeff": 1e-4, "ghost_grads": False}, K),
    ],
)
def test_saev_before_schema_2_subtracted_the_decoder_bias(
    tmp_path: Path, header: Any, k: int | None
) -> None:
    acts = relu(top_k((X - B_DEC) @ W_ENC + B_ENC))
    same(load(saev(tmp_path, header), k=k), acts, acts @ W_DEC + B_DEC)


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ({"schema": 6, "cfg": {"activation": TOP_K}}, "schema 6"),
        ({"schema": 5, "cfg": {"activation": {"cls": "BatchTopK", "params": {}}}}, "'BatchTopK'"),
        ({"schema": 5, "cfg": {"activation": {"cls": "Relu", "params": {}}}}, "Relu and no k"),
        ({"schema": 5, "cfg": []}, "'None'"),
    ],
)
def test_saev_refused(tmp_path: Path, header: Any, found: str) -> None:
    with pytest.raises(VocabularyError, match=found):
        load(saev(tmp_path, header))


# All formats


class Malicious:
    """An object that makes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.mark),)


HEADER = {"schema": 5, "cfg": {"activation": TOP_K}}


def write_pickle(path: Path, content: Any) -> Path:
    torch = pytest.importorskip("torch")
    with path.open("wb") as file:
        file.write(json.dumps(HEADER).encode() + b"\n")
        torch.save(content, file)
    return path


def test_pickled_code_is_refused_and_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "was-run"
    for content in (Malicious(mark), {"W_enc": Malicious(mark)}):
        path = write_pickle(tmp_path / "sae.pt", content)
        with pytest.raises(VocabularyError, match=r"mkdir\), which could run code.* state_dict"):
            load(path)
    assert not mark.exists()


def test_what_is_no_state_dict_is_refused(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = write_pickle(tmp_path / "sae.pt", torch.nn.Linear(D, V))
    with pytest.raises(VocabularyError, match=r"Linear.*save the model's state_dict\(\)"):
        load(path)
    write_pickle(path, {"step": 7, "ae": {}, "optimizer": {}})
    with pytest.raises(VocabularyError, match="a dict of step, ae, optimizer, not a state dict"):
        load(path)


def test_half_precision_of_both_kinds(tmp_path: Path) -> None:
    folder = saelens(tmp_path, NEW, {n: a.astype(np.float16) for n, a in NAMED.items()})
    np.testing.assert_array_equal(load(folder).w_enc_dv, W_ENC.astype(np.float16))
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_torch_file

    brain = {name: torch.tensor(array).to(torch.bfloat16) for name, array in NAMED.items()}
    save_torch_file(brain, folder / "sae_weights.safetensors")
    np.testing.assert_array_equal(load(folder).w_dec_vd, brain["W_dec"].float().numpy())


def test_weights_that_cannot_be_used(tmp_path: Path) -> None:
    for bad in (np.nan, np.inf):
        b_enc = B_ENC.copy()
        b_enc[7] = bad
        with pytest.raises(VocabularyError, match="NaN or infinite values in its encoder bias"):
            load(saelens(tmp_path, NEW, {**NAMED, "b_enc": b_enc}))
    with pytest.raises(VocabularyError, match=r"do not match .*encoder \(40, 10\)"):
        load(saelens(tmp_path, NEW, {**NAMED, "W_enc": W_ENC.T}))
    with pytest.raises(VocabularyError, match="lacks b_enc"):
        load(saelens(tmp_path, NEW, {"W_enc": W_ENC, "W_dec": W_DEC, "b_dec": B_DEC}))
    numbers: Any = np.zeros(V, np.int32)
    with pytest.raises(VocabularyError, match="stores b_enc as I32"):
        load(saelens(tmp_path, NEW, {**NAMED, "b_enc": numbers}))


def test_weights_that_overflow_while_steps_are_folded_are_refused(tmp_path: Path) -> None:
    settings = {**NEW, "rescale_acts_by_decoder_norm": True}
    large = {**NAMED, "W_enc": W_ENC * np.float32(1e30), "W_dec": W_DEC * np.float32(1e30)}
    with pytest.raises(VocabularyError, match="NaN or infinite values in its encoder"):
        load(saelens(tmp_path, settings, large))


@pytest.mark.parametrize("kept", [0, 1, 100, 3000])
def test_damaged_files(tmp_path: Path, kept: int) -> None:
    files = [
        saelens(tmp_path, NEW) / "sae_weights.safetensors",
        saelens(tmp_path / "other", NEW) / "cfg.json",
        saev(tmp_path, HEADER),
    ]
    for file in files:
        content = file.read_bytes()
        file.write_bytes(content[: min(kept, len(content) - 2)])
        with pytest.raises(VocabularyError):
            load(file.parent, k=K)


def test_unknown_layouts_list_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "lonely").mkdir()
    (tmp_path / "lonely" / "cfg.json").write_text("{}")
    for name, found in {
        "empty": "the folder is empty",
        "notes.txt": "it is a file",
        "lonely": "the folder contains cfg.json",
        "nowhere": "there is no such file or folder",
    }.items():
        with pytest.raises(VocabularyError, match=f"{found}.*saelens .*saev "):
            load(tmp_path / name)
    with pytest.raises(VocabularyError, match="not in the format saelens"):
        load(tmp_path / "lonely", format="saelens")
    with pytest.raises(InvalidOption, match="unknown format 'lens': give one of saelens, "):
        load(tmp_path / "lonely", format="lens")


def test_state_dict_of_something_else(tmp_path: Path) -> None:
    file = save_torch(NAMED, tmp_path / "other.pt")
    with pytest.raises(VocabularyError, match="no auto-encoder in a known format"):
        load(file)


def test_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = saev(tmp_path, HEADER)
    monkeypatch.setitem(sys.modules, "torch", None)
    same(load(saelens(tmp_path, NEW)), *saelens_forward(X))
    with pytest.raises(MissingExtra, match=r"reading .pt files .*\[train\]"):
        load(file)


# Out again, and the commands


def test_export_comes_back_the_same_and_is_what_saelens_expects(tmp_path: Path) -> None:
    sae = SparseAutoEncoder(W_ENC, B_ENC, W_DEC, B_DEC, K)
    export_saelens(sae, tmp_path / "out", metadata={"model_name": "toy"})
    again = load(tmp_path / "out")
    for name in ("w_enc_dv", "b_enc_v", "w_dec_vd", "b_dec_d", "k"):
        np.testing.assert_array_equal(getattr(again, name), getattr(sae, name))
    settings = json.loads((tmp_path / "out" / "cfg.json").read_text())
    assert settings.keys() == NEW.keys()
    assert settings["metadata"]["model_name"] == "toy"
    assert load_file(tmp_path / "out" / "sae_weights.safetensors").keys() == NAMED.keys()
    with pytest.raises(VocabularyError, match="already exists"):
        export_saelens(sae, tmp_path / "out")


def run(*words: object) -> Any:
    """Run the command and return its JSON; errors pass through."""
    outcome = CliRunner().invoke(command, [*map(str, words), "--json"])
    if isinstance(outcome.exception, Bm25vError):
        raise outcome.exception
    assert outcome.exit_code == 0, outcome.output
    return json.loads(outcome.stdout)


def test_commands_there_and_back(tmp_path: Path) -> None:
    toy = Vocabulary.load("toy")
    sent = run("export", "toy", "-o", tmp_path / "lens")
    assert (sent["format"], sent["words"]) == ("saelens", 192)
    mine = tmp_path / "mine.vocab"
    facts = run("import", tmp_path / "lens", "-o", mine, "--backbone", "toy")
    assert (facts["format"], facts["k"], facts["k_post"]) == ("saelens", 8, 16)
    assert Vocabulary.load(mine).fingerprint == toy.fingerprint
    assert Vocabulary.load(mine).report["imported"]["format"] == "saelens"
    with pytest.raises(VocabularyError, match="already exists"):
        run("import", tmp_path / "lens", "-o", mine, "--backbone", "toy")
    with pytest.raises(VocabularyError, match="is already a bm25v vocabulary"):
        run("import", mine, "-o", tmp_path / "other.vocab", "--backbone", "toy")


def test_import_that_does_not_fit_the_backbone_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "mine.vocab"
    with pytest.raises(VocabularyError, match=f"those of the SAE {D}"):
        run("import", saelens(tmp_path, NEW), "-o", out, "--backbone", "toy")
    assert not out.exists()
