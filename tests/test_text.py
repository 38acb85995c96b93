"""Texts as queries: by the vector of a text tower (of tiny random models), and by word names."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bm25v.errors import InvalidOption
from bm25v.gallery import Gallery
from bm25v.render.explanation_page import render_explanation
from bm25v.search import Results
from bm25v.search.rank import NEAREST
from bm25v.store.base import Filter
from bm25v.vocabulary import names
from tests import test_cli, test_names
from tests.conftest import encode, find_row, stored_bag
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


def sparse_scores(results: Results) -> list[tuple[str, float]]:
    return [(hit.path, hit.sparse) for hit in results]


def most_common_words(gallery: Gallery, n: int) -> list[int]:
    """Return the words that most images have."""
    return [word.word for word in sorted(gallery.words(), key=lambda word: -word.df)[:n]]


def test_a_text_orders_images_by_the_cosines_of_transformers(
    two_towers: TwoTowers, photos: Path
) -> None:
    gallery = make_tiny_gallery(two_towers.folder, photos)
    scores = []
    for text in ("striped ear", "dog", "grass cat"):
        results = gallery.search(text=text, k=20)
        assert (results.mode, len(results)) == ("dense", 12)
        expected = expected_cosines(two_towers, gallery, paths_of(results), text)
        np.testing.assert_allclose([hit.score for hit in results], expected, atol=4e-4)
        assert [hit.dense for hit in results] == [hit.score for hit in results]
        assert all(hit.first_rank is None for hit in results)
        scores.append(dict(sorted((hit.path, hit.score) for hit in results)))
    first, second, _ = (np.array(list(by_path.values())) for by_path in scores)
    assert np.abs(first - second).max() > 1e-3, "another text has other scores"
    assert "encode" in results.ms


def test_a_text_is_explained_by_the_words_that_its_nearest_images_share(
    two_towers: TwoTowers, photos: Path
) -> None:
    gallery = make_tiny_gallery(two_towers.folder, photos)
    results = gallery.search(text="dog", k=12)
    snapshot, statistics = gallery.local.snapshot(), gallery.local.snapshot().searcher.statistics
    rows = {path: find_row(gallery, path) for path in paths_of(results)}
    nearest = Counter(
        word
        for path in paths_of(results)[:6]  # half of twelve
        for word in stored_bag(snapshot, rows[path]).words.tolist()
    )
    shared = {w for w, n in nearest.items() if n >= 2 and n / 6 > statistics.df_v[w] / 12}
    assert {word.word for word in results.query} == shared
    assert {word.weight for word in results.query} == {1.0}
    (note,) = results.notes
    assert "shared by the 6 images nearest to it" in note
    assert len(results) == 12
    assert results[0].words
    for hit in results:
        assert {word.word for word in hit.words} == shared & set(
            stored_bag(snapshot, rows[hit.path]).words.tolist()
        )
        assert sum(word.contribution for word in hit.words) == pytest.approx(hit.sparse, abs=1e-5)
        explanation = gallery.explain(None, hit.path, text="dog")
        assert explanation.match.words == hit.words
        assert explanation.sparse == hit.sparse
        assert explanation.dense == pytest.approx(hit.dense)
        assert explanation.notes == (note,)
    assert "The query is a text: “dog”." in HtmlPage(render_explanation(explanation)).text
    assert NEAREST == 10


def paths_with_word(gallery: Gallery, word: int) -> set[str]:
    """Return the paths of all images that have a word in their full bag."""
    snapshot = gallery.local.snapshot()
    rows = np.flatnonzero(snapshot.flag_rows(Filter(must=(word,))))
    return set(gallery.local.catalog.paths_of(rows.tolist(), snapshot.state.generation))


def test_filters_apply_to_a_text_and_to_the_words_that_explain_it(
    two_towers: TwoTowers, photos: Path
) -> None:
    gallery = make_tiny_gallery(two_towers.folder, photos)
    unfiltered = gallery.search(text="cat", k=12)
    word = unfiltered.query[0].word
    with_word = paths_with_word(gallery, word)
    excluded = gallery.search(text="cat", without=[word], k=12)
    assert 0 < len(excluded) < 12
    assert paths_of(excluded) == [p for p in paths_of(unfiltered) if p not in with_word]
    assert word not in {query_word.word for query_word in excluded.query}
    required = gallery.search(text="cat", must=[word], k=12)
    assert paths_of(required) == [p for p in paths_of(unfiltered) if p in with_word]


def test_a_text_counts_like_one_more_image(two_towers: TwoTowers, photos: Path) -> None:
    gallery = make_tiny_gallery(two_towers.folder, photos)
    encoding = gallery.vocabulary.encode(photos / "3.png")
    query = encode(gallery, encoding, text="cat")
    mean_e = (encoding.dense_e + two_towers.text_vector("cat")) / 2
    assert query.dense_e is not None
    np.testing.assert_allclose(query.dense_e, mean_e / np.linalg.norm(mean_e), atol=1e-5)
    assert gallery.search(photos / "3.png", text="cat").mode == "dense"
    liked = gallery.search(text="cat", like=photos / "3.png", k=12, include_query=True)
    before = gallery.search(text="cat", k=12)
    path = str(photos / "3.png")
    assert paths_of(liked).index(path) <= paths_of(before).index(path)


def test_a_text_searches_for_the_words_whose_names_it_has(
    two_towers: TwoTowers, photos: Path
) -> None:
    gallery = make_tiny_gallery(two_towers.folder, photos)
    ear, grass, sky = most_common_words(gallery, 3)
    gallery.name_words({ear: "Striped Ear", grass: "grass", sky: "sky"})
    text = "a striped ear on grass"
    sparse = gallery.search(text=text, mode="sparse", k=12)
    by_number = {
        mode: gallery.search(boost={ear: 1, grass: 1}, k=12, mode=mode)
        for mode in ("sparse", "words")
    }
    assert sparse_scores(sparse) == sparse_scores(by_number["sparse"])
    words = gallery.search(text=text, mode="words", k=12)
    assert sparse_scores(words) == sparse_scores(by_number["words"])
    searched_names = ", ".join(gallery.word_names[word] for word in sorted((ear, grass)))
    assert sparse.notes == (f"searching for the named words: {searched_names}",)
    assert sparse[0].dense is None, "the tower is not needed"
    two_stage = gallery.search(text=text, mode="two-stage", k=12)
    cosines = expected_cosines(two_towers, gallery, paths_of(two_stage), text)
    np.testing.assert_allclose([hit.score for hit in two_stage], cosines, atol=4e-4)
    assert {hit.path: hit.first_rank for hit in two_stage} == {h.path: h.rank for h in sparse}
    hybrid = gallery.search(text=text, mode="hybrid", k=12)
    assert {p: s for p, s in sparse_scores(hybrid) if s} == dict(sparse_scores(words))
    dense = gallery.search(text=text, k=12)
    assert dense.mode == "dense"
    assert {word.weight for word in dense.query} == {1.0}
    explanation = gallery.explain(None, sparse[0].path, text=text, mode="sparse")
    assert explanation.match.words == sparse[0].words


def test_a_text_without_a_named_word_searches_for_the_most_similar_name(
    two_towers: TwoTowers, photos: Path
) -> None:
    gallery = make_tiny_gallery(two_towers.folder, photos)
    for mode in ("sparse", "two-stage"):
        with pytest.raises(
            InvalidOption,
            match="no word name matches 'cat': name words with `bm25v words name`, "
            "or use mode 'dense', which searches by the text's vector",
        ):
            gallery.search(text="cat", mode=mode)
    words = most_common_words(gallery, 3)
    word_names = dict(zip(words, ("dog", "striped ear", "dog"), strict=True))
    used_words = {word.word for word in gallery.words()}
    unused = next(word for word in range(40) if word not in used_words)
    gallery.name_words({**word_names, unused: "cat ear"})
    cosines = {
        name: two_towers.text_vector("grass") @ two_towers.text_vector(name)
        for name in {*word_names.values()}
    }
    best = max(cosines, key=lambda name: cosines[name])
    results = gallery.search(text="grass", mode="sparse", k=12)
    assert {word.word for word in results.query} == {w for w, n in word_names.items() if n == best}
    assert results.notes == (
        f"no word is named 'grass'; the most similar name is {best!r} (cosine {cosines[best]:.2f})",
    )
    assert results.hits


def test_without_a_text_tower_a_text_searches_by_names(gallery: Gallery, photos: Path) -> None:
    ear, grass = most_common_words(gallery, 2)
    gallery.name_words({ear: "ear", grass: "grass"})
    results = gallery.search(text="EAR", k=12)
    assert results.mode == "words"
    assert set(paths_of(results)) == paths_with_word(gallery, ear)
    assert [word.label for word in results.query] == ["ear"]
    boosted = gallery.search(text="ear", boost={"grass": 2.0}, k=12)
    assert {word.label: word.weight for word in boosted.query} == {"ear": 1.0, "grass": 2.0}
    with_image = gallery.search(photos / "3.png", text="ear", k=12)
    assert with_image.mode == "words"
    by_index = gallery.search(photos / "3.png", text="ear", k=12, mode="sparse")
    assert {word.weight for word in by_index.query} <= {0.5, 1.0}
    with pytest.raises(InvalidOption, match=r"mode 'dense': named words have no dense vec"):
        gallery.search(text="ear", mode="dense")
    gallery.remove(results[0].path)
    assert paths_of(gallery.search(text="ear", k=12)) == paths_of(results)[1:]


def test_a_text_without_meaning_in_the_gallery_raises_an_error(gallery: Gallery) -> None:
    for text in ("", "  \n"):
        with pytest.raises(InvalidOption, match="an empty text: write what to look for"):
            gallery.search(text=text)
    for mode in (None, "sparse", "dense", "two-stage"):
        with pytest.raises(
            InvalidOption,
            match="no word name matches 'a cat', and the backbone toy has no text "
            "tower: name words with `bm25v words name`, or use a vocabulary made with a SigLIP",
        ):
            gallery.search(text="a cat", mode=mode)


@given(st.lists(st.text("ab ,Ä🐱", min_size=1), max_size=5), st.text("ab ,Ä🐱"))
def test_names_and_texts_are_compared_by_whole_words(name_list: list[str], text: str) -> None:
    def split(words: str) -> list[str]:
        for mark in ",🐱":
            words = words.replace(mark, f" {mark} ")
        return words.casefold().split()

    def contains(long: list[str], short: list[str]) -> bool:
        starts = range(len(long) - len(short) + 1)
        return any(long[start : start + len(short)] == short for start in starts)

    word_names = {word: name for word, name in enumerate(name_list) if name.strip()}
    words = split(text)
    if words:
        assert names.find_named_words(text, word_names) == [
            word
            for word, name in word_names.items()
            if contains(words, split(name)) or contains(split(name), words)
        ]


def test_the_commands_with_a_text(indexed: Any) -> None:
    outcome = indexed("search", "--text", "a cat")
    assert (outcome.code, outcome.out) == (2, "")
    assert "no word name matches 'a cat', and the backbone toy has no" in outcome.err
    assert "an empty text" in indexed("search", "--text", "").err
    word = indexed("words", "list", "--json").json["words"][0]["word"]
    indexed("words", "name", word, "cat")
    results = indexed("search", "--text", "a cat", "--json").json
    assert (results["mode"], results["notes"]) == ("words", ["searching for the named words: cat"])
    assert {word["name"] for word in results["query"]} == {"cat"}
    shown = indexed("search", "--text", "a cat")
    assert "cat (" in shown.out
    assert shown.err == "note: searching for the named words: cat\n"
    hit = results["hits"][0]
    why = indexed("explain", hit["path"], "--text", "a cat", "-o", "why.html", "--json").json
    assert why["sparse"] == hit["sparse"]
    assert "“a cat”" in Path("why.html").read_text()
    assert indexed("explain", hit["path"], "--text", "a cat", "-o", "why.png").code == 0


def test_the_command_with_a_text_tower(two_towers: TwoTowers, photos: Path, run: Any) -> None:
    gallery = make_tiny_gallery(two_towers.folder, photos)
    shown = run("search", "--text", "dog", "-g", gallery.path, "-k", 3)
    assert "all images, sorted by similarity" in shown.out
    assert shown.err.startswith(
        "note: a text has no visual words of its own: those shown are shared by the 6"
    )
    results = run("search", "--text", "dog", "-g", gallery.path, "--json").json
    assert len(results["hits"]) == 10
    assert [hit["path"] for hit in results["hits"]] == paths_of(gallery.search(text="dog"))
    outcome = run("search", "--text", "dog", "-g", gallery.path, "--mode", "sparse")
    assert (outcome.code, outcome.out) == (2, "")
    assert "use mode 'dense'" in outcome.err
