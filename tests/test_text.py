"""Texts as queries without a lexicon: by a text tower (of tiny random models), or by word names."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bm25v.errors import InvalidOption
from bm25v.gallery import Gallery
from bm25v.render.explanation_page import render_explanation
from bm25v.search import Results
from bm25v.store.base import Filter
from bm25v.vocabulary.folder import SETTINGS
from tests import test_cli, test_names
from tests.conftest import encode
from tests.html_page import HtmlPage
from tests.test_names import TwoTowers, make_tiny_gallery

run, indexed, two_towers = test_cli.run, test_cli.indexed, test_names.two_towers


def expected_cosines(
    towers: TwoTowers, gallery: Gallery, paths: list[str], text: str
) -> list[float]:
    """Return the cosines of images with a text, by transformers alone."""
    from tests.test_huggingface import directly

    cosines, backbone = [], gallery.vocabulary.backbone
    for path in paths:
        pixels = backbone.prepare_image(gallery.vocabulary.decode(path))
        _, dense_e = directly(towers.family, towers.model, pixels)
        cosines.append(float(towers.text_vector(text) @ dense_e / np.linalg.norm(dense_e)))
    return cosines


def paths_of(results: Results) -> list[str]:
    return [hit.path for hit in results]


def most_common_words(gallery: Gallery, n: int) -> list[int]:
    """Return the words that most images have."""
    return [word.word for word in sorted(gallery.words(), key=lambda word: -word.df)[:n]]


def paths_with_word(gallery: Gallery, word: int) -> set[str]:
    """Return the paths of all images that have a word in their full bag."""
    snapshot = gallery.local.snapshot()
    rows = np.flatnonzero(snapshot.flag_rows(Filter(must=((word,),))))
    return set(gallery.local.catalog.paths_of(rows.tolist(), snapshot.state.generation))


def test_a_text_orders_images_by_the_cosines_of_transformers(
    two_towers: TwoTowers, photos: Path
) -> None:
    gallery = make_tiny_gallery(two_towers.folder, photos)
    gallery.name_words({most_common_words(gallery, 1)[0]: "dog"})  # a tower reads the whole text
    scores = []
    for text in ("striped ear", "dog", "grass cat"):
        results = gallery.search(text=text, k=20)
        assert (results.mode, len(results)) == ("dense", 12)
        assert (results.understood, results.not_understood) == ((text,), ())
        expected = expected_cosines(two_towers, gallery, paths_of(results), text)
        np.testing.assert_allclose([hit.score for hit in results], expected, atol=4e-4)
        assert [hit.dense for hit in results] == [hit.score for hit in results]
        assert all(hit.first_rank is None for hit in results)
        scores.append(dict(sorted((hit.path, hit.score) for hit in results)))
    first, second, _ = (np.array(list(by_path.values())) for by_path in scores)
    assert np.abs(first - second).max() > 1e-3, "another text has other scores"
    assert "encode" in results.ms


def test_the_vector_of_a_text_is_all_that_explains_its_hits(
    two_towers: TwoTowers, photos: Path
) -> None:
    gallery = make_tiny_gallery(two_towers.folder, photos)
    results = gallery.search(text="dog", k=12)
    assert len(results) == 12
    assert results.query == ()
    for hit in results:
        (part,) = hit.text
        assert (part.label, part.by_words, hit.rest) == ("dog", 0, 0)
        assert part.value == pytest.approx(hit.score, abs=1e-6)
        explanation = gallery.explain(None, hit.path, text="dog")
        assert explanation.match.text == hit.text
        assert explanation.dense == pytest.approx(hit.dense)
    assert "The query is a text: “dog”." in HtmlPage(render_explanation(explanation)).text
    for mode in ("words", "sparse"):
        nothing = gallery.search(text="dog", mode=mode)
        assert (nothing.hits, nothing.no_match) == ((), "the text has no visual words")


def test_filters_apply_to_the_text_of_a_tower(two_towers: TwoTowers, photos: Path) -> None:
    gallery = make_tiny_gallery(two_towers.folder, photos)
    unfiltered = paths_of(gallery.search(text="cat", k=12))
    df_v = gallery.local.snapshot().full_statistics.df_v
    word = int(np.abs(df_v - 6).argmin())  # in half of the images
    with_word = paths_with_word(gallery, word)
    assert 0 < len(with_word) < 12
    excluded = gallery.search(text="cat", without=[word], k=12)
    assert paths_of(excluded) == [path for path in unfiltered if path not in with_word]
    required = gallery.search(text="cat", must=[word], k=12)
    assert set(paths_of(required)) == with_word


def test_a_text_counts_like_one_more_image(two_towers: TwoTowers, photos: Path) -> None:
    gallery = make_tiny_gallery(two_towers.folder, photos)
    encoding = gallery.vocabulary.encode(photos / "3.png")
    query = encode(gallery, encoding, text="cat")
    mean_e = (encoding.dense_e + two_towers.text_vector("cat")) / 2
    assert query.dense_e is not None
    query_e = query.dense_e / np.linalg.norm(query.dense_e)
    np.testing.assert_allclose(query_e, mean_e / np.linalg.norm(mean_e), atol=1e-5)
    both = gallery.search(photos / "3.png", text="cat", k=12)
    assert (both.mode, len(both)) == ("hybrid", 11)
    for hit in both:
        assert sum(part.value for part in hit.parts) == pytest.approx(hit.score, abs=1e-5)
    liked = gallery.search(text="cat", like=photos / "3.png", k=12, include_query=True)
    before = gallery.search(text="cat", k=12)
    path = str(photos / "3.png")
    assert paths_of(liked).index(path) <= paths_of(before).index(path)


def test_without_tower_and_lexicon_a_text_searches_by_names(gallery: Gallery, photos: Path) -> None:
    ear, grass = most_common_words(gallery, 2)
    gallery.name_words({ear: "ear", grass: "grass"})
    results = gallery.search(text="a cat's EARS", k=12)
    assert results.mode == "words"
    assert (results.understood, results.not_understood) == (("ears",), ("cat's",))
    assert set(paths_of(results)) == paths_with_word(gallery, ear)
    assert [word.label for word in results.query] == ["ear"]
    boosted = gallery.search(text="ear", boost={"grass": 2.0}, k=12)
    weights = {word.label: word.weight for word in boosted.query}
    assert weights == {"ear": pytest.approx(0.5), "grass": pytest.approx(2.0)}
    with_image = gallery.search(photos / "3.png", text="ear", k=12)
    assert with_image.mode == "hybrid"
    assert set(paths_of(with_image)) == paths_with_word(gallery, ear) - {str(photos / "3.png")}
    with pytest.raises(InvalidOption, match=r"mode 'dense': named words have no dense vec"):
        gallery.search(text="ear", mode="dense")
    gallery.remove(results[0].path)
    assert paths_of(gallery.search(text="ear", k=12)) == paths_of(results)[1:]


def test_a_text_without_meaning_in_the_gallery_has_no_hits(gallery: Gallery) -> None:
    for mode in (None, "sparse", "dense", "two-stage", "hybrid", "words"):
        results = gallery.search(text="a cat", mode=mode)
        assert (results.hits, results.not_understood) == ((), ("cat",))
        assert results.no_match == "nothing is known about cat"


def test_the_commands_with_a_text(indexed: Any) -> None:
    nothing = indexed("search", "--text", "a cat", "--json").json
    assert (nothing["hits"], nothing["not_understood"]) == ([], ["cat"])
    assert "an empty text" in indexed("search", "--text", "").err
    word = indexed("words", "list", "--json").json["words"][0]["word"]
    indexed("words", "name", word, "cat")
    results = indexed("search", "--text", "a cat", "--json").json
    assert (results["mode"], results["understood"]) == ("words", ["cat"])
    assert {word["name"] for word in results["query"]} == {"cat"}
    hit = results["hits"][0]
    why = indexed("explain", hit["path"], "--text", "a cat", "-o", "why.html", "--json").json
    assert why["sparse"] == hit["sparse"]
    assert "“a cat”" in Path("why.html").read_text()
    assert indexed("explain", hit["path"], "--text", "a cat", "-o", "why.png").code == 0


def test_the_command_with_a_text_tower(two_towers: TwoTowers, photos: Path, run: Any) -> None:
    gallery = make_tiny_gallery(two_towers.folder, photos)
    results = run("search", "--text", "dog", "-g", gallery.path, "--json").json
    assert len(results["hits"]) == 10
    assert [hit["path"] for hit in results["hits"]] == paths_of(gallery.search(text="dog"))
    assert run("search", "--text", "dog", "-g", gallery.path, "-k", 3).code == 0
    chosen = [hit["path"] for hit in results["hits"]][1::3]
    gallery.name_images("Anna's birthday", chosen)
    named = gallery.search(text="dog at annas birthday")
    assert sorted(paths_of(named)) == sorted(chosen)
    assert named.understood == ("“Anna's birthday” (a name that people gave)", "dog at")
    assert sorted(paths_of(gallery.search(text="Anna's birthday"))) == sorted(chosen)


@contextmanager
def serve_hub(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """A hub with one model, owner/tiny; yield its address and the paths that are asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            if "/resolve/" in self.path:
                content = (folder / Path(self.path).name).read_bytes()
            elif "/tree/" in self.path:
                files = [(path.name, path.stat().st_size) for path in folder.iterdir()]
                entries = [{"type": "file", "path": p, "size": n, "oid": p} for p, n in files]
                content = json.dumps(entries).encode()
            else:
                names = [{"rfilename": path.name} for path in folder.iterdir()]
                facts = {"id": "owner/tiny", "sha": "0123456789" * 4, "siblings": names}
                content = json.dumps(facts).encode()
            self.send_response(200)
            self.send_header("ETag", hashlib.sha256(content).hexdigest())
            self.send_header("X-Repo-Commit", "0123456789" * 4)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("two_towers", ["clip"], indirect=True)
def test_a_model_that_a_vocabulary_names_is_downloaded_only_by_the_user(
    two_towers: TwoTowers, photos: Path, tmp_path: Path
) -> None:
    gallery = make_tiny_gallery(two_towers.folder, photos)
    settings = Path(gallery.vocabulary.source) / SETTINGS
    own = json.dumps(gallery.vocabulary.backbone_name)
    settings.write_text(settings.read_text(encoding="utf-8").replace(own, '"owner/tiny"'))

    with serve_hub(two_towers.folder) as (url, asked):
        environment = {**os.environ, "HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "home")}

        def run(*words: str) -> tuple[str, str, int]:
            """Run a command; return what it prints and how much it asked the hub for."""
            asked.clear()
            command = [sys.executable, "-m", "bm25v", *words]
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False
            )
            return done.stdout, done.stderr, len(asked)

        search = ("search", "--text", "striped ear", "-g", str(gallery.path))
        remedy = "bm25v models get owner/tiny"
        message = f"error: the model owner/tiny is not on this machine; to download it: {remedy}\n"
        assert run(*search) == ("", message, 0)
        printed, _, n_asked = run(*remedy.split()[1:])
        assert printed == f"owner/tiny: {gallery.vocabulary.backbone_fingerprint}\n"
        assert n_asked > 0
        printed, _, n_asked = run(*search, "--json")
        assert n_asked == 0
        hits = [(hit["path"], hit["score"]) for hit in json.loads(printed)["hits"]]
        assert hits == [(hit.path, hit.score) for hit in gallery.search(text="striped ear")]
