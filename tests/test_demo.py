"""The demo on a small archive of the same layout, without network and with the toy vocabulary."""

import io
import json
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from bm25v import demo
from bm25v.backbones import downloads
from bm25v.errors import VocabularyMismatch
from bm25v.vocabulary import Vocabulary
from tests.test_images_from_memory import png


def zipped(files: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return file.getvalue()


def flowers() -> bytes:
    """An archive of 15 photos, of which two are queries, and a table."""
    files = {"flower_images/flower_labels.csv": b"file,label\n"}
    files |= {f"flower_images/{n:04}.png": png(n) for n in range(75, 90)}
    return zipped(files)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_second_run_does_no_work_again(tmp_path: Path) -> None:
    archive, steps = flowers(), list[tuple[str, int, int]]()
    first = demo.run(
        tmp_path, vocabulary="toy", archive=archive, progress=lambda *step: steps.append(step)
    )
    assert (first.index.added, first.index.unchanged) == (12, 0)
    assert ("indexing", 12, 12) in steps
    written = [Path(path).read_bytes() for path in (first.page, first.drawing)]

    again = demo.run(tmp_path, vocabulary="toy", archive=archive)
    assert (again.index.added, again.index.updated, again.index.unchanged) == (0, 0, 12)
    assert again.examples == first.examples
    assert [Path(path).read_bytes() for path in (first.page, first.drawing)] == written
    assert len(names(tmp_path / "photos")) == 12


def test_every_photo_is_indexed_or_a_query(tmp_path: Path) -> None:
    demo.unpack(downloads.read_file(demo.PHOTOS), tmp_path)
    photos, queries = names(tmp_path / "photos"), names(tmp_path / "queries")
    assert (len(photos), queries) == (190, demo.QUERIES)
    assert len(queries) == 20
    assert not photos & queries


def test_the_page_shows_the_query_and_its_hits(tmp_path: Path) -> None:
    report = demo.run(tmp_path / "demo", vocabulary="toy", archive=flowers())
    page = Path(report.page).read_text(encoding="utf-8")
    _, photo, _ = report.examples
    assert len(photo.hits) == 3
    for name in (demo.QUERY, *(Path(path).name for path, _ in photo.hits)):
        assert name in page
    assert Path(report.drawing).stat().st_size > 10_000
    assert len(report.commands) == len(demo.TRIES)
    assert all(command.startswith("bm25v search -g ") for command in report.commands)


def test_a_damaged_photo_is_unpacked_again(tmp_path: Path) -> None:
    demo.unpack(flowers(), tmp_path)
    photo = tmp_path / "photos" / "0080.png"
    content = photo.read_bytes()
    photo.write_bytes(content[:20])
    demo.unpack(flowers(), tmp_path)
    assert photo.read_bytes() == content


def test_nothing_is_written_outside_the_folder(tmp_path: Path) -> None:
    demo.unpack(zipped({"flower_images/../outside.png": b""}), tmp_path / "deep" / "demo")
    (written,) = tmp_path.rglob("*outside*")
    assert written.parent == tmp_path / "deep" / "demo" / "photos"


def test_a_gallery_with_another_vocabulary_is_an_error(tmp_path: Path) -> None:
    demo.run(tmp_path / "demo", vocabulary="toy", archive=flowers())
    toy = Vocabulary.load("toy")
    Vocabulary.build("short", backbone=toy.backbone, sae=toy.sae, k_post=4).save(tmp_path / "v")
    with pytest.raises(VocabularyMismatch, match="--folder"):
        demo.run(tmp_path / "demo", vocabulary=str(tmp_path / "v"), archive=flowers())


def test_the_command_prints_examples_and_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bm25v.cli.gallery import demo as command

    report = demo.run(tmp_path, vocabulary="toy", archive=flowers())
    monkeypatch.setattr(demo, "run", lambda folder, **options: report)
    printed = CliRunner().invoke(command, ["--folder", str(tmp_path)])
    assert printed.exit_code == 0
    text, photo, box = report.examples
    assert (text.title, text.hits) == (f"“{demo.TEXT}”", ()), "this vocabulary has no lexicon"
    assert photo.hits
    assert box.hits
    for title in (text.title, photo.title, box.title):
        assert title in printed.stdout
    for path, _ in (*photo.hits, *box.hits):
        assert Path(path).name in printed.stdout
    assert report.sentence in " ".join(printed.stdout.split())
    assert "report.html" in printed.stdout
    as_json = json.loads(CliRunner().invoke(command, ["--folder", str(tmp_path), "--json"]).stdout)
    assert as_json["page"] == report.page
    assert [example["title"] for example in as_json["examples"]] == [
        example.title for example in report.examples
    ]
