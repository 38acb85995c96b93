"""The demo end to end on a small archive of the same layout: no network, toy vocabulary."""

import io
import json
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from bm25v import demo
from bm25v.errors import VocabularyMismatch, WrongUse
from bm25v.pages.searches_page import LabelledSearch
from bm25v.vocabulary import Vocabulary
from tests.conftest import make_image


def zipped(files: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return file.getvalue()


def flowers(n_species: int = 3, per_species: int = 5) -> bytes:
    files, rows = {}, ["file,label"]
    for n in range(n_species * per_species):
        content = io.BytesIO()
        make_image(n).save(content, "PNG")
        files[f"flower_images/{n:04}.png"] = content.getvalue()
        rows.append(f"{n:04}.png,{n % n_species}")
    files["flower_images/flower_labels.csv"] = "\n".join(rows).encode()
    return zipped(files)


def test_the_demo_runs_twice_and_does_the_work_once(tmp_path: Path) -> None:
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
    assert len(first.searches) == len(first.by_words) == 6
    assert steps[-1] == (21, 21)
    assert "15 photos of 3 species" in lines[0]
    assert first.drawing is not None
    page, sheet = first.page.read_bytes(), first.drawing.read_bytes()

    again = demo.run(tmp_path, vocabulary="toy", archive=archive)
    assert (again.index.added, again.index.updated, again.index.unchanged) == (0, 0, 15)
    assert again.agreement == first.agreement
    assert (first.page.read_bytes(), first.drawing.read_bytes()) == (page, sheet)
    assert len(list((tmp_path / "photos").iterdir())) == 15


def test_agreement_is_counted_from_the_labels(tmp_path: Path) -> None:
    outcome = demo.run(tmp_path, vocabulary="toy", archive=flowers())
    species = {f"{n:04}.png": f"species {n % 3}" for n in range(15)}

    def same(one: LabelledSearch) -> list[bool]:
        return [species[Path(h.path).name] == species[Path(one.query).name] for h in one.results]

    marks = [same(one) for one in outcome.searches]
    found = outcome.agreement
    assert found.queries == len(marks) == 3
    assert found.first == sum(row[0] for row in marks)
    assert (found.all, found.hits) == (sum(map(sum, marks)), sum(map(len, marks)))
    assert 0 < found.all < found.hits, "else this test shows nothing"
    page = outcome.page.read_text(encoding="utf-8")
    assert f"<dd>{found.first} of {found.queries}</dd>" in page
    assert f"<dd>{found.all} of {found.hits}</dd>" in page
    assert json.loads(json.dumps(outcome.to_dict()))["agreement"] == found._asdict()


def test_queries_are_spread_over_species_and_are_not_indexed(tmp_path: Path) -> None:
    photos = demo.unpack(flowers(n_species=10, per_species=21), tmp_path)
    assert (len(photos.indexed), len(photos.queries)) == (190, 20)
    queries = [photos.species[str(path)] for path in photos.queries]
    assert sorted(queries) == sorted(2 * [f"species {n}" for n in range(10)])
    assert not {path.name for path in photos.queries} & {path.name for path in photos.indexed}
    assert all(path.is_file() for path in photos.queries + photos.indexed)


def test_a_damaged_photo_is_unpacked_again(tmp_path: Path) -> None:
    photo = demo.unpack(flowers(), tmp_path).indexed[0]
    whole = photo.read_bytes()
    photo.write_bytes(whole[:20])
    demo.unpack(flowers(), tmp_path)
    assert photo.read_bytes() == whole


@pytest.mark.parametrize(
    "name", ["../evil.png", "/evil.png", "..", "a\\..\\evil.png", "c:evil.png"]
)
def test_nothing_is_written_outside_the_folder(tmp_path: Path, name: str) -> None:
    table = f"file,label\n{name},0\n".encode()
    archive = zipped({"flower_images/flower_labels.csv": table, f"flower_images/{name}": b"x"})
    folder = tmp_path / "deep" / "demo"
    with pytest.raises(WrongUse, match="plain file names"):
        demo.unpack(archive, folder)
    assert not list(tmp_path.rglob("*evil*"))


def test_an_archive_without_labels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match=r"flower_labels\.csv"):
        demo.unpack(zipped({"readme.txt": b"no photos"}), tmp_path)


def test_the_gallery_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    demo.run(tmp_path / "demo", vocabulary="toy", archive=flowers())
    toy = Vocabulary.load("toy")
    Vocabulary.build("short", backbone=toy.backbone, sae=toy.sae, k_post=4).save(tmp_path / "v")
    with pytest.raises(VocabularyMismatch, match="--folder"):
        demo.run(tmp_path / "demo", vocabulary=str(tmp_path / "v"), archive=flowers())


def test_the_command_prints_the_table_and_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bm25v.cli.demo import command

    outcome = demo.run(tmp_path, vocabulary="toy", archive=flowers())
    monkeypatch.setattr(demo, "run", lambda folder, **options: outcome)
    printed = CliRunner().invoke(command, ["--folder", str(tmp_path)])
    assert printed.exit_code == 0
    for one in outcome.searches:
        assert Path(one.query).name in printed.stdout
    found = outcome.agreement
    assert f"{found.first} of {found.queries} first hits" in printed.stdout
    assert "report.html" in printed.stdout
    as_json = CliRunner().invoke(command, ["--folder", str(tmp_path), "--json"])
    assert json.loads(as_json.stdout)["agreement"]["hits"] == found.hits
