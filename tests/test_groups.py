"""Groups of an explanation: they sum to the score, and say what would change the rank."""

from pathlib import Path

import numpy as np
import pytest

from bm25v.explain.groups import REST
from bm25v.gallery import Gallery
from bm25v.search.scoring import MODES, Mode
from bm25v.vocabulary.labels import list_labels
from tests.lexicons import make_lexicon, save_vocabulary


@pytest.fixture
def lexical(photos: Path, tmp_path: Path) -> Gallery:
    """A gallery with a small lexicon."""
    folder = save_vocabulary(tmp_path / "mine.vocab")
    gallery = Gallery.create(tmp_path / "lexical.bm25v", vocabulary=str(folder))
    gallery.add(photos)
    return gallery


@pytest.mark.parametrize("mode", MODES)
def test_groups_sum_to_the_score_in_every_mode(lexical: Gallery, photos: Path, mode: Mode) -> None:
    image, text = photos / "4.png", "a cat or grass, without a dog"
    for query in ((image, None), (None, text), (image, text)):
        hits = lexical.search(query[0], text=query[1], k=6, mode=mode)
        assert len(hits) > 0
        for hit in hits:
            explanation = hit.explain()
            groups = explanation.groups
            assert sum(group.value for group in groups) == pytest.approx(hit.score, abs=1e-5)
            counted = [group.share for group in groups if group.value > 0]
            assert sum(counted) <= 1 + 1e-6
            assert len({group.label for group in groups}) == len(groups)
            if query[1] is None and not explanation.match.sparse_factor:
                assert [group.kind for group in groups] == ["similarity"], "words did not order"


def test_the_rank_without_a_group_is_that_of_a_search_without_its_words(
    gallery: Gallery, photos: Path
) -> None:
    compared = 0
    for hit in gallery.search(photos / "4.png", k=5, mode="words"):
        for group in hit.explain().groups:
            if group.kind != "words":
                continue
            muted: dict[int | str, float] = dict.fromkeys(group.words, 0.0)
            other = gallery.search(photos / "4.png", k=12, mode="words", boost=muted)
            ranks = {h.path: h.rank for h in other}
            if hit.path in ranks:
                assert group.rank_without == ranks[hit.path]
                compared += 1
    assert compared > 5


def test_the_rank_without_a_term_is_that_of_a_search_without_it(lexical: Gallery) -> None:
    for hit in lexical.search(text="cat dog", k=12):
        cat, dog = hit.explain().groups
        for group, kept in ((cat, "dog"), (dog, "cat")):
            other = {h.path: h.rank for h in lexical.search(text=kept, k=12)}
            assert group.rank_without == other[hit.path]


def test_every_word_is_in_one_group_and_maps_show_where(gallery: Gallery, photos: Path) -> None:
    for hit in gallery.search(photos / "4.png", k=3):
        explanation = hit.explain()
        words = [word for group in explanation.groups for word in group.words]
        assert sorted(words) == sorted(part.word.word for part in explanation.parts)
        for group in explanation.groups:
            if group.kind == "words":
                assert group.in_hit is not None
                assert group.in_hit.sum() > 0
            assert group.label == REST or group.kind == "similarity" or group.share > 0


def test_names_that_people_gave_name_groups(gallery: Gallery, photos: Path) -> None:
    image = photos / "4.png"
    first = gallery.search(image)[0].words[0].word
    gallery.name_words({first: "zigzag"})
    explanation = gallery.search(image)[0].explain()
    (named,) = (group for group in explanation.groups if group.label == "zigzag")
    assert first in named.words
    assert f"zigzag {named.share:.0%}" in explanation.sentence


def test_without_the_file_of_a_hit_groups_have_the_names_of_the_results(
    photos: Path, tmp_path: Path
) -> None:
    vocabulary = save_vocabulary(tmp_path / "mine.vocab", make_lexicon(seed=4))
    gallery = Gallery.create(tmp_path / "mine.bm25v", vocabulary=vocabulary)
    gallery.add({path.name: path.read_bytes() for path in photos.iterdir()})
    n_named = []
    for photo in sorted(photos.iterdir()):
        words = [word.word for word in gallery.search(photo).query]
        names = dict.fromkeys(words[:40], "cat") | dict.fromkeys(words[40:80], "dog")
        gallery.local.names.replace_automatic(names, dict.fromkeys(names, ""))
        results = gallery.search(photo, k=1)
        chips = {group.label for group in results.group_words().query if group.label}
        groups = {group.label for group in results[0].explain().groups if group.kind == "words"}
        assert groups <= chips
        n_named.append((len(groups), len(chips)))
    assert any(groups for groups, _ in n_named)
    assert (0, 0) in n_named, "a photo shows neither"


def test_groups_are_named_after_what_the_hit_shows_where_they_are(
    photos: Path, tmp_path: Path
) -> None:
    """The direction of one label is that of a hit, so it shows nothing but that label."""
    lexicon = make_lexicon((("dog",), ("grass",)), estimated=())
    toy = Gallery.create(tmp_path / "toy.bm25v", vocabulary="toy").vocabulary
    vector_e = toy.encode(photos / "5.png").dense_e
    lexicon.tensors["directions"][0] = np.rint(127 * vector_e / np.abs(vector_e).max())
    lexicon.tensors["directions"][1] = -lexicon.tensors["directions"][0]
    lexicon.tensors["direction_scales"][:] = 1.0
    lexicon.tensors["means"][:] = 0.0
    folder = save_vocabulary(tmp_path / "mine.vocab", lexicon)
    gallery = Gallery.create(tmp_path / "mine.bm25v", vocabulary=str(folder))
    gallery.add(photos)
    explanation = gallery.explain(photos / "4.png", photos / "5.png")
    assert "dog" in [group.label for group in explanation.groups]
    assert "grass" not in [group.label for group in explanation.groups]
    assert explanation.sentence.startswith("Both show: dog ")
    assert {"dog", "grass", "palm tree"} <= set(list_labels())
