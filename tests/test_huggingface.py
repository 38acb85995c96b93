"""Hugging Face backbones, on tiny random models saved in the hub's own format."""

import json
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bm25v import backbones
from bm25v.backbones import checkpoint
from bm25v.backbones.huggingface import HuggingFaceBackbone, find_device
from bm25v.errors import (
    BackboneError,
    InvalidOption,
    MissingExtra,
    ModelUnavailable,
    UnknownBackbone,
)
from bm25v.sae.model import SparseAutoEncoder
from bm25v.store.encoding import EncodedImage, NamedImage, encode_images
from bm25v.vocabulary import Vocabulary
from tests.children import run_python

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")

from bm25v.training.patches import (  # noqa: E402 - needs torch
    Extraction,
    PatchStore,
    extract_patches,
)

SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
}
TEXT = {**SIZES, "vocab_size": 40, "num_hidden_layers": 1}
HALF = [0.5, 0.5, 0.5]
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
SQUARE = {"size": {"height": 32, "width": 32}, "resample": 2, "image_mean": HALF, "image_std": HALF}
CENTRE = {
    "size": {"shortest_edge": 40},
    "crop_size": {"height": 32, "width": 32},
    "do_center_crop": True,
    "resample": 3,
    **IMAGENET,
}
NAFLEX = {**SQUARE, "size": None, "patch_size": 8, "max_num_patches": 17}


def siglip() -> Any:
    vision = {**SIZES, "image_size": 32, "patch_size": 8}
    return transformers.SiglipModel(
        transformers.SiglipConfig(text_config=TEXT, vision_config=vision)
    )


def siglip2() -> Any:
    vision = {**SIZES, "num_patches": 9, "patch_size": 8}
    return transformers.Siglip2Model(
        transformers.Siglip2Config(text_config=TEXT, vision_config=vision)
    )


def clip() -> Any:
    vision = {**SIZES, "image_size": 32, "patch_size": 8}
    return transformers.CLIPModel(
        transformers.CLIPConfig(text_config=TEXT, vision_config=vision, projection_dim=12)
    )


def clip_vision() -> Any:
    return transformers.CLIPVisionModel(
        transformers.CLIPVisionConfig(**SIZES, image_size=32, patch_size=8)
    )


def dinov2() -> Any:
    sizes = {key: SIZES[key] for key in SIZES if key != "intermediate_size"}
    return transformers.Dinov2Model(
        transformers.Dinov2Config(**sizes, mlp_ratio=2, image_size=64, patch_size=8)
    )


def registers() -> Any:
    sizes = {key: SIZES[key] for key in SIZES if key != "intermediate_size"}
    config = transformers.Dinov2WithRegistersConfig(
        **sizes, mlp_ratio=2, image_size=64, patch_size=8, num_register_tokens=4
    )
    return transformers.Dinov2WithRegistersModel(config)


def dinov3() -> Any:
    config = transformers.DINOv3ViTConfig(
        **SIZES, image_size=32, patch_size=8, num_register_tokens=3
    )
    return transformers.DINOv3ViTModel(config)


def vit() -> Any:
    config = transformers.ViTConfig(**SIZES, image_size=32, patch_size=8, num_labels=5)
    return transformers.ViTForImageClassification(config)


FAMILIES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "siglip": (siglip, SQUARE),
    "siglip2": (siglip2, NAFLEX),
    "clip": (clip, CENTRE),
    "clip_vision": (clip_vision, CENTRE),
    "dinov2": (dinov2, CENTRE),
    "registers": (registers, CENTRE),
    "dinov3": (dinov3, SQUARE),
    "vit": (vit, SQUARE),
}


def save(model: Any, folder: Path, settings: dict[str, Any]) -> Path:
    """Write a model and its preprocessing as the hub keeps them."""
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def make(family: str, folder: Path, *, seed: int = 0) -> tuple[Any, Path]:
    """Save a tiny model whose numbers are all random, and return it."""
    build, settings = FAMILIES[family]
    torch.manual_seed(seed)
    model = build().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # also those that start as zeros or ones
            parameter.normal_(std=0.2)
    return model, save(model, folder, settings)


def photo(height: int = 50, width: int = 70) -> NDArray[np.uint8]:
    return np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)


def naflex_patches(pixels: NDArray[np.float32]) -> dict[str, Any]:
    cut = [
        pixels[0, :, y : y + 8, x : x + 8].transpose(1, 2, 0).reshape(-1)
        for y in range(0, 32, 8)
        for x in range(0, 32, 8)
    ]
    return {
        "pixel_values": torch.from_numpy(np.stack(cut)[None]),
        "pixel_attention_mask": torch.ones(1, 16, dtype=torch.int),
        "spatial_shapes": torch.tensor([[4, 4]]),
    }


def directly(family: str, model: Any, pixels: NDArray[np.float32]) -> tuple[Any, Any]:
    """Return all hidden states and the dense vector, computed by transformers alone."""
    inputs = {"pixel_values": torch.from_numpy(pixels)}
    if family == "siglip2":
        inputs = naflex_patches(pixels)
    vision = getattr(model, "vit" if family == "vit" else "vision_model", model)
    with torch.inference_mode():
        answer = vision(**inputs, output_hidden_states=True)
        if family == "clip":
            dense = model.visual_projection(answer.pooler_output)
        elif family == "vit":
            dense = answer.last_hidden_state[:, 0]
        else:
            dense = answer.pooler_output
    return [state[0].numpy() for state in answer.hidden_states], dense[0].numpy()


@pytest.mark.parametrize("family", FAMILIES)
def test_features_equal_those_of_the_model(family: str, tmp_path: Path) -> None:
    model, folder = make(family, tmp_path)
    extra = {"siglip": 0, "siglip2": 0, "registers": 1 + 4, "dinov3": 1 + 3}.get(family, 1)
    for layer, index in ((None, 2), (0, 0), (-2, 1)):
        backbone = backbones.load_backbone(str(folder), layer=layer, device="cpu")
        pixels = backbone.prepare_image(photo())
        states, dense = directly(family, model, pixels)
        features = backbone.forward(pixels)
        np.testing.assert_allclose(
            features.patches_pd, states[index + 1][extra:], rtol=1e-4, atol=1e-5
        )
        np.testing.assert_allclose(features.dense_e, dense, rtol=1e-4, atol=1e-5)
        assert (backbone.input_size, backbone.grid) == (32, (4, 4))
        assert features.patches_pd.shape == (16, backbone.patch_dim) == (16, 16)
        assert features.dense_e.shape == (backbone.dense_dim,)
        assert features.patches_pd.dtype == features.dense_e.dtype == np.float32
    assert backbone.dense_dim == (12 if family == "clip" else 16)


def test_one_pass_of_the_vision_tower_gives_patches_and_dense_vector(tmp_path: Path) -> None:
    _, folder = make("siglip", tmp_path)
    backbone = HuggingFaceBackbone(str(folder), layer=1)
    model = backbone.load_weights()
    assert not any("text" in name for name, _ in model.named_parameters())
    calls: list[str] = []
    for name, module in model.named_modules():
        module.register_forward_hook(lambda *_, name=name: calls.append(name))
    backbone.forward(backbone.prepare_image(photo()))
    assert len(calls) == len(set(calls)) > 20


def test_the_papers_geometry(tmp_path: Path) -> None:
    vision = {
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_attention_heads": 16,
        "num_hidden_layers": 1,
        "image_size": 384,
        "patch_size": 14,
    }
    config = transformers.SiglipConfig(text_config=TEXT, vision_config=vision)
    settings = {**SQUARE, "size": {"height": 384, "width": 384}}
    save(transformers.SiglipModel(config), tmp_path, settings)
    backbone = backbones.load_backbone(str(tmp_path))
    features = backbone.forward(backbone.prepare_image(photo()))
    assert (backbone.grid, backbone.patch_dim, backbone.dense_dim) == ((27, 27), 1152, 1152)
    assert features.patches_pd.shape == (729, 1152)
    assert features.dense_e.shape == (1152,)


@pytest.mark.parametrize("resample", [2, 3])
@pytest.mark.parametrize("shape", [(50, 70), (20, 9), (32, 32)])
def test_siglip_inputs_equal_those_of_transformers(
    resample: int, shape: tuple[int, int], tmp_path: Path
) -> None:
    processor = transformers.SiglipImageProcessorPil(
        size={"height": 32, "width": 32}, resample=resample
    )
    processor.save_pretrained(tmp_path)
    ours = checkpoint.read_preparation(tmp_path, image_size=32).prepare_image(photo(*shape))
    theirs = processor(photo(*shape), return_tensors="np")["pixel_values"]
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("kind", ["CLIPImageProcessorPil", "ViTImageProcessorPil"])
def test_square_inputs_equal_those_of_transformers_without_cropping(
    kind: str, tmp_path: Path
) -> None:
    crop = {"size": {"shortest_edge": 32}, "crop_size": 32} if "CLIP" in kind else {"size": 32}
    processor = getattr(transformers, kind)(**crop)
    processor.save_pretrained(tmp_path)
    ours = checkpoint.read_preparation(tmp_path, image_size=32).prepare_image(photo(50, 50))
    theirs = processor(photo(50, 50), return_tensors="np")["pixel_values"]
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_square_naflex_inputs_equal_those_of_transformers(tmp_path: Path) -> None:
    processor = transformers.Siglip2ImageProcessorPil(patch_size=8, max_num_patches=16)
    processor.save_pretrained(tmp_path)
    ours = checkpoint.read_preparation(tmp_path, image_size=24).prepare_image(photo(50, 50))
    theirs = processor(photo(50, 50), return_tensors="np")["pixel_values"]
    np.testing.assert_allclose(naflex_patches(ours)["pixel_values"], theirs, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "side"),
    [
        ({"size": 48}, 48),
        ({"size": {"shortest_edge": 40}}, 40),
        ({"size": 40, "crop_size": 32, "do_center_crop": True}, 32),
        ({"size": 48, "do_resize": False}, 24),
        ({}, 24),
    ],
)
def test_input_sizes_are_read_in_every_notation(
    settings: dict[str, Any], side: int, tmp_path: Path
) -> None:
    plain = {"resample": 3, "do_normalize": False, "do_rescale": False}
    inner = {"image_processor": {**settings, **plain}}
    (tmp_path / "processor_config.json").write_text(json.dumps(inner))
    preparation = checkpoint.read_preparation(tmp_path, image_size=24)
    grey = np.full((10, 10, 3), 77, dtype=np.uint8)
    np.testing.assert_array_equal(
        preparation.prepare_image(grey), np.full((1, 3, side, side), 77.0)
    )


def test_the_fingerprint_does_not_depend_on_the_code() -> None:
    """The repr of a preparation is part of it: vocabularies on disk hold such fingerprints."""
    preparation = checkpoint.Preparation(32, 2, 0.5, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert repr(preparation) == (
        "Preparation(side=32, resample=2, scale=0.5, mean=(0.1, 0.2, 0.3), "
        "deviation=(0.4, 0.5, 0.6))"
    )


def test_another_input_size_interpolates_the_position_embeddings(tmp_path: Path) -> None:
    model, folder = make("vit", tmp_path)
    save(model, folder, {**SQUARE, "size": 48})
    backbone = backbones.load_backbone(str(folder))
    assert backbone.grid == (6, 6)
    assert backbone.forward(backbone.prepare_image(photo())).patches_pd.shape == (36, 16)


def test_the_fingerprint_follows_what_decides_the_output(tmp_path: Path) -> None:
    model, folder = make("siglip", tmp_path / "one")
    first = backbones.load_backbone(str(folder)).fingerprint
    assert backbones.load_backbone(str(folder), layer=-1, device="cpu").fingerprint == first
    assert backbones.load_backbone(str(folder), layer=0).fingerprint != first
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    described = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**described, "transformers_version": "9"}))
    assert backbones.load_backbone(str(copy)).fingerprint == first
    model.save_pretrained(tmp_path / "shards", max_shard_size="8KB")
    shutil.copy(folder / "preprocessor_config.json", tmp_path / "shards")
    assert len([*(tmp_path / "shards").glob("model-*.safetensors")]) > 1
    assert backbones.load_backbone(str(tmp_path / "shards")).fingerprint == first

    _, other = make("siglip", tmp_path / "other", seed=1)
    assert backbones.load_backbone(str(other)).fingerprint != first
    save(model, copy, {**SQUARE, "resample": 3})
    assert backbones.load_backbone(str(copy)).fingerprint != first


def test_one_changed_tensor_changes_the_fingerprint(tmp_path: Path) -> None:
    model, folder = make("dinov2", tmp_path)
    first = backbones.load_backbone(str(folder)).fingerprint
    with torch.no_grad():
        model.encoder.layer[1].mlp.fc1.weight.mul_(1.001)
    model.save_pretrained(folder)
    assert backbones.load_backbone(str(folder)).fingerprint != first


def test_old_weight_files_are_read_too(tmp_path: Path) -> None:
    model, folder = make("vit", tmp_path)
    backbone = backbones.load_backbone(str(folder), device="cpu")
    pixels = backbone.prepare_image(photo())
    expected, first = backbone.forward(pixels), backbone.fingerprint
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    old = backbones.load_backbone(str(folder), device="cpu")
    np.testing.assert_array_equal(old.forward(pixels).dense_e, expected.dense_e)
    assert len(old.fingerprint) == len(first)


def test_the_name_includes_the_layer(tmp_path: Path) -> None:
    _, folder = make("vit", tmp_path)
    assert backbones.load_backbone(str(folder)).name == str(folder)
    chosen = backbones.load_backbone(str(folder), layer=-2)
    assert chosen.name == f"{folder}#1"
    assert backbones.load_backbone(chosen.name).fingerprint == chosen.fingerprint


def limit_memory(backbone: HuggingFaceBackbone, n_images: int, sizes: list[int]) -> Any:
    """Let the model fail on batches of more images; record the sizes of all."""

    def fail(module: Any, arguments: Any, options: dict[str, Any]) -> None:
        sizes.append(len(options["pixel_values"]))
        if sizes[-1] > n_images:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

    return backbone.load_weights().register_forward_pre_hook(fail, with_kwargs=True)


def test_batches_shrink_until_they_fit(tmp_path: Path) -> None:
    _, folder = make("vit", tmp_path)
    backbone = HuggingFaceBackbone(str(folder), device="cpu")
    batch = [backbone.prepare_image(photo(height)) for height in range(20, 27)]
    expected = [backbone.forward(pixels) for pixels in batch]
    sizes: list[int] = []
    memory = limit_memory(backbone, 2, sizes)
    for features, alone in zip(backbone.forward_batch(batch), expected, strict=True):
        np.testing.assert_allclose(features.patches_pd, alone.patches_pd, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(features.dense_e, alone.dense_e, rtol=1e-4, atol=1e-5)
    assert sizes == [7, 3, 1, 1, 1, 1, 1, 1, 1]
    assert backbone.forward_batch([]) == []
    memory.remove()
    limit_memory(backbone, 0, sizes)
    with pytest.raises(BackboneError, match="does not fit into the memory of cpu"):
        backbone.forward_batch(batch)


def test_images_are_indexed_and_extracted_though_batches_do_not_fit(
    photos: Path, tmp_path: Path
) -> None:
    _, folder = make("vit", tmp_path / "model")
    backbone = HuggingFaceBackbone(str(folder), device="cpu")
    words_vd, zeros = np.eye(40, 16, dtype=np.float32), np.zeros(40, dtype=np.float32)
    sae = SparseAutoEncoder(words_vd.T.copy(), zeros, words_vd, zeros[:16], k=4)
    vocabulary = Vocabulary.build("tiny", backbone=backbone, sae=sae)
    vocabulary.__dict__["backbone"] = backbone
    paths = sorted(photos.iterdir())
    expected = [vocabulary.encode(path) for path in paths]
    sizes: list[int] = []
    limit_memory(backbone, 2, sizes)
    read = encode_images(map(NamedImage, map(str, paths)), vocabulary, lambda content: None, 2)
    for (_, outcome), alone in zip(read, expected, strict=True):
        assert isinstance(outcome, EncodedImage)
        assert outcome.encoding is not None
        np.testing.assert_allclose(outcome.encoding.dense_e, alone.dense_e, rtol=1e-4, atol=1e-5)
    assert max(sizes) == backbone.batch_size

    sizes.clear()
    backbone = HuggingFaceBackbone(str(folder), device="cpu")
    limit_memory(backbone, 2, sizes)
    extraction = Extraction(backbone, tuple(paths), views=4, patches=None, held_out=0.1, seed=0)
    store = PatchStore(tmp_path / "store", key="", dim=backbone.patch_dim)
    store.folder.mkdir()
    extract_patches(extraction, store, on_error=lambda *_: None)
    assert max(sizes) == backbone.batch_size
    for number, (path,) in enumerate(extraction.shards()):
        whole_pd = backbone.forward(vocabulary.prepare(path)).patches_pd
        np.testing.assert_allclose(store.read(number)[:16], whole_pd, rtol=2e-3, atol=2e-3)


def test_threads_do_not_mix_their_images(tmp_path: Path) -> None:
    _, folder = make("dinov3", tmp_path)
    backbone = backbones.load_backbone(str(folder), device="cpu")
    batch = [backbone.prepare_image(photo(height)) for height in range(20, 36)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(backbone.forward, batch))
    for pixels, features in zip(batch, together, strict=True):
        alone = backbone.forward(pixels)
        np.testing.assert_allclose(features.patches_pd, alone.patches_pd, rtol=1e-4, atol=1e-5)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache with one model, owner/tiny, and no network."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    commit = "0123456789" * 4
    repository = tmp_path / "models--owner--tiny"
    make("siglip", repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(commit)
    return repository / "snapshots" / commit


def test_a_cached_hub_model_works_offline(hub: Path) -> None:
    backbone = backbones.load_backbone("owner/tiny", layer=1)
    assert backbone.name == "owner/tiny#1"
    assert backbone.fingerprint == backbones.load_backbone(str(hub), layer=1).fingerprint
    assert backbone.forward(backbone.prepare_image(photo())).patches_pd.shape == (16, 16)


def test_an_unreachable_model_says_what_to_do(hub: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"^owner/absent is not on this machine.*HF_HOME"):
        backbones.load_backbone("owner/absent")
    (hub / "model.safetensors").unlink()
    with pytest.raises(ModelUnavailable, match=r"^owner/tiny is not on this machine"):
        _ = backbones.load_backbone("owner/tiny").fingerprint


def test_a_model_that_the_hub_refuses_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def refuse(*_: object, **__: object) -> None:
        error = huggingface_hub.errors.RepositoryNotFoundError
        raise error.__new__(error)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(ModelUnavailable, match="has no public model owner/secret: check the name"):
        backbones.load_backbone("owner/secret")


def test_wrong_layers_devices_and_names_are_refused(tmp_path: Path) -> None:
    _, folder = make("vit", tmp_path)
    for layer in (3, -4):
        with pytest.raises(BackboneError, match=r"no layer -?\d: it has layers 0 to 2"):
            backbones.load_backbone(str(folder), layer=layer)
    with pytest.raises(InvalidOption, match=r"no device 'cuda:99' on this machine, only: .*cpu"):
        backbones.load_backbone(str(folder), device="cuda:99")
    with pytest.raises(InvalidOption, match="backbone toy has a fixed layer"):
        backbones.load_backbone("toy", layer=2)
    with pytest.raises(UnknownBackbone, match=r"owner/name, or a folder with a config\.json"):
        backbones.load_backbone(str(tmp_path / "nowhere"))


def test_the_fastest_device_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert str(find_device(torch, None)) == "cuda:0"
    assert str(find_device(torch, "cuda:1")) == "cuda:1"
    assert str(find_device(torch, "cuda")) == "cuda"
    assert str(find_device(torch, "cpu")) == "cpu"


def test_damaged_folders_are_reported(tmp_path: Path) -> None:
    _, folder = make("clip", tmp_path)
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(BackboneError, match="cannot be read: "):
        backbones.load_backbone(str(folder)).load_weights()
    weights.write_bytes(b"not a model")
    with pytest.raises(BackboneError, match="is not a safetensors file, or it is damaged"):
        _ = backbones.load_backbone(str(folder)).fingerprint
    weights.unlink()
    with pytest.raises(ModelUnavailable, match=r"has no weights: model\.safetensors is missing"):
        _ = backbones.load_backbone(str(folder)).fingerprint
    (folder / "preprocessor_config.json").write_text('{"resample": 3}')
    with pytest.raises(BackboneError, match="cannot be used: KeyError\\('image_mean'\\)"):
        backbones.load_backbone(str(folder))
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(ModelUnavailable, match=r"has no preprocessor_config\.json"):
        backbones.load_backbone(str(folder))
    (folder / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(BackboneError, match="a model of type 'bert'; bm25v reads: siglip, "):
        backbones.load_backbone(str(folder))
    (folder / "config.json").write_text("{")
    with pytest.raises(BackboneError, match="cannot be read as JSON"):
        backbones.load_backbone(str(folder))


def test_missing_weights_are_not_replaced_by_random_ones(tmp_path: Path) -> None:
    model, folder = make("clip", tmp_path)
    config = folder / "config.json"
    whole = json.loads(config.read_text())
    save(model.vision_model, folder, CENTRE)
    config.write_text(json.dumps(whole))
    with pytest.raises(BackboneError, match=r"lacks 1 of its weights: visual_projection\.weight"):
        backbones.load_backbone(str(folder)).load_weights()


def test_a_missing_extra_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, folder = make("vit", tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=rf"the backbone {folder} .*\[hf\]"):
        backbones.load_backbone(str(folder))


def test_other_backbones_need_no_torch() -> None:
    program = (
        "import sys; from bm25v import backbones; backbones.load_backbone('toy'); "
        "import bm25v.backbones.huggingface; "
        "assert not {'torch', 'transformers', 'huggingface_hub'} & sys.modules.keys()"
    )
    run_python(program)
