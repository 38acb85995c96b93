"""Bags as files: what is read is what was written, and no image is encoded twice."""

import json
import os
import re
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from bm25v.errors import BagFileError, InvalidOption, VocabularyMismatch
from bm25v.exchange.parquet import BagFolder, FailedImage, format_part, part_name
from bm25v.files import replace_file
from bm25v.gallery import Gallery
from bm25v.images import Metadata
from bm25v.search.scoring import Mode
from bm25v.store.encoding import ImageBags
from bm25v.store.files import FileState
from bm25v.store.meta import describe_vocabulary
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.bag import Bag, FullBag
from tests import test_cli
from tests.children import run_python
from tests.conftest import make_image, make_pixels
from tests.test_cli import Run, failed

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

run = test_cli.run

TOY = Vocabulary.load("toy")
META = describe_vocabulary(TOY)
MODES: tuple[Mode, ...] = ("hybrid", "words", "two-stage", "sparse", "dense")


def encode_toy(run: Run, *words: object) -> dict[str, Any]:
    outcome = run("bags", "encode", *words, "-o", "bags", "--vocabulary", "toy", "--json")
    assert outcome.code == 0, outcome.err
    report: dict[str, Any] = outcome.json
    return report


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """Return all rows, read without any code of bm25v."""
    files = sorted(folder.glob("*.parquet"))
    return [row for file in files for row in parquet.read_table(file).to_pylist()]


def search_everything(gallery: Gallery) -> list[Any]:
    """Return the hits of several queries in every mode, but not how long they took."""
    results = [
        gallery.search(make_pixels(seed), mode=mode, k=20).to_dict()
        for seed in (0, 3, 100)
        for mode in MODES
    ]
    return [{key: value for key, value in result.items() if key != "ms"} for result in results]


def row_files(gallery: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in gallery.glob("*.rows")}


def add_difficult_files(photos: Path) -> None:
    """Add a copy, a date, a name that is not text, and a file that is no image."""
    (photos / "copy.png").write_bytes((photos / "3.png").read_bytes())
    exif = Image.Exif()
    exif.get_ifd(0x8769)[0x9003] = "2021:05:06 07:08:09"
    make_image(50).save(photos / "dated.jpg", exif=exif)
    make_image(51).save(photos / "caf\udce9.png")
    (photos / "torn.jpg").write_bytes(b"\xff\xd8\xff\xe0 and no more")


def test_encoding_and_loading_is_indexing(run: Run, photos: Path, tmp_path: Path) -> None:
    add_difficult_files(photos)
    assert encode_toy(run, photos, "--images-per-file", 4)["encoded"] == 15
    assert run("bags", "load", "bags", "-g", "loaded").code == 0
    assert run("index", photos, "-g", "indexed", "--vocabulary", "toy").code == 0
    assert row_files(tmp_path / "loaded") == row_files(tmp_path / "indexed")
    with Gallery.open("loaded") as loaded, Gallery.open("indexed") as indexed:
        assert list(loaded) == list(indexed)
        assert search_everything(loaded) == search_everything(indexed)
        assert loaded.problems() == []
    again = run("index", photos, "-g", "loaded", "--json").json
    assert (again["unchanged"], again["added"], again["moved"]) == (15, 0, 0)


def test_a_gallery_is_the_same_after_export_and_load(
    run: Run,
    photos: Path,
    tmp_path: Path,
) -> None:
    add_difficult_files(photos)
    with Gallery.create("first", vocabulary="toy", k1=2, b=0.5) as first:
        first.add(photos)
        first.add({"from memory": make_pixels(70)})
        first.remove([photos / "5.png", photos / "0.png"])
        first.compact()  # or rows have other numbers, and ties another order
        assert run("bags", "export", "-g", "first", "-o", "bags", "--json").json["n_images"] == 14
        os.rename(photos, tmp_path / "elsewhere")  # images are not needed
        outcome = run("bags", "load", "bags", "-g", "second", "--json")
        assert (outcome.json["added"], outcome.json["failed"]) == (14, [])
        with Gallery.open("second") as second:
            assert list(second) == list(first)
            assert (second.info().k1, second.info().b) == (2, 0.5)
            assert search_everything(second) == search_everything(first)
    before = (tmp_path / "second" / "bags.rows").read_bytes()
    assert run("bags", "load", "bags", "-g", "second", "--json").json["unchanged"] == 14
    assert (tmp_path / "second" / "bags.rows").read_bytes() == before


def test_loading_follows_changed_images(gallery: Gallery, photos: Path, tmp_path: Path) -> None:
    gallery.export_bags(tmp_path / "old")
    make_image(99).save(photos / "4.png")
    (photos / "7.png").touch()
    gallery.add(photos)
    gallery.export_bags(tmp_path / "new")
    other = Gallery.create_for_bags(tmp_path / "other", tmp_path / "old")
    other.load_bags(tmp_path / "old")
    report = other.load_bags(tmp_path / "new")
    assert (report.added, report.updated, report.unchanged) == (0, 1, 11)
    paths = sorted(gallery.images(), key=lambda image: image.path)
    assert sorted(other.images(), key=lambda image: image.path) == paths


def test_files_have_the_documented_columns(gallery: Gallery, photos: Path, tmp_path: Path) -> None:
    gallery.export_bags(tmp_path / "bags")
    table = parquet.read_table(tmp_path / "bags" / part_name(0))
    page = (Path(__file__).parent.parent / "docs/reference/files.md").read_text(encoding="utf-8")
    section = page.split("## A folder of bags")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`.+?) \|", section, flags=re.MULTILINE)
    assert re.findall(r"`(\w+)`", " ".join(cells)) == table.column_names
    facts = json.loads(table.schema.metadata[b"bm25v"])
    assert facts["vocabulary_fingerprint"] == TOY.fingerprint
    (row,) = [r for r in table.to_pylist() if r["key"] == str(photos / "3.png")]
    encoding = TOY.encode(photos / "3.png")
    assert (row["words"], row["tf"]) == (encoding.bag.words.tolist(), encoding.bag.tf.tolist())
    assert encoding.full_bag is not None
    assert row["full_words"] == encoding.full_bag.words.tolist()
    assert row["full_patches"] == encoding.full_bag.patches.tolist()
    assert np.array_equal(np.array(row["dense"]), encoding.dense_e.astype(np.float16))
    assert (row["width"], row["height"], row["error"]) == (64, 64, None)


def test_unreadable_images_are_rows_and_tried_again_when_asked(
    run: Run,
    photos: Path,
    tmp_path: Path,
) -> None:
    torn = photos / "torn.jpg"
    torn.write_bytes(b"\xff\xd8\xff\xe0 and no more")
    (tmp_path / "list.txt").write_text(f"{torn}\n\nphotos/1.png\nphotos/missing.png\n")
    outcome = run("bags", "encode", "list.txt", "-o", "bags", "--vocabulary", "toy")
    assert outcome.code == 0
    assert outcome.out.startswith("1 encoded, 0 unchanged, 2 unreadable")
    assert [line.split(": ")[0] for line in outcome.err.splitlines()] == ["unreadable"] * 2
    rows = {Path(row["key"]).name: row for row in read_rows(tmp_path / "bags")}
    assert rows["torn.jpg"]["words"] is None and rows["torn.jpg"]["error"]
    assert rows["1.png"]["error"] is None
    assert encode_toy(run, "list.txt")["encoded"] == 0
    make_image(60).save(photos / "missing.png")  # now it is there
    report = encode_toy(run, "list.txt", "--retry")
    assert (report["encoded"], report["unchanged"], len(report["failed"])) == (1, 1, 1)
    assert Counter(row["key"] for row in read_rows(tmp_path / "bags")).most_common(1)[0][1] == 1
    loaded = run("bags", "load", "bags", "-g", "g", "--json").json
    assert (loaded["added"], [failure["path"] for failure in loaded["failed"]]) == (2, [str(torn)])
    (tmp_path / "broken.txt").write_text(f"{torn}\n")
    assert run("bags", "encode", "broken.txt", "-o", "b", "--vocabulary", "toy").code == 1


def test_an_unreadable_image_of_the_far_future_is_unchanged_afterwards(
    run: Run, photos: Path
) -> None:
    torn, seconds = photos / "torn.jpg", 10_413_792_000  # the first day of 2300
    torn.write_bytes(b"\xff\xd8\xff\xe0 and no more")
    try:
        os.utime(torn, (seconds, seconds))
        is_stored = torn.stat().st_mtime == seconds
    except OSError:
        is_stored = False
    if not is_stored:
        pytest.skip("this file system does not store such a time")
    assert encode_toy(run, photos)["encoded"] == 12
    report = encode_toy(run, photos)
    assert (report["encoded"], report["unchanged"]) == (0, 12)
    assert [failure["known"] for failure in report["failed"]] == [True]


def test_a_folder_with_the_name_of_a_list_is_a_folder(
    run: Run, photos: Path, tmp_path: Path
) -> None:
    photos.rename(tmp_path / "scans.txt")
    assert encode_toy(run, "scans.txt")["encoded"] == 12


def test_only_new_and_changed_images_are_encoded(run: Run, photos: Path, tmp_path: Path) -> None:
    assert encode_toy(run, photos, "--images-per-file", 5)["encoded"] == 12
    assert len(list((tmp_path / "bags").glob("*.parquet"))) == 3
    assert encode_toy(run, photos, "--images-per-file", 5)["unchanged"] == 12
    make_image(80).save(photos / "00.png")  # the first in the order: all parts are shifted
    make_image(81).save(photos / "6.png")
    report = encode_toy(run, photos, "--images-per-file", 5)
    assert (report["encoded"], report["unchanged"]) == (2, 11)
    rows = {row["key"]: row for row in read_rows(tmp_path / "bags")}
    assert len(rows) == len(read_rows(tmp_path / "bags")) == 13
    assert rows[str(photos / "6.png")]["words"] == TOY.bag(photos / "6.png").words.tolist()


KILLED = """
import os, signal, sys
from bm25v import files
from bm25v.cli import main

calls, sync = 0, os.fsync
def sync_or_die(descriptor):
    global calls
    calls += 1
    if calls == {step}:
        os.kill(os.getpid(), signal.SIGKILL)
    sync(descriptor)

files.os.fsync = sync_or_die
sys.argv = "bm25v bags encode photos -o {folder} --vocabulary toy --images-per-file 2".split()
main()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no SIGKILL")
@pytest.mark.parametrize("step", [2, 3, 6])  # the first is that of the new folder
def test_a_killed_run_continues_as_if_nothing_had_happened(
    step: int,
    run: Run,
    photos: Path,
    tmp_path: Path,
) -> None:
    script = KILLED.format(step=step, folder="bags")
    assert run_python(script, cwd=tmp_path, check=False).returncode == -9
    n_left = len(read_rows(tmp_path / "bags"))
    assert n_left == 2 * (max(step - 1, 0) // 2)
    report = encode_toy(run, photos, "--images-per-file", 2)
    assert (report["encoded"], report["unchanged"]) == (12 - n_left, n_left)
    whole = ("bags", "encode", photos, "-o", "whole", "--vocabulary", "toy", "--images-per-file", 2)
    assert run(*whole).code == 0
    contents = [
        {path.name: path.read_bytes() for path in (tmp_path / folder).glob("part-*.parquet")}
        for folder in ("bags", "whole")
    ]
    assert contents[0] == contents[1]
    assert len(contents[0]) == 6


def test_bags_of_another_vocabulary_are_refused_by_name(
    run: Run,
    photos: Path,
    tmp_path: Path,
) -> None:
    sae = TOY.sae
    other = Vocabulary.build("other", backbone=TOY.backbone, sae=sae, k_post=TOY.k_post - 1)
    other.save(tmp_path / "other.vocab")
    encode_toy(run, photos)
    assert run("bags", "encode", photos, "-o", "theirs", "--vocabulary", "other.vocab").code == 0
    names = (TOY.fingerprint, other.fingerprint, "toy", "other.vocab")
    failed(run("bags", "encode", photos, "-o", "bags", "--vocabulary", "other.vocab"), 1, *names)
    failed(run("bags", "load", "bags", "-g", "g", "--vocabulary", "other.vocab"), 1, *names)
    assert not (tmp_path / "g").exists()
    assert run("bags", "load", "bags", "-g", "g").code == 0
    failed(run("bags", "load", "theirs", "-g", "g"), 1, *names)
    os.rename(tmp_path / "theirs" / part_name(0), tmp_path / "bags" / part_name(7))
    failed(run("bags", "load", "bags", "-g", "h"), 1, *names)
    second = ("bags", "encode", photos, "-o", "bags", "--vocabulary", "toy", "--dense", "toy")
    (tmp_path / "bags" / part_name(7)).unlink()
    failed(run(*second), 1, "dense vectors of toy")


def test_a_second_backbone_is_part_of_the_bags(run: Run, photos: Path, tmp_path: Path) -> None:
    encode_toy(run, photos, "--dense", "toy")
    assert run("bags", "load", "bags", "-g", "g").code == 0
    with Gallery.open("g") as gallery:
        assert gallery.info().backbone == "toy+toy"
        assert gallery.local.snapshot().dense_ne.shape == (12, 24)


def test_what_is_in_the_way_is_one_line(run: Run, photos: Path, tmp_path: Path) -> None:
    encode_toy(run, photos)
    assert run("bags", "load", "bags", "-g", "g").code == 0
    failed(run("bags", "export", "-g", "g", "-o", "bags"), 2, "bags is not empty")
    failed(run("bags", "load", photos, "-g", "h"), 1, "part-000000.parquet", "bm25v bags encode")
    failed(run("bags", "encode", "nothing", "-o", "b"), 2, "nothing does not exist")
    failed(run("bags", "encode", "nothing.txt", "-o", "b"), 2, "nothing.txt")
    part = tmp_path / "bags" / part_name(0)
    part.write_bytes(part.read_bytes()[:-9])
    failed(run("bags", "load", "bags", "-g", "g"), 1, "part-000000.parquet", "make it again")
    replace_metadata(part, {"format": 2})
    failed(run("bags", "load", "bags", "-g", "g"), 1, "format 2", "upgrade bm25v")
    replace_metadata(part, {})
    failed(run("bags", "load", "bags", "-g", "g"), 1, "vocabulary is missing")


def replace_metadata(part: Path, values: dict[str, Any]) -> None:
    table = pyarrow.table({"key": ["a"]})
    parquet.write_table(table.replace_schema_metadata({"bm25v": json.dumps(values)}), part)


def make_bag(words: list[int]) -> Bag:
    return Bag(np.array(words, np.int32), np.arange(1, len(words) + 1, dtype=np.uint16) * 3000)


words_of_bags = st.lists(st.integers(0, 191), max_size=8, unique=True).map(sorted)
images = st.builds(
    lambda words, path, metadata, mtime_ns: ImageBags(
        FileState(path, bytes(range(16)), 2**40, mtime_ns, metadata),
        make_bag(words),
        FullBag(
            make_bag(words).words,
            np.arange(1, len(words) + 1, dtype=np.uint8),
            np.arange(len(words), dtype=np.uint16),
        ),
        np.linspace(-1, 1, 12).astype(np.float16),
    ),
    words_of_bags,
    st.text(min_size=1).map(lambda text: text.encode(errors="replace").decode()),
    st.none()
    | st.builds(
        Metadata,
        st.integers(1, 2**31 - 1),
        st.integers(1, 9),
        st.none() | st.datetimes().map(lambda date: date.replace(microsecond=0)),
    ),
    st.integers(-(2**63), 2**63 - 1),
)
failures = st.builds(
    FailedImage,
    st.sampled_from(["/a.jpg", "/caf\udce9.jpg"]),
    st.none() | st.integers(0, 2**62),
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.text(min_size=1).map(lambda text: text.encode(errors="replace").decode()),
)


def same_image(one: ImageBags, other: ImageBags) -> bool:
    arrays = [(*image.bag, *image.full_bag, image.dense_e) for image in (one, other)]
    return one.file == other.file and all(map(np.array_equal, *arrays))


@given(rows=st.lists(images | failures, max_size=6))
def test_every_row_is_read_as_it_was_written(
    rows: list[ImageBags | FailedImage], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("bags")
    replace_file(folder / part_name(0), format_part(rows, META))
    bags = BagFolder(folder)
    assert (bags.meta, bags.n_rows) == (META, len(rows))
    read = list(bags.batches())
    read_images = [image for batch in read for image in batch.images]
    written = [row for row in rows if isinstance(row, ImageBags)]
    assert len(read_images) == len(written) and all(map(same_image, read_images, written))
    read_failed = [row for batch in read for row in batch.failed]
    assert read_failed == [row for row in rows if isinstance(row, FailedImage)]


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("words", [3, 2, 9], "do not ascend"),
        ("words", [1, 2, 192], "words"),
        ("words", [1, 2], "different lengths"),
        ("words", None, "neither bags nor an error"),
        ("tf", [1, 0, 9], "tf of 0"),
        ("full_patches", [0, 1, 49], "below 49"),
        ("key", "", "no key"),
        ("dense", None, "neither bags nor an error"),
    ],
)
def test_impossible_bags_are_refused(
    column: str, value: Any, reason: str, tmp_path: Path, make_gallery: Callable[[str], Gallery]
) -> None:
    bag = make_bag([1, 2, 3])
    full_bag = FullBag(bag.words, np.ones(3, np.uint8), np.zeros(3, np.uint16))
    file = FileState("/a.png", bytes(16), 9, 9, Metadata(4, 4, datetime(2020, 1, 1)))
    content = format_part([ImageBags(file, bag, full_bag, np.ones(12, np.float16))], META)
    (tmp_path / "bags").mkdir()
    path = tmp_path / "bags" / part_name(0)
    path.write_bytes(content)
    make_gallery("good").load_bags(tmp_path / "bags")
    table = parquet.read_table(path)
    index = table.column_names.index(column)
    field = table.schema.field(index)
    wrong = table.set_column(index, field, pyarrow.array([value], field.type))
    parquet.write_table(wrong, path)
    with pytest.raises(BagFileError, match=reason):
        make_gallery("bad").load_bags(tmp_path / "bags")


def test_two_runs_do_not_write_to_one_folder(
    run: Run,
    photos: Path,
    tmp_path: Path,
) -> None:
    from filelock import FileLock

    encode_toy(run, photos)
    with FileLock(tmp_path / "bags" / "encode.lock"):
        failed(
            run("bags", "encode", photos, "-o", "bags", "--vocabulary", "toy"), 1, "another process"
        )


def test_a_gallery_with_more_than_one_file(
    gallery: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bm25v.exchange.galleries.PART_ROWS", 5)
    gallery.remove(next(iter(gallery)).path)
    steps: list[tuple[str, int, int]] = []
    gallery.export_bags(tmp_path / "bags", progress=lambda *step: steps.append(step))
    assert len(list((tmp_path / "bags").iterdir())) == 3
    assert steps[-1] == ("exporting", 11, 11)
    with pytest.raises(InvalidOption, match="not empty"):
        gallery.export_bags(tmp_path / "bags")
    with pytest.raises(VocabularyMismatch, match="those of default"):
        Gallery.create(tmp_path / "g").load_bags(tmp_path / "bags")
