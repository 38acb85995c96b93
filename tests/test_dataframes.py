"""`to_pandas()`: frames with the values of hits and words, and a clear error without pandas."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bm25v.errors import MissingExtra
from bm25v.explain.words import WordList
from bm25v.gallery import Gallery


def test_results_have_one_row_per_hit(gallery: Gallery, photos: Path) -> None:
    results = gallery.search(photos / "3.png", mode="two-stage")
    frame = results.to_pandas()
    assert frame["path"].tolist() == [hit.path for hit in results]
    for column in ("rank", "score", "sparse", "dense", "coverage", "first_rank"):
        assert frame[column].tolist() == [getattr(hit, column) for hit in results]
    for hit, words in zip(results, frame["words"], strict=True):
        assert list(words) == [word.label for word in hit.words]
        assert sum(words.values()) == pytest.approx(hit.sparse)
    assert frame.sort_values("sparse").iloc[-1]["first_rank"] == 1


def test_words_with_the_same_name_are_added_up(gallery: Gallery, photos: Path) -> None:
    first, second, *_ = gallery.search(photos / "3.png")[0].words
    gallery.name_words({first.word: "corner", second.word: "corner"})
    (row, *_) = gallery.search(photos / "3.png").to_pandas()["words"]
    assert row["corner"] == pytest.approx(first.contribution + second.contribution)


def test_values_that_do_not_exist_are_missing(gallery: Gallery, photos: Path) -> None:
    by_words = gallery.search(must=gallery.words()[0].word).to_pandas()
    assert by_words["dense"].isna().all()
    dense = gallery.search(photos / "3.png", mode="dense").to_pandas()
    assert dense["first_rank"].isna().all()
    results = gallery.search(photos / "3.png")
    unusual = replace(results[0], path="/photos/caf\udce9.jpg")
    assert replace(results, hits=(unusual,)).to_pandas()["path"][0] == unusual.path


def test_an_explanation_has_one_row_per_word(gallery: Gallery, photos: Path) -> None:
    explanation = gallery.explain(photos / "3.png", photos / "4.png")
    frame = explanation.to_pandas()
    assert frame["word"].tolist() == [part.word.word for part in explanation.parts]
    assert frame["contribution"].sum() == pytest.approx(explanation.sparse)
    product = frame["weight"] * frame["idf"] * frame["saturation"]
    assert product.tolist() == pytest.approx(frame["contribution"].tolist())


def test_a_list_of_words_has_one_row_per_word(gallery: Gallery) -> None:
    words = gallery.words(best=2)
    gallery.name_words({words[0].word: "corner"})
    frame = gallery.words(best=2).to_pandas()
    assert frame["word"].tolist() == [word.word for word in words]
    assert frame["df"].tolist() == [word.df for word in words]
    assert frame["best"][0] == [image.path for image in words[0].best]
    assert frame.set_index("word")["name"].dropna().to_dict() == {words[0].word: "corner"}


def test_a_frame_without_rows_has_the_same_columns_and_types(
    gallery: Gallery, photos: Path
) -> None:
    results = gallery.search(photos / "3.png")
    explanation = gallery.explain(photos / "3.png", photos / "4.png")
    for value, empty in (
        (results, replace(results, hits=())),
        (explanation, replace(explanation, parts=())),
        (gallery.words(), WordList()),
    ):
        full, none = value.to_pandas(), empty.to_pandas()
        assert len(none) == 0
        assert none.dtypes.to_dict() == full.dtypes.to_dict()


def test_without_pandas_the_extra_is_named(
    gallery: Gallery, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"to_pandas\(\) .* install .*\[pandas\]"):
        gallery.search(photos / "3.png").to_pandas()
