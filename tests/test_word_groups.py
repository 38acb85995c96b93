"""The words of a search, for people: in groups by name, and how many images each would leave."""

from pathlib import Path
from typing import Any

import pytest

from bm25v import Gallery, InvalidQuery
from bm25v.client import to_id
from tests.conftest import encode
from tests.http_server import Client
from tests.lexicons import make_lexicon, save_vocabulary
from tests.test_server import client  # noqa: F401 - a fixture


def weigh(gallery: Gallery, image: Path, **options: Any) -> dict[int, float]:
    words = encode(gallery, image, mode="words", **options).words
    return dict(zip(words.words.tolist(), words.weights.tolist(), strict=True))


def test_words_of_one_name_are_one_group(gallery: Gallery, photos: Path) -> None:
    before = gallery.search(photos / "4.png", mode="words", k=5)
    first, second, third, *_ = (word.word for word in before.query)
    gallery.name_words({second: "striped ear", third: "striped ear"})
    results = gallery.search(photos / "4.png", mode="words", k=5)
    groups = results.group_words()
    masses = {word.word: word.weight * word.idf for word in results.query}
    named = next(group for group in groups.query if group.label)
    assert (named.label, named.words) == ("striped ear", (second, third))
    expected = (masses[second] + masses[third]) / sum(masses.values())
    assert named.share == pytest.approx(expected)
    assert (None, (first,)) in [group[:2] for group in groups.query]
    assert 1 < len(groups.query) <= 6
    shares = [group.share for group in groups.query]
    assert shares == sorted(shares, reverse=True)
    assert len(groups.hits) == len(results)
    for hit, of_hit in zip(results, groups.hits, strict=True):
        added = {word.word: word.contribution for word in hit.words}
        assert 0 < len(of_hit) <= 3
        for group in of_hit:
            assert group.share == pytest.approx(
                sum(added[word] for word in group.words) / hit.sparse
            )


def test_words_that_did_not_order_the_hits_are_in_no_group(gallery: Gallery, photos: Path) -> None:
    results = gallery.search(photos / "4.png", mode="dense", k=5)
    assert results.group_words() == ([], [[]] * 5)


def test_a_name_counts_if_the_query_shows_it(photos: Path, tmp_path: Path) -> None:
    vocabulary = save_vocabulary(tmp_path / "mine.vocab", make_lexicon(seed=4))
    with Gallery.create(tmp_path / "g", vocabulary=vocabulary) as gallery:
        gallery.add(photos)
        labels = set()
        for photo in sorted(photos.iterdir()):
            words = [word.word for word in gallery.search(photo, mode="words").query]
            suggested = dict.fromkeys(words[:3], "cat") | dict.fromkeys(words[3:6], "dog")
            gallery.local.names.replace_automatic(suggested, dict.fromkeys(suggested, ""))
            labels.add(tuple(group.label for group in gallery.search(photo).group_words().query))
            gallery.name_words({words[0]: "my cat"})
            own = gallery.search(photo).group_words().query
            assert "my cat" in [group.label for group in own], "people know better"
            gallery.name_words({words[0]: None})
    shown = {label for groups in labels for label in groups if label}
    assert shown, "some photo shows one of them"
    assert any(not any(groups) for groups in labels), "another shows none"


def test_a_name_stands_for_the_words_that_the_query_has(gallery: Gallery, photos: Path) -> None:
    before = weigh(gallery, photos / "4.png")
    (first, second, *_), other = before, next(word for word in range(192) if word not in before)
    gallery.name_words(dict.fromkeys((first, second, other), "ear"))
    doubled = before | {first: 2 * before[first], second: 2 * before[second]}
    assert weigh(gallery, photos / "4.png", boost={"ear": 2}) == doubled
    assert weigh(gallery, photos / "4.png", must="ear") == before
    gallery.name_words({first: None, second: None})
    assert weigh(gallery, photos / "4.png", must="ear") == before | {other: 1}
    assert weigh(gallery, photos / "4.png", boost={"ear": 2}) == before | {other: 2}


def test_a_required_name_may_have_an_excluded_word(gallery: Gallery, photos: Path) -> None:
    first, second, *_ = weigh(gallery, photos / "4.png")
    gallery.name_words(dict.fromkeys((first, second), "ear"))
    options: Any = {"mode": "words", "k": 12, "include_query": True}
    some = gallery.search(photos / "4.png", must="ear", without=first, **options)
    expected = gallery.search(photos / "4.png", must=second, without=first, **options)
    assert [hit.path for hit in some] == [hit.path for hit in expected]
    with pytest.raises(InvalidQuery, match="both required"):
        gallery.search(photos / "4.png", must="ear", without=[first, second])


def test_words_that_a_name_excludes_are_not_boosted(gallery: Gallery, photos: Path) -> None:
    before = weigh(gallery, photos / "4.png")
    first, second, *_ = before
    gallery.name_words(dict.fromkeys((first, second), "ear"))
    rest = {word: weight for word, weight in before.items() if word not in (first, second)}
    assert weigh(gallery, photos / "4.png", without="ear", boost={first: 2}) == rest
    kept = rest | {second: 2 * before[second]}
    assert weigh(gallery, photos / "4.png", without=first, boost={"ear": 2}) == kept
    with pytest.raises(InvalidQuery, match="cannot be boosted"):
        weigh(gallery, photos / "4.png", without=first, boost={first: 2})


def test_the_server_says_how_many_images_remain(
    client: Client,  # noqa: F811
    gallery: Gallery,
    photos: Path,
) -> None:
    image = to_id(photos / "4.png")
    words = [word.word for word in gallery.search(photos / "4.png").query[:8]]
    gallery.name_words({words[0]: "ear", words[1]: "ear"})
    zeros = 0
    for word in ("ear", *words):
        for others in ({}, {"must": [words[2]]}, {"without": [words[3]], "folder": ["1*.png"]}):
            query: dict[str, Any] = {"images": [image], **others}
            if word in (*query.get("must", ()), *query.get("without", ())):
                continue
            remaining = client.post("/v1/remaining", json={**query, "word": word}).json()
            for name, n in remaining.items():
                changed = {**query, name: [*query.get(name, ()), word]}
                options = {"k": 100, "mode": "dense"}
                hits = client.post("/v1/search", json={**changed, **options}).json()["hits"]
                assert n == len(hits), (word, others, name)
                zeros += n == 0
    assert zeros, "some of them exclude each other"
    alone = client.post("/v1/remaining", json={"word": words[0]}).json()
    assert sum(alone.values()) == len(gallery), "a query of nothing else"
