"""Texts as queries: by a text tower, on tiny random models, and by the names of words."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bm25v.api import Gallery
from bm25v.errors import WrongUse
from bm25v.pages.explanation_page import render_explanation
from bm25v.search import Results
from bm25v.search.text import NEAREST
from bm25v.vocabulary import names
from tests import test_cli, test_names
from tests.conftest import encode
from tests.html_page import HtmlPage
from tests.test_names import TwoTowers, tiny_gallery

run, indexed, two_towers = test_cli.run, test_cli.indexed, test_names.two_towers


def by_the_model(towers: TwoTowers, gallery: Gallery, paths: list[str], text: str) -> list[float]:
    """The cosines of pictures with a text, by transformers alone."""
    from tests.test_huggingface import directly

    found, backbone = [], gallery.vocabulary.backbone
    for path in paths:
        pixels = backbone.prepare_image(gallery.vocabulary.decode(path))
        _, dense = directly(towers.family, towers.model, pixels)
        found.append(float(towers.vector(text) @ dense / np.linalg.norm(dense)))
    return found


def paths_of(results: Results) -> list[str]:
    return [hit.path for hit in results]


def test_a_text_ranks_by_the_models_own_cosines(two_towers: TwoTowers, photos: Path) -> None:
    gallery = tiny_gallery(two_towers.folder, photos)
    scores = []
    for text in ("striped ear", "dog", "grass cat"):
        results = gallery.search(text=text, k=20)
        assert (results.mode, len(results)) == ("dense", 12)
        expected = by_the_model(two_towers, gallery, paths_of(results), text)
        np.testing.assert_allclose([hit.score for hit in results], expected, atol=4e-4)
        assert [hit.dense for hit in results] == [hit.score for hit in results]
        assert all(hit.first_rank is None for hit in results)
        scores.append(dict(sorted((hit.path, hit.score) for hit in results)))
    first, second, _ = (np.array(list(one.values())) for one in scores)
    assert np.abs(first - second).max() > 1e-3, "another text, other scores"
    assert "encode" in results.ms


def test_a_text_is_explained_by_what_its_nearest_pictures_share(
    two_towers: TwoTowers, photos: Path
) -> None:
    gallery = tiny_gallery(two_towers.folder, photos)
    results = gallery.search(text="dog", k=12)
    snapshot, statistics = gallery.store.snapshot(), gallery.store.snapshot().searcher.statistics
    rows = {path: gallery.store.find_image(path, snapshot).row for path in paths_of(results)}
    nearest = Counter(
        word
        for path in paths_of(results)[:6]  # half of twelve
        for word in snapshot.bag(rows[path]).words.tolist()
    )
    shared = {w for w, n in nearest.items() if n >= 2 and n / 6 > statistics.df_v[w] / 12}
    assert {word.word for word in results.query} == shared
    assert {word.weight for word in results.query} == {1.0}
    (note,) = results.notes
    assert "shared by the 6 images nearest to it" in note
    assert results[0].words
    for hit in results:
        assert {word.word for word in hit.words} == shared & set(
            snapshot.bag(rows[hit.path]).words.tolist()
        )
        assert sum(word.contribution for word in hit.words) == pytest.approx(hit.sparse, abs=1e-5)
        found = gallery.explain(None, hit.path, text="dog")
        assert found.match.words == hit.words
        assert found.sparse == hit.sparse
        assert found.dense == pytest.approx(hit.dense)
        assert found.notes == (note,)
    assert "The query is a text: “dog”." in HtmlPage(render_explanation(found)).text
    assert NEAREST == 10


def test_filters_hold_for_texts_and_for_what_explains_them(
    two_towers: TwoTowers, photos: Path
) -> None:
    gallery = tiny_gallery(two_towers.folder, photos)
    whole = gallery.search(text="cat", k=12)
    word = whole.query[0].word
    have = {use.path for use in gallery.word(word).images}
    rest = gallery.search(text="cat", without=[word], k=12)
    assert paths_of(rest) == [path for path in paths_of(whole) if path not in have]
    assert word not in {one.word for one in rest.query}
    only = gallery.search(text="cat", must=[word], k=12)
    assert paths_of(only) == [path for path in paths_of(whole) if path in have]


def test_a_text_counts_like_one_more_picture(two_towers: TwoTowers, photos: Path) -> None:
    gallery = tiny_gallery(two_towers.folder, photos)
    encoding = gallery.vocabulary.encode(photos / "3.png")
    wish = encode(gallery, encoding, text="cat")
    mean = (encoding.dense_e + two_towers.vector("cat")) / 2
    assert wish.dense_e is not None
    np.testing.assert_allclose(wish.dense_e, mean / np.linalg.norm(mean), atol=1e-5)
    assert gallery.search(photos / "3.png", text="cat").mode == "dense"
    liked = gallery.search(text="cat", like=photos / "3.png", k=12)
    before = gallery.search(text="cat", k=12)
    last = str(photos / "3.png")
    assert paths_of(liked).index(last) <= paths_of(before).index(last)


def test_words_that_are_called_so_are_asked_for(two_towers: TwoTowers, photos: Path) -> None:
    gallery = tiny_gallery(two_towers.folder, photos)
    one, other, third = (facts.word for facts in sorted(gallery.words(), key=lambda w: -w.df)[:3])
    gallery.name_words({one: "Striped Ear", other: "grass", third: "sky"})
    text = "a striped ear on grass"
    found = gallery.search(text=text, mode="sparse", k=12)
    plain = gallery.search(boost={one: 1, other: 1}, k=12)
    assert [(hit.path, hit.sparse) for hit in found] == [(hit.path, hit.sparse) for hit in plain]
    assert found.notes == (
        f"searching for the named words: {', '.join(called(gallery, one, other))}",
    )
    assert found[0].dense is None, "the tower is not needed"
    staged = gallery.search(text=text, mode="two-stage", k=12)
    assert set(paths_of(staged)) == set(paths_of(found))
    cosines = by_the_model(two_towers, gallery, paths_of(staged), text)
    np.testing.assert_allclose([hit.score for hit in staged], cosines, atol=4e-4)
    assert {hit.path: hit.first_rank for hit in staged} == {h.path: h.rank for h in found}
    hybrid = gallery.search(text=text, mode="hybrid", k=12)
    assert {h.path: h.sparse for h in hybrid} == {h.path: h.sparse for h in found}
    dense = gallery.search(text=text, k=12)
    assert dense.mode == "dense"
    assert {word.weight for word in dense.query} == {1.0}
    explained = gallery.explain(None, found[0].path, text=text, mode="sparse")
    assert explained.match.words == found[0].words


def test_the_nearest_name_will_do(two_towers: TwoTowers, photos: Path) -> None:
    gallery = tiny_gallery(two_towers.folder, photos)
    for mode in ("sparse", "two-stage"):
        with pytest.raises(
            WrongUse,
            match="no word name matches 'cat': name words with `bm25v words name`, "
            "or use mode 'dense', which searches by the text's vector",
        ):
            gallery.search(text="cat", mode=mode)
    known = sorted(gallery.words(), key=lambda w: -w.df)[:3]
    chosen = dict(zip((one.word for one in known), ("dog", "striped ear", "dog"), strict=True))
    silent = next(w for w in range(40) if w not in {one.word for one in gallery.words()})
    gallery.name_words({**chosen, silent: "cat ear"})
    cosines = {
        name: two_towers.vector("grass") @ two_towers.vector(name) for name in {*chosen.values()}
    }
    best = max(cosines, key=lambda name: cosines[name])
    found = gallery.search(text="grass", mode="sparse", k=12)
    assert {word.word for word in found.query} == {w for w, n in chosen.items() if n == best}
    assert found.notes == (
        f"no word is named 'grass'; the most similar name is {best!r} (cosine {cosines[best]:.2f})",
    )
    assert found.hits


def called(gallery: Gallery, *words: int) -> list[str]:
    return [gallery.word_names[word] for word in sorted(words)]


def test_names_are_enough_without_a_tower(gallery: Gallery, photos: Path) -> None:
    one, other = (facts.word for facts in sorted(gallery.words(), key=lambda w: -w.df)[:2])
    gallery.name_words({one: "ear", other: "grass"})
    found = gallery.search(text="EAR", k=12)
    assert found.mode == "sparse"
    assert set(paths_of(found)) == {use.path for use in gallery.word(one).images}
    assert [word.label for word in found.query] == ["ear"]
    steered = gallery.search(text="ear", boost={"grass": 2.0}, k=12)
    assert {word.label: word.weight for word in steered.query} == {"ear": 1.0, "grass": 2.0}
    mixed = gallery.search(photos / "3.png", text="ear", k=12)
    assert mixed.mode == "sparse"
    assert {word.weight for word in mixed.query} <= {0.5, 1.0}
    with pytest.raises(WrongUse, match=r"mode 'dense': named words have no dense vec"):
        gallery.search(text="ear", mode="dense")
    gallery.remove(found[0].path)
    assert paths_of(gallery.search(text="ear", k=12)) == paths_of(found)[1:]


def test_texts_that_mean_nothing_here_are_refused(gallery: Gallery) -> None:
    for text in ("", "  \n"):
        with pytest.raises(WrongUse, match="an empty text: write what to look for"):
            gallery.search(text=text)
    for mode in (None, "sparse", "dense", "two-stage"):
        with pytest.raises(
            WrongUse,
            match="no word name matches 'a cat', and the backbone toy has no text "
            "tower: name words with `bm25v words name`, or use a vocabulary made with a SigLIP",
        ):
            gallery.search(text="a cat", mode=mode)


@given(st.lists(st.text("ab ,Ä🐱", min_size=1), max_size=5), st.text("ab ,Ä🐱"))
def test_whole_words_decide_what_is_called_so(called: list[str], text: str) -> None:
    def split(words: str) -> list[str]:
        for mark in ",🐱":
            words = words.replace(mark, f" {mark} ")
        return words.casefold().split()

    def holds(long: list[str], short: list[str]) -> bool:
        starts = range(len(long) - len(short) + 1)
        return any(long[start : start + len(short)] == short for start in starts)

    known = {number: name for number, name in enumerate(called) if name.strip()}
    wanted = split(text)
    if wanted:
        assert names.find_named_words(text, known) == [
            number
            for number, name in known.items()
            if holds(wanted, split(name)) or holds(split(name), wanted)
        ]


def test_texts_from_the_shell(indexed: Any) -> None:
    told = indexed("search", "--text", "a cat")
    assert (told.code, told.out) == (2, "")
    assert "no word name matches 'a cat', and the backbone toy has no" in told.err
    assert "an empty text" in indexed("search", "--text", "").err
    word = indexed("words", "--json").json["words"][0]["word"]
    indexed("words", "name", word, "cat")
    found = indexed("search", "--text", "a cat", "--json").json
    assert (found["mode"], found["notes"]) == ("sparse", ["searching for the named words: cat"])
    assert {one["name"] for one in found["query"]} == {"cat"}
    shown = indexed("search", "--text", "a cat")
    assert "cat (" in shown.out
    assert shown.err == "note: searching for the named words: cat\n"
    hit = found["hits"][0]
    why = indexed("explain", hit["path"], "--text", "a cat", "-o", "why.html", "--json").json
    assert why["sparse"] == hit["sparse"]
    assert "“a cat”" in Path("why.html").read_text()
    assert indexed("explain", hit["path"], "--text", "a cat", "-o", "why.png").code == 0


def test_texts_from_the_shell_with_a_tower(two_towers: TwoTowers, photos: Path, run: Any) -> None:
    gallery = tiny_gallery(two_towers.folder, photos)
    shown = run("search", "--text", "dog", "-g", gallery.path, "-k", 3)
    assert "all pictures, ordered by cosine" in shown.out
    assert shown.err.startswith(
        "note: a text has no visual words of its own: those shown are shared by the 6"
    )
    found = run("search", "--text", "dog", "-g", gallery.path, "--json").json
    assert [hit["path"] for hit in found["hits"]] == paths_of(gallery.search(text="dog"))
    told = run("search", "--text", "dog", "-g", gallery.path, "--mode", "sparse")
    assert (told.code, told.out) == (2, "")
    assert "use mode 'dense'" in told.err
