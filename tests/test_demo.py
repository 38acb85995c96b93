"""The demo on a small archive of the same layout, without network and with the toy vocabulary."""

import io
import json
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from bm25v import demo
from bm25v.errors import VocabularyMismatch
from bm25v.vocabulary import Vocabulary
from tests.test_images_from_memory import png


def zipped(files: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return file.getvalue()


def flowers(n_species: int = 3, per_species: int = 5) -> bytes:
    files, rows = {}, ["file,label"]
    for n in range(n_species * per_species):
        files[f"flower_images/{n:04}.png"] = png(n)
        rows.append(f"{n:04}.png,{n % n_species}")
    files["flower_images/flower_labels.csv"] = "\n".join(rows).encode()
    return zipped(files)


def test_a_second_run_does_no_work_again(tmp_path: Path) -> None:
    archive, lines = flowers(per_species=7), list[str]()
    steps: list[tuple[int, int]] = []
    first = demo.run(
        tmp_path,
        vocabulary="toy",
        archive=archive,
        say=lines.append,
        progress=lambda stage, done, total: steps.append((done, total)),
    )
    assert (first.index.added, first.index.unchanged) == (15, 0)
    assert len(first.searches) == first.agreement_by_words.queries == 6
    assert steps[-1] == (21, 21)
    assert "15 photos of 3 species" in lines[0]
    page, drawing = first.page.read_bytes(), first.drawing.read_bytes()

    again = demo.run(tmp_path, vocabulary="toy", archive=archive)
    assert (again.index.added, again.index.updated, again.index.unchanged) == (0, 0, 15)
    assert again.agreement == first.agreement
    assert (first.page.read_bytes(), first.drawing.read_bytes()) == (page, drawing)
    assert len(list((tmp_path / "photos").iterdir())) == 15


def test_agreement_is_counted_from_the_labels(tmp_path: Path) -> None:
    report = demo.run(tmp_path, vocabulary="toy", archive=flowers())
    species = {f"{n:04}.png": demo.SPECIES[n % 3] for n in range(15)}
    marks = [
        [species[Path(hit.path).name] == species[Path(search.query).name] for hit in search.results]
        for search in report.searches
    ]
    agreement = report.agreement
    assert agreement.queries == len(marks) == 3
    assert agreement.first == sum(row[0] for row in marks)
    assert (agreement.all, agreement.hits) == (sum(map(sum, marks)), sum(map(len, marks)))
    assert 0 < agreement.all < agreement.hits, "otherwise this test could not fail"
    assert json.loads(json.dumps(report.to_dict()))["agreement"] == agreement._asdict()


def test_every_species_has_queries_and_these_are_not_indexed(tmp_path: Path) -> None:
    photos = demo.unpack(flowers(n_species=10, per_species=21), tmp_path)
    assert (len(photos.indexed), len(photos.queries)) == (190, 20)
    queries = [photos.species[str(path)] for path in photos.queries]
    assert queries == [name for name in demo.SPECIES for _ in range(2)]
    assert not {path.name for path in photos.queries} & {path.name for path in photos.indexed}
    assert all(path.is_file() for path in photos.queries + photos.indexed)


def test_the_page_shows_the_search_whose_hits_agree_most(tmp_path: Path) -> None:
    report = demo.run(tmp_path / "demo", vocabulary="toy", archive=flowers())
    agree = [search.n_agree for search in report.searches]
    assert agree == sorted(agree, reverse=True)
    page = report.page.read_text(encoding="utf-8")
    for path in (report.searches[0].query, *report.searches[0].results):
        assert Path(path).name in page
    assert report.drawing.stat().st_size > 10_000
    assert len(report.commands) == len(demo.TRIES)
    assert all(command.startswith("bm25v search -g ") for command in report.commands)


def test_a_damaged_photo_is_unpacked_again(tmp_path: Path) -> None:
    photo = demo.unpack(flowers(), tmp_path).indexed[0]
    content = photo.read_bytes()
    photo.write_bytes(content[:20])
    demo.unpack(flowers(), tmp_path)
    assert photo.read_bytes() == content


def test_nothing_is_written_outside_the_folder(tmp_path: Path) -> None:
    table = b"file,label\n../outside.png,0\n"
    archive = zipped(
        {"flower_images/flower_labels.csv": table, "flower_images/../outside.png": b""}
    )
    demo.unpack(archive, tmp_path / "deep" / "demo")
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
    assert [path for path, _ in photo.hits] == [hit.path for hit in report.searches[0].results[:3]]
    for title in (text.title, photo.title, box.title):
        assert title in printed.stdout
    for path, _ in (*photo.hits, *box.hits):
        assert Path(path).name in printed.stdout
    assert report.sentence in " ".join(printed.stdout.split())
    agreement = report.agreement
    assert f"{agreement.first} first hits are of the same species" in printed.stdout
    assert "report.html" in printed.stdout
    as_json = CliRunner().invoke(command, ["--folder", str(tmp_path), "--json"])
    assert json.loads(as_json.stdout)["agreement"]["hits"] == agreement.hits
