"""k1 and b belong to a gallery: they are stored, and every score and explanation uses them."""

import sqlite3
from itertools import islice
from pathlib import Path

import pytest

from bm25v.errors import GalleryDamaged, InvalidOption
from bm25v.gallery import Gallery
from bm25v.index.bm25 import Bm25Parameters, WeightedWords, reference_scores
from bm25v.search import Mode
from bm25v.search.combine import combine_bags
from bm25v.search.scoring import MODES
from bm25v.store.local import catalog
from bm25v.vocabulary.bag import pool_codes
from tests.conftest import make_pixels
from tests.histories import Contents, full_bag, make_encoding, random_sessions, run_session

PARAMETERS = [
    Bm25Parameters(k1=0.9, b=0.4),
    Bm25Parameters(k1=0.0, b=0.75),
    Bm25Parameters(k1=1.5, b=0.0),
    Bm25Parameters(k1=20.0, b=1.0),
]


Scores = list[dict[str, float]]  # by the words of the index, then by all words


def scores_by_path(gallery: Gallery, number: int) -> Scores:
    modes: tuple[Mode, ...] = ("sparse", "words")
    found = [gallery.search(make_encoding(number), k=100, mode=mode).hits for mode in modes]
    return [{hit.path: hit.score for hit in hits} for hits in found]


def expected_scores(contents: Contents, number: int, parameters: Bm25Parameters) -> Scores:
    bags = [make_encoding(n).bag for n in contents.values()]
    query = WeightedWords.from_bag(make_encoding(number).bag)
    full_bags = [full_bag(n) for n in contents.values()]
    full_query = combine_bags([full_bag(number)], by_strength=True)
    scores = [
        reference_scores(bags, query, parameters),
        reference_scores(full_bags, full_query, parameters),
    ]
    return [
        {path: s for path, s in zip(contents, column, strict=True) if s is not None}
        for column in scores
    ]


@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
def test_scores_are_those_of_the_reference_with_the_parameters_after_any_history(
    parameters: Bm25Parameters, tmp_path: Path
) -> None:
    """Images are added, moved and removed, the gallery is compacted, opened again and indexed."""
    folder = tmp_path / "g"
    k1, b = parameters.k1, parameters.b
    Gallery.create(folder, vocabulary="toy", k1=k1, b=b).close()
    reader = Gallery.open(folder)
    contents: Contents = {}
    n_compactions = 0
    for commits in islice(random_sessions(5, contents), 14):
        *_, contents = [contents, *run_session(folder, commits)]
        n_compactions += not commits
        with Gallery.open(folder) as reopened:
            for gallery in (reader, reopened):
                assert (gallery.info().k1, gallery.info().b) == (k1, b)
                for number in (3, 17):
                    expected = expected_scores(contents, number, parameters)
                    assert scores_by_path(gallery, number) == expected
            reopened.local.snapshot().searcher.build_index()
            assert scores_by_path(reopened, 3) == expected_scores(contents, 3, parameters)
    assert n_compactions > 0
    assert reader.local.snapshot().state.generation > 0
    assert scores_by_path(reader, 3) != expected_scores(contents, 3, Bm25Parameters())
    reader.close()


def test_the_default_parameters_are_those_of_the_paper(tmp_path: Path) -> None:
    info = Gallery.create(tmp_path / "g", vocabulary="toy").info()
    assert (info.k1, info.b) == (1.5, 0.75)
    assert {"k1": 1.5, "b": 0.75}.items() <= info.to_dict().items()


def test_whole_numbers_are_valid_parameters(tmp_path: Path) -> None:
    Gallery.create(tmp_path / "g", vocabulary="toy", k1=2, b=1).close()
    with Gallery.open(tmp_path / "g") as gallery:
        assert (gallery.info().k1, gallery.info().b) == (2.0, 1.0)


@pytest.mark.parametrize(
    ("k1", "b", "message"),
    [
        (-0.1, 0.75, "k1 = -0.1: give a number from 0 to 1,000,000"),
        (float("nan"), 0.75, "k1 = nan"),
        (float("inf"), 0.75, "k1 = inf"),
        (1.5, -0.1, "b = -0.1: give a number from 0 to 1"),
        (1.5, 1.1, "b = 1.1"),
        (1.5, float("nan"), "b = nan"),
    ],
)
def test_invalid_parameters_raise_wrong_use_and_create_nothing(
    k1: float, b: float, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidOption, match=message):
        Gallery.create(tmp_path / "g", vocabulary="toy", k1=k1, b=b)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [-1.0, "1.5", None])
def test_damaged_parameters_raise_gallery_damaged(tmp_path: Path, value: object) -> None:
    Gallery.create(tmp_path / "g", vocabulary="toy").close()
    with sqlite3.connect(tmp_path / "g" / catalog.FILE_NAME) as db:
        if value is None:
            db.execute("DELETE FROM meta WHERE key = 'k1'")
        else:
            db.execute("UPDATE meta SET value = ? WHERE key = 'k1'", [value])
    db.close()
    with pytest.raises(GalleryDamaged, match=r"catalog\.sqlite"):
        Gallery.open(tmp_path / "g")


@pytest.fixture
def gallery_with_parameters(photos: Path, tmp_path: Path) -> Gallery:
    gallery = Gallery.create(tmp_path / "g", vocabulary="toy", k1=0.9, b=0.4)
    gallery.add(photos)
    return gallery


def test_hybrid_mode_weighs_words_by_the_highest_score_that_k1_allows(
    gallery_with_parameters: Gallery,
) -> None:
    gallery, pixels = gallery_with_parameters, make_pixels(3)
    results = gallery.search(pixels, mode="hybrid", k=12)
    bag = pool_codes(gallery.vocabulary.encode(pixels).codes, k_post=192)
    words = combine_bags([bag], by_strength=True)
    masses = gallery.local.snapshot().full_statistics.idf_masses(words)
    factor = MODES["hybrid"].words / (1.9 * float(masses.sum()))
    assert results.sparse_factor == pytest.approx(factor)
    for hit in results:
        assert hit.dense is not None
        assert hit.score == pytest.approx(hit.dense + factor * hit.sparse)


@pytest.mark.parametrize("mode", ["sparse", "words"])
def test_contributions_and_explanations_use_the_parameters(
    gallery_with_parameters: Gallery, photos: Path, mode: Mode
) -> None:
    gallery, query = gallery_with_parameters, photos / "3.png"
    hits = gallery.search(query, mode=mode, k=12).hits
    assert len(hits) > 3
    for hit in hits:
        norm = 0.9 * (1 - 0.4 + 0.4 * hit.length / hit.average_length)
        for word in hit.words:
            assert word.saturation == pytest.approx(word.tf * 1.9 / (word.tf + norm))
        explanation = gallery.explain(query, hit.path, mode=mode)
        assert explanation.parameters == Bm25Parameters(k1=0.9, b=0.4)
        assert explanation.sparse == hit.score
        assert gallery.match(query, hit.path, mode=mode).sparse == hit.score
        parts = [part.word.contribution for part in explanation.parts]
        assert sum(parts) == pytest.approx(hit.score, abs=1e-9)
