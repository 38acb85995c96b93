"""Data sets in their published layouts, built small: complete, incomplete and broken."""

import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from bm25v.errors import EvaluationError, InvalidOption, MissingExtra
from bm25v.research.datasets import DATASETS, Dataset, PixelBox, load, load_plain
from bm25v.research.features import extract_features
from bm25v.vocabulary import Vocabulary
from tests.conftest import make_image

Pairs = list[tuple[str, str]]


def save(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        make_image(sum(name.encode()) * 7919 + len(name), side=8).save(path)


def write(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines))


def cub200(root: Path) -> None:
    names = ["001.Albatross/a_1.jpg", "001.Albatross/a_2.jpg", "002.Bunting/b_1.jpg"]
    save(root / "images", *names)
    write(root / "images.txt", *(f"{n} {name}" for n, name in enumerate(names, 1)))
    write(root / "image_class_labels.txt", "1 1", "2 1", "3 2")
    write(root / "classes.txt", "1 001.Albatross", "2 002.Bunting")
    write(root / "train_test_split.txt", "1 1", "2 0", "3 1")


def cars196(root: Path) -> None:
    save(root, "cars_train/00001.jpg", "cars_train/00002.jpg", "cars_test/00001.jpg")
    fields = [("bbox_x1", object), ("class", object), ("fname", object)]
    train = np.array([(1, 2, "00001.jpg"), (1, 1, "00002.jpg")], dtype=fields)
    test = np.array([(1, 2, "00001.jpg")], dtype=fields)
    (root / "devkit").mkdir()
    names = np.array(["AM General Hummer SUV 2000", "Acura RL Sedan 2012"], dtype=object)
    savemat(root / "devkit/cars_meta.mat", {"class_names": names})
    savemat(root / "devkit/cars_train_annos.mat", {"annotations": train})
    savemat(root / "cars_test_annos_withlabels.mat", {"annotations": test})


def aircraft(root: Path) -> None:
    save(root / "data/images", "1025794.jpg", "0034309.jpg", "1340192.jpg")
    write(root / "data/images_variant_train.txt", "1025794 707-320", "1340192 Dash 8 Q400")
    write(root / "data/images_variant_val.txt", "0000001 707-320")
    write(root / "data/images_variant_test.txt", "0034309 Dash 8 Q400")


def pets(root: Path) -> None:
    save(root / "images", "Abyssinian_1.jpg", "american_bulldog_10.jpg", "american_bulldog_2.jpg")
    write(root / "annotations/trainval.txt", "Abyssinian_1 1 1 1", "american_bulldog_10 2 2 1")
    write(root / "annotations/test.txt", "american_bulldog_2 2 2 1")


def flowers102(root: Path) -> None:
    save(root / "jpg", *(f"image_0000{n}.jpg" for n in (1, 2, 3, 4)))
    savemat(root / "imagelabels.mat", {"labels": np.array([[77, 5, 77, 5]], np.uint8)})
    ids = {"trnid": [[3, 2]], "valid": [[4]], "tstid": [[1]]}
    savemat(root / "setid.mat", {name: np.array(v, np.uint16) for name, v in ids.items()})


def dtd(root: Path) -> None:
    save(root / "images", "banded/banded_0002.jpg", "banded/banded_0004.jpg", "woven/woven_1.jpg")
    write(root / "labels/train1.txt", "banded/banded_0002.jpg", "woven/woven_1.jpg")
    write(root / "labels/test1.txt", "banded/banded_0004.jpg")


def food101(root: Path) -> None:
    save(root / "images", "apple_pie/10.jpg", "apple_pie/11.jpg", "waffles/12.jpg")
    write(root / "meta/train.txt", "apple_pie/10", "waffles/12")
    write(root / "meta/test.txt", "apple_pie/11")


OFFICIAL: dict[str, tuple[Callable[[Path], None], Pairs, Pairs]] = {
    "cub200": (
        cub200,
        [
            ("images/001.Albatross/a_1.jpg", "001.Albatross"),
            ("images/002.Bunting/b_1.jpg", "002.Bunting"),
        ],
        [("images/001.Albatross/a_2.jpg", "001.Albatross")],
    ),
    "cars196": (
        cars196,
        [
            ("cars_train/00001.jpg", "Acura RL Sedan 2012"),
            ("cars_train/00002.jpg", "AM General Hummer SUV 2000"),
        ],
        [("cars_test/00001.jpg", "Acura RL Sedan 2012")],
    ),
    "aircraft": (
        aircraft,
        [("data/images/1025794.jpg", "707-320"), ("data/images/1340192.jpg", "Dash 8 Q400")],
        [("data/images/0034309.jpg", "Dash 8 Q400")],
    ),
    "pets": (
        pets,
        [
            ("images/Abyssinian_1.jpg", "Abyssinian"),
            ("images/american_bulldog_10.jpg", "american_bulldog"),
        ],
        [("images/american_bulldog_2.jpg", "american_bulldog")],
    ),
    "flowers102": (
        flowers102,
        [("jpg/image_00003.jpg", "77"), ("jpg/image_00002.jpg", "5")],
        [("jpg/image_00001.jpg", "77")],
    ),
    "dtd": (
        dtd,
        [("images/banded/banded_0002.jpg", "banded"), ("images/woven/woven_1.jpg", "woven")],
        [("images/banded/banded_0004.jpg", "banded")],
    ),
    "food101": (
        food101,
        [("images/apple_pie/10.jpg", "apple_pie"), ("images/waffles/12.jpg", "waffles")],
        [("images/apple_pie/11.jpg", "apple_pie")],
    ),
}

each_official = pytest.mark.parametrize("name", OFFICIAL)


def built(name: str, root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    OFFICIAL[name][0](root)
    return root


def pairs(dataset: Dataset, part: str) -> Pairs:
    return [(dataset.id_of(item.path), item.label) for item in getattr(dataset, part)]


@each_official
def test_official_layouts_are_read(name: str, tmp_path: Path) -> None:
    dataset = load(name, built(name, tmp_path))
    _, gallery, queries = OFFICIAL[name]
    assert sorted(pairs(dataset, "gallery")) == sorted(gallery)
    assert pairs(dataset, "queries") == queries
    assert dataset.problems == []
    assert dataset.own_rows.tolist() == [-1]
    assert "train" in dataset.protocol


@each_official
def test_a_folder_may_hold_several_sets_under_their_usual_names(name: str, tmp_path: Path) -> None:
    built(name, tmp_path / DATASETS[name].folder)
    assert load(name, tmp_path).folder == tmp_path / DATASETS[name].folder


@each_official
def test_an_error_about_a_missing_file_names_all_files_and_the_homepage(
    name: str, tmp_path: Path
) -> None:
    whole = built(name, tmp_path / "whole")
    lists = [
        path.relative_to(whole) for path in whole.rglob("*") if path.suffix in (".txt", ".mat")
    ]
    needed = [one for one in lists if "val" not in one.name or "train" in one.name]
    assert len(needed) >= 2
    for number, file in enumerate(needed):
        root = tmp_path / str(number)
        shutil.copytree(whole, root)
        (root / file).unlink()
        with pytest.raises(EvaluationError) as caught:
            load(name, root)
        message = str(caught.value)
        assert f"{file.name} is missing" in message
        assert f"expected: {DATASETS[name].files}" in message
        assert f"the data set is published on {DATASETS[name].homepage}" in message
        assert "\n" not in message


@each_official
def test_missing_images_are_counted_and_no_images_are_an_error(name: str, tmp_path: Path) -> None:
    root = built(name, tmp_path)
    _, gallery, queries = OFFICIAL[name]
    lost = gallery[-1][0]
    (root / lost).unlink()
    dataset = load(name, root)
    assert sorted(pairs(dataset, "gallery")) == sorted(gallery[:-1])
    assert f"missing and left out: 1 ({lost})" in dataset.problems
    (root / queries[0][0]).unlink()
    with pytest.raises(
        EvaluationError, match=r"gallery has 1 images, there are 0 queries, and 2 more"
    ):
        load(name, root)


def test_missing_folders_and_unknown_data_sets_are_errors(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match=r"Food-101 in .*nowhere: there is no such folder"):
        load("food101", tmp_path / "nowhere")
    with pytest.raises(
        InvalidOption, match="there is no data set 'cub'; choose from cub200, cars196"
    ):
        load("cub", tmp_path)


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        ("cub200", "images.txt", "1\n", "images.txt has the line '1' with 1 columns, not 2"),
        ("cub200", "images.txt", "9 x.jpg\n", "train_test_split.txt has no entry for 9"),
        ("cub200", "train_test_split.txt", "1 1\n2 7\n3 0\n", "has '7' for image 2, not 0 or 1"),
        ("cub200", "classes.txt", "1 one\n", "classes.txt has no entry for 2"),
        (
            "pets",
            "annotations/test.txt",
            "Abyssinian_1 1\n",
            "'Abyssinian_1 1' with 2 columns, not 4",
        ),
        ("food101", "meta/test.txt", "", "gallery has 2 images, there are 0 queries"),
        ("cars196", "devkit/cars_meta.mat", "no matlab", "devkit/cars_meta.mat is damaged"),
    ],
)
def test_broken_lists_are_errors(
    name: str, file: str, content: str, message: str, tmp_path: Path
) -> None:
    root = built(name, tmp_path)
    (root / file).write_text(content)
    with pytest.raises(EvaluationError) as caught:
        load(name, root)
    assert message in str(caught.value)


def test_lists_that_are_not_text_are_errors(tmp_path: Path) -> None:
    root = built("dtd", tmp_path)
    (root / "labels/train1.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(EvaluationError, match=r"labels/train1.txt is not a text file"):
        load("dtd", root)


def test_the_cars_devkit_alone_has_no_classes_for_the_test_images(tmp_path: Path) -> None:
    root = built("cars196", tmp_path)
    file = root / "cars_test_annos_withlabels.mat"
    shutil.move(file, root / "devkit")
    assert len(load("cars196", root).queries) == 1
    bare = np.array([(1, "00001.jpg")], dtype=[("bbox_x1", object), ("fname", object)])
    savemat(root / "devkit" / file.name, {"annotations": bare})
    with pytest.raises(EvaluationError, match=r"cars_test_annos_withlabels.mat has no classes"):
        load("cars196", root)


def test_numbers_out_of_range_are_errors(tmp_path: Path) -> None:
    root = built("flowers102", tmp_path / "flowers")
    savemat(root / "imagelabels.mat", {"labels": np.array([[1, 2]])})
    with pytest.raises(EvaluationError, match=r"imagelabels.mat has no entry for 3"):
        load("flowers102", root)
    savemat(root / "setid.mat", {"trnid": np.array([[1]])})
    with pytest.raises(EvaluationError, match=r"setid.mat has no variable tstid"):
        load("flowers102", root)
    root = built("cars196", tmp_path / "cars")
    savemat(root / "devkit/cars_meta.mat", {"class_names": np.array(["one"], dtype=object)})
    with pytest.raises(EvaluationError, match=r"devkit/cars_meta.mat has no entry for 2"):
        load("cars196", root)


def test_without_scipy_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = built("flowers102", tmp_path)
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(MissingExtra, match=r"\.mat files needs an extra: .*\[research\]"):
        load("flowers102", root)


# ROxford5k and RParis6k

TRUTH: dict[str, Any] = {
    "imlist": ["all_souls_000000", "all_souls_000001", "radcliffe_000002", "oxford_000003"],
    "qimlist": ["all_souls_000013", "radcliffe_000158"],
    "gnd": [
        {"bbx": [136.5, 34.1, 648.5, 955.7], "easy": [0], "hard": [1, 3], "junk": [2]},
        {"bbx": [1, 2, 3, 4], "easy": [], "hard": [2], "junk": []},
    ],
}


def landmarks(root: Path) -> None:
    save(root / "jpg", *(f"{name}.jpg" for name in TRUTH["imlist"] + TRUTH["qimlist"]))


def with_arrays() -> dict[str, Any]:
    """The ground truth as it is published: numbers in arrays."""
    gnd: list[dict[str, Any]] = [
        {
            name: np.array(value, np.float64 if name == "bbx" else np.int64)
            for name, value in one.items()
        }
        for one in TRUTH["gnd"]
    ]
    gnd[0]["easy"] = [np.int64(0)]
    gnd[0]["hard"] = np.array([[1, 3]], ">i4")
    return {**TRUTH, "gnd": gnd}


def expect_truth(dataset: Dataset) -> None:
    jpg = dataset.folder / "jpg"
    assert [item.path.stem for item in dataset.gallery] == TRUTH["imlist"]
    assert [item.path.stem for item in dataset.queries] == TRUTH["qimlist"]
    first, second = (query.truth for query in dataset.queries)
    assert first is not None
    assert second is not None
    assert first.box == PixelBox(136.5, 34.1, 648.5, 955.7)
    assert first.easy == {jpg / "all_souls_000000.jpg"}
    assert first.hard == {jpg / "all_souls_000001.jpg", jpg / "oxford_000003.jpg"}
    assert first.junk == {jpg / "radcliffe_000002.jpg"}
    assert (second.easy, second.junk) == (frozenset(), frozenset())
    assert dataset.problems == []


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("name", ["roxford5k", "rparis6k"])
def test_revisited_pickles_are_read(name: str, protocol: int, tmp_path: Path) -> None:
    landmarks(tmp_path)
    for content in (TRUTH, with_arrays()):
        (tmp_path / f"gnd_{name}.pkl").write_bytes(pickle.dumps(content, protocol))
        expect_truth(load(name, tmp_path))


def test_pickles_of_older_numpy_and_python_are_read(tmp_path: Path) -> None:
    landmarks(tmp_path)
    new = pickle.dumps(with_arrays(), 2)
    old = new.replace(b"numpy._core", b"numpy.core")
    assert old != new
    (tmp_path / "gnd_roxford5k.pkl").write_bytes(old)
    expect_truth(load("roxford5k", tmp_path))
    two = (
        b"(dp0\nS'easy'\np1\ncnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
    )
    two += b"(I1\n(I2\ntcnumpy\ndtype\n(S'i2'\nI0\nI1\ntR(I3\nS'<'\nNNNI-1\nI-1\nI0\ntb"
    two += b"I00\nS'\\x07\\x00\\xff\\xff'\ntbs."
    assert load_plain(two)["easy"].tolist() == [7, -1]


class Bomb:
    """Leaves a file behind if it is ever unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_in_a_pickle_is_run(protocol: int, tmp_path: Path) -> None:
    landmarks(tmp_path)
    trace = tmp_path / "trace"
    content = pickle.dumps({**TRUTH, "more": Bomb(trace)}, protocol)
    (tmp_path / "gnd_roxford5k.pkl").write_bytes(content)
    with pytest.raises(EvaluationError, match=r"\.pkl refers to \S+: only plain values are read"):
        load("roxford5k", tmp_path)
    assert not trace.exists()
    pickle.loads(content)  # an ordinary unpickler would have run it
    assert trace.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"imlist": None},
        {"imlist": [1, 2, 3, 4]},
        {"qimlist": ["one"]},
        {"gnd": [{}, {}]},
        {"gnd": [{"bbx": [1, 2, 3, 4], "easy": [4], "hard": [], "junk": []}] * 2},
        {"gnd": [{"bbx": [1, 2, 3, 4], "easy": [-1], "hard": [], "junk": []}] * 2},
        {"gnd": [{"bbx": [1, 2, 3], "easy": [], "hard": [], "junk": []}] * 2},
    ],
)
def test_other_content_is_not_accepted_as_ground_truth(
    change: dict[str, Any], tmp_path: Path
) -> None:
    landmarks(tmp_path)
    (tmp_path / "gnd_roxford5k.pkl").write_bytes(pickle.dumps({**TRUTH, **change}))
    with pytest.raises(EvaluationError, match=r"\.pkl is not the revisited ground truth"):
        load("roxford5k", tmp_path)


def test_a_missing_relevant_image_still_counts(tmp_path: Path) -> None:
    landmarks(tmp_path)
    (tmp_path / "gnd_roxford5k.pkl").write_bytes(pickle.dumps(TRUTH))
    (tmp_path / "jpg/all_souls_000001.jpg").unlink()
    dataset = load("roxford5k", tmp_path)
    assert len(dataset.gallery) == 3
    assert dataset.problems == ["missing and left out: 1 (jpg/all_souls_000001.jpg)"]
    assert dataset.queries[0].truth is not None
    assert len(dataset.queries[0].truth.hard) == 2


def test_an_error_names_a_missing_ground_truth(tmp_path: Path) -> None:
    with pytest.raises(
        EvaluationError, match=r"gnd_roxford5k.pkl is missing; expected: .*revisitop"
    ):
        load("roxford5k", tmp_path)


# Class folders


def test_class_folders_are_evaluated_by_leaving_one_out(tmp_path: Path) -> None:
    save(tmp_path, "cat/1.png", "cat/deep/2.png", "dog/1.png", "dog/2.png", "emu/1.png", "x.png")
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    dataset = load("folder", tmp_path)
    assert dataset.protocol == "leave-one-out"
    assert dataset.queries == dataset.gallery
    assert [label for _, label in pairs(dataset, "gallery")] == ["cat", "cat", "dog", "dog", "emu"]
    assert dataset.own_rows.tolist() == [0, 1, 2, 3, 4]
    assert dataset.problems == [
        "in no class folder: 1 (x.png)",
        "queries without another image of their class in the gallery: 1 (emu/1.png)",
    ]


def test_train_and_test_folders_are_a_split(tmp_path: Path) -> None:
    save(tmp_path, "train/cat/1.png", "train/dog/1.png", "test/cat/2.png", "test/yak/1.png")
    save(tmp_path, "val/cat/3.png")
    dataset = load("folder", tmp_path)
    assert pairs(dataset, "gallery") == [("train/cat/1.png", "cat"), ("train/dog/1.png", "dog")]
    assert pairs(dataset, "queries") == [("test/cat/2.png", "cat"), ("test/yak/1.png", "yak")]
    assert dataset.problems == [
        "folders besides train and test, not used: 1 (val)",
        "queries without another image of their class in the gallery: 1 (test/yak/1.png)",
    ]


def test_classes_may_be_called_train_and_test(tmp_path: Path) -> None:
    save(tmp_path, "train/1.png", "train/2.png", "test/1.png", "test/2.png")
    dataset = load("folder", tmp_path)
    assert dataset.queries == dataset.gallery
    assert {item.label for item in dataset.gallery} == {"train", "test"}


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match=r"gallery has 0 images.*class folders with images"):
        load("folder", tmp_path)


# Reading the images


def readable(folder: Path, cache: Path) -> Dataset:
    """Load a folder of class folders and read its images."""
    dataset = load("folder", folder)
    return extract_features(dataset, Vocabulary.load("toy"), cache=cache).dataset


def test_unreadable_images_are_left_out_and_reported(tmp_path: Path) -> None:
    root = tmp_path / "data"
    save(root, "cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png")
    (root / "dog/2.png").write_bytes((root / "dog/1.png").read_bytes()[:60])
    (root / "dog/3.jpg").write_bytes(b"")
    dataset = readable(root, tmp_path / "cache")
    names = [dataset.id_of(item.path) for item in dataset.gallery]
    assert names == ["cat/1.png", "cat/2.png", "dog/1.png"]
    assert dataset.queries == dataset.gallery
    unreadable, unanswerable = dataset.problems
    assert unreadable.startswith("unreadable and left out: 2 (dog/")
    assert "dog/2.png: truncated PNG" in unreadable
    assert "dog/3.jpg: " in unreadable
    assert unanswerable.endswith("class in the gallery: 1 (dog/1.png)")


def test_copies_are_reported_and_stay(tmp_path: Path) -> None:
    root = tmp_path / "data"
    save(root, "train/cat/1.png", "train/cat/2.png", "train/dog/1.png", "test/cat/1.png")
    shutil.copy(root / "train/cat/2.png", root / "train/dog/2.png")
    shutil.copy(root / "train/cat/1.png", root / "test/cat/2.png")
    shutil.copy(root / "train/dog/1.png", root / "train/dog/again.png")
    before = load("folder", root)
    assert before.problems == []
    dataset = readable(root, tmp_path / "cache")
    assert (dataset.gallery, dataset.queries) == (before.gallery, before.queries)
    assert dataset.problems == [
        "the same content in several classes: 1 (train/cat/2.png = train/dog/2.png)",
        "queries with a copy in the gallery: 1 (test/cat/2.png)",
    ]


def test_a_part_without_a_readable_image_is_an_error(tmp_path: Path) -> None:
    root = tmp_path / "data"
    save(root, "train/cat/1.png", "test/cat/1.png")
    (root / "test/cat/1.png").write_bytes(b"not an image")
    with pytest.raises(
        EvaluationError, match=r"1 of 2 images .* 1 in the gallery and 0 queries; the first is test"
    ):
        readable(root, tmp_path / "cache")
