"""Images that are added from memory, with ids in place of paths."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bm25v import Gallery, ImageError, StoredImage
from bm25v.errors import ImageNotFound, InvalidOption
from bm25v.search import Mode
from bm25v.store.base import Filter
from bm25v.store.filters import ImageFilter
from bm25v.store.records import ImageRecord
from tests.conftest import RecordingBackbone, find_row, make_image, make_pixels, stored_bag


@pytest.fixture
def empty(make_gallery: Callable[[str], Gallery]) -> Gallery:
    return make_gallery("memory")


def png(seed: int) -> bytes:
    file = io.BytesIO()
    make_image(seed).save(file, "PNG")
    return file.getvalue()


def test_every_form_of_image_is_added_as_its_file_would_be(
    empty: Gallery, gallery: Gallery, photos: Path
) -> None:
    with (photos / "4.png").open("rb") as file:
        report = empty.add(
            {
                "bytes": png(0),
                "pillow": make_image(1),
                "array": make_pixels(2),
                "path": photos / "3.png",
                "file": file,
            }
        )
    assert (report.added, report.failed) == (5, [])
    snapshot, expected = empty.local.snapshot(), gallery.local.snapshot()
    for seed, name in enumerate(("bytes", "pillow", "array", "path", "file")):
        row = find_row(empty, name)
        file_row = find_row(gallery, photos / f"{seed}.png")
        bag, file_bag = stored_bag(snapshot, row), stored_bag(expected, file_row)
        assert bag.words.tolist() == file_bag.words.tolist()
        np.testing.assert_array_equal(snapshot.dense_ne[row], expected.dense_ne[file_row])
    assert {(image.width, image.height) for image in empty} == {(64, 64)}
    assert empty.problems() == []


def test_an_id_stands_in_place_of_a_path(empty: Gallery) -> None:
    empty.add({"shop/cat-7": make_pixels(7), "shop/cat-8": make_pixels(8), "dog": make_pixels(9)})
    assert "shop/cat-7" in empty
    assert "cat-7" not in empty
    hits = empty.search(make_pixels(1), k=5, mode="dense")
    assert {hit.path for hit in hits} == {"shop/cat-7", "shop/cat-8", "dog"}
    assert {image.path for image in empty.images(folder="shop")} == {"shop/cat-7", "shop/cat-8"}
    assert [image.path for image in empty.images(folder="shop/*8")] == ["shop/cat-8"]
    assert empty.match(make_pixels(7), "shop/cat-7").coverage == pytest.approx(1)
    assert empty.search(like="dog", mode="dense", k=5).hits
    assert empty.remove("dog") == 1
    assert empty.remove("shop") == 0, "only paths have folders"
    assert len(empty) == 2


def test_an_image_with_a_known_id_replaces_it(empty: Gallery) -> None:
    assert empty.add({"a": make_pixels(1), "b": make_pixels(2)}).added == 2
    assert empty.add({"a": make_pixels(1), "b": make_pixels(2)}).unchanged == 2
    report = empty.add({"a": make_pixels(3)})
    assert (report.added, report.updated, len(empty)) == (0, 1, 2)
    assert empty.match(make_pixels(3), "a").coverage == pytest.approx(1)


def test_two_ids_may_have_the_same_image_and_files_do_not_take_an_id_over(
    empty: Gallery, photos: Path
) -> None:
    content = (photos / "3.png").read_bytes()
    assert empty.add({"a": content, "b": content}).added == 2
    report = empty.add(photos)
    assert (report.added, report.moved, len(empty)) == (12, 0, 14)
    assert "a" in empty
    own = {"a", "b", str(photos / "3.png")}
    for query in (content, photos / "3.png", "a"):
        assert not {hit.path for hit in empty.search(query, k=20, mode="dense")} & own
    array = make_pixels(20)
    empty.add({"array": array})
    assert "array" not in {hit.path for hit in empty.search(array, k=20, mode="dense")}


def test_a_copy_from_memory_does_not_take_the_record_of_a_file_whose_disk_is_away(
    gallery: Gallery, photos: Path
) -> None:
    content = (photos / "3.png").read_bytes()
    photos.rename(photos.with_name("away"))
    report = gallery.add({"copy": content})
    assert (report.added, report.moved, len(gallery)) == (1, 0, 13)
    assert photos / "3.png" in gallery
    photos.with_name("away").rename(photos)
    assert gallery.add(photos, remove_missing=True).unchanged == 12
    assert gallery.problems() == []


def test_a_stream_of_images_is_not_held_in_memory(empty: Gallery) -> None:
    made: list[int] = []
    progress: list[tuple[int, int]] = []

    def stream() -> Iterator[tuple[str, Any]]:
        for number in range(60):
            made.append(number)
            yield f"image {number}", make_pixels(number)

    def note(_: str, done: int, total: int) -> None:
        progress.append((done, total))
        assert len(made) <= done + 24, "only a few images are ahead of the encoder"

    assert empty.add(stream(), workers=2, progress=note).added == 60
    assert progress[-1] == (60, 60)
    pairs = [(f"image {number}", make_pixels(number)) for number in range(60)]
    assert empty.add(pairs).unchanged == 60


def test_an_unreadable_image_is_reported_by_its_id(empty: Gallery) -> None:
    report = empty.add({"torn": png(1)[:50], "text": b"Dear Sir or Madam", "good": make_pixels(1)})
    assert (report.added, len(empty)) == (1, 1)
    assert [failure.path for failure in report.failed] == ["torn", "text"]
    assert "is not an image" in report.failed[1].error


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ({"": make_pixels(1)}, "'' is not an id"),
        ({7: make_pixels(1)}, "7 is not an id: give each image a text"),
        ({"/photos/a.png": make_pixels(1)}, "is an absolute path: add files by their paths"),
        ({"a/": make_pixels(1)}, "the id 'a/' ends in a slash"),
        ({"a": 7}, "image 'a': a int is not an image"),
        ({"a": np.full((2, 2), 2.0)}, "image 'a': an array of float64"),
        ([("a", make_pixels(1)), ("a", make_pixels(2))], "the id 'a' occurs twice"),
        ([("a", make_pixels(1)), "b.png"], "a str among pairs"),
        ([("a", make_pixels(1), 3)], "a tuple among pairs"),
        (["a.png", make_pixels(1)], "a ndarray among paths: give images from memory with ids"),
        (make_pixels(1), "a ndarray in place of paths"),
        (make_image(1), "a Image in place of paths"),
        (b"bytes", "a bytes in place of paths"),
        (7, "a int in place of paths"),
        (None, "a NoneType in place of paths"),
    ],
)
def test_wrong_ids_and_images_are_named(empty: Gallery, images: Any, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        empty.add(images)
    assert len(empty) == 0


def test_options_for_files_are_refused_for_images_from_memory(empty: Gallery) -> None:
    for options in ({"exclude": "*.png"}, {"remove_missing": True}):
        with pytest.raises(InvalidOption, match="are for files"):
            empty.add({"a": make_pixels(1)}, **options)


def test_a_hit_from_memory_can_be_searched_with_and_explained(
    empty: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = {f"image {number}": make_image(number) for number in range(6)}
    empty.add(images)
    hit = empty.search(make_pixels(3), k=1, include_query=True)[0]
    assert hit.path == "image 3"
    again = empty.search(hit, k=5, mode="dense")
    by_pixels = empty.search(images[hit.path], k=5, mode="dense")
    assert [h.path for h in again] == [h.path for h in by_pixels]
    with pytest.raises(InvalidOption, match="cannot cut a region from the stored words of image 3"):
        empty.search(hit, region=(0, 0, 0.5, 0.5))
    with pytest.raises(ImageError, match="image 3: there is no file to show: give the image"):
        empty.explain(hit, again[0])
    monkeypatch.chdir(tmp_path)
    make_image(50).save("image 3", "PNG")  # another file, of the same name by chance
    explanation = hit.explain()
    assert explanation.hit_image is None
    assert "was added from memory: there is no file to read" in explanation.notes[0]
    complete = hit.explain(image=images["image 3"])
    assert complete.notes == ()
    assert complete.parts[0].in_hit is not None
    assert complete.parts[0].in_hit.any()
    assert empty.duplicates() == []


def test_a_deleted_file_can_still_be_searched_with(gallery: Gallery, photos: Path) -> None:
    expected = [hit.path for hit in gallery.search(photos / "3.png")]
    (photos / "3.png").unlink()
    assert [hit.path for hit in gallery.search(photos / "3.png")] == expected
    assert [hit.path for hit in gallery.search_many([photos / "3.png"])[0]] == expected
    with pytest.raises(ImageError, match=r"missing\.png: does not exist"):
        gallery.search(photos / "missing.png")


def test_search_many_encodes_in_batches(gallery: Gallery, photos: Path) -> None:
    queries: list[Any] = [make_pixels(20 + number) for number in range(10)]
    expected = [[hit.path for hit in gallery.search(query)] for query in queries]
    backbone = RecordingBackbone(4)
    gallery.vocabulary.__dict__["backbone"] = backbone
    results = gallery.search_many(queries)
    assert [[hit.path for hit in hits] for hits in results] == expected
    assert sorted(backbone.sizes) == [2, 4, 4]
    with pytest.raises(ImageError, match=r"missing\.png: does not exist"):
        gallery.search_many([queries[0], photos / "missing.png"])


def test_pillow_images_of_any_mode_are_added(empty: Gallery) -> None:
    modes = ("1", "L", "LA", "P", "RGBA", "CMYK", "I;16", "F")
    report = empty.add({mode: Image.new(mode, (32, 32)) for mode in modes})
    assert report.added == len(modes)


@pytest.mark.parametrize("mode", ["hybrid", "words", "two-stage", "sparse", "dense"])
def test_a_stored_image_is_searched_as_if_its_file_were_gone(
    gallery: Gallery, photos: Path, mode: Mode
) -> None:
    one, other = (str(photos / f"{seed}.png") for seed in (3, 4))
    with_file = gallery.search(StoredImage(one), negative=StoredImage(other), k=12, mode=mode)
    for path in (one, other):
        Path(path).unlink()
    without_file = gallery.search(one, negative=other, k=12, mode=mode)
    assert with_file.hits
    assert [(hit.path, hit.score) for hit in with_file] == [
        (hit.path, hit.score) for hit in without_file
    ]
    assert not {one, other} & {hit.path for hit in with_file}


def test_a_hit_of_a_stored_image_is_explained_by_the_words_of_the_search(
    gallery: Gallery, photos: Path
) -> None:
    path = str(photos / "3.png")
    hit = gallery.search(StoredImage(path))[0]
    shown = hit.explain()
    assert (shown.match.score, shown.match.words) == (hit.score, hit.words)
    assert shown.ranking is not None
    assert (shown.ranking.rank, shown.query_paths) == (hit.rank, (path,))
    assert np.array_equal(shown.query_images[0], gallery.vocabulary.decode(path))
    content = Path(path).read_bytes()
    Path(path).unlink()
    with pytest.raises(ImageError, match="no file to show"):
        hit.explain()
    again = gallery.explain(StoredImage(path, content), hit)
    assert again.match == shown.match


def test_an_explanation_shows_no_other_file_than_that_of_the_stored_image(
    gallery: Gallery, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery.add({"cat.png": make_pixels(60)})
    make_image(61).save(tmp_path / "cat.png")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ImageError, match=r"cat\.png: there is no file to show"):
        gallery.search(StoredImage("cat.png"))[0].explain()
    changed = photos / "3.png"
    make_image(62).save(changed)
    with pytest.raises(ImageError, match="has changed since it was indexed"):
        gallery.search(StoredImage(str(changed)))[0].explain()


def test_a_stored_image_must_be_in_the_gallery(gallery: Gallery, tmp_path: Path) -> None:
    make_image(99).save(tmp_path / "99.png")
    with pytest.raises(ImageNotFound, match=r"99\.png is not in"):
        gallery.search(StoredImage(str(tmp_path / "99.png")))
    with pytest.raises(InvalidOption, match="cannot cut a region from the stored words of"):
        gallery.search(StoredImage(next(gallery.images()).path), region=(0, 0, 0.5, 0.5))


def page_of(
    gallery: Gallery, image_filter: ImageFilter, offset: int, limit: int
) -> tuple[list[ImageRecord], int]:
    return gallery.store.read(
        lambda view: (
            view.page(image_filter, offset, limit),
            view.count(Filter(image_filter)),
        )
    )


def test_a_page_of_images_is_a_part_of_all(gallery: Gallery, photos: Path) -> None:
    gallery.remove(photos / "5.png")
    every = [image.path for image in gallery.images()]
    for offset, limit in ((0, 4), (4, 4), (8, 4), (11, 4), (0, 100)):
        records, total = page_of(gallery, ImageFilter(), offset, limit)
        assert [record.path for record in records] == every[offset : offset + limit]
        assert total == 11
    image_filter = ImageFilter.of(folder="1*.png")
    records, total = page_of(gallery, image_filter, 1, 5)
    assert ([Path(record.path).name for record in records], total) == (["10.png", "11.png"], 3)
