"""Groups the parts of a score by what a person would call them; the groups sum to the score.

A group of visual words is named after what both images show where they are, by the lexicon, as far
as both whole images show it too. So it does not depend on names of single words. What nothing names
is grouped by where it is in the hit.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.backbones import Backbone
from bm25v.backbones.protocol import Floats
from bm25v.display import identify_word
from bm25v.explain.sums import percent_of
from bm25v.search.encode import EncodedQuery
from bm25v.search.naming import choose_names
from bm25v.search.rank import Ranking
from bm25v.search.results import Match, WordContribution
from bm25v.search.text import NamedVocabulary
from bm25v.vocabulary import Encoding, Vocabulary
from bm25v.vocabulary.labels import Labels

Grid = NDArray[np.float32]  # (rows, columns): how much each patch counts

SIMILARITY = "alike overall"
REST = "smaller details"
UNNAMED = "a detail "  # the start of the label of a group that nothing names

_MAX_GROUPS = 6  # of visual words
_LEAST_SHARE = 0.17  # of what words add: a smaller group is often misnamed, and counts as a detail
_SHOWN_FROM = 3.3  # how much regions and whole images must show what a group is named after
_WHOLE_IMAGES = 0.8  # the weight of whole images beside regions
_AS_GOOD = 0.6  # a word may have a name that its region shows less than another one by this much
_NAME_BONUS = 1.0  # of the name that the word has in the gallery
_ROWS, _COLUMNS = ("top", "middle", "bottom"), ("left", "middle", "right")


@dataclass(frozen=True)
class Part:
    """One word's contribution to a score, and where the word is."""

    word: WordContribution
    in_queries: tuple[Grid, ...]  # one grid for each image of the query
    in_hit: Grid | None  # None if the hit's file cannot be read

    def __repr__(self) -> str:
        word = identify_word(self.word.word, self.word.name)
        return f"<Part {word}: {self.word.contribution:.2f}>"

    @property
    def in_query(self) -> Grid | None:
        """Where the word is in the image that has most of it; None if the query has no image."""
        return max(self.in_queries, key=np.sum, default=None)


class Group(NamedTuple):
    """Parts of a score that a person would call by one name.

    A grid has what each patch counts, in any unit.
    """

    kind: Literal["words", "term", "similarity", "rest"]
    label: str
    value: float  # what it adds to the score
    share: float  # of all that counts for the match; below 0 if it counts against it
    words: tuple[int, ...] = ()  # visual words, the largest contribution first
    in_queries: tuple[Grid | None, ...] = ()  # one for each image of the query
    in_hit: Grid | None = None
    rank_without: int | None = None  # of the hit, in a search without this group
    about: str = ""  # that rank, for people

    @property
    def percent(self) -> str:
        """Its share, as it is printed."""
        return ("−" if self.value < 0 else "") + percent_of(abs(self.share), 1)

    def to_dict(self) -> dict[str, Any]:
        return {
            **self._asdict(),
            "percent": self.percent,
            "words": list(self.words),
            "in_queries": list(map(to_shares, self.in_queries)),
            "in_hit": to_shares(self.in_hit),
        }


def to_shares(grid: Grid | None) -> list[list[float]] | None:
    """Return a grid as shares of its peak, for JSON."""
    if grid is None:
        return None
    shares: list[list[float]] = (grid / (grid.max() or 1)).astype(float).round(3).tolist()
    return shares


def list_groups(
    match: Match,
    parts: Sequence[Part],
    hit: Encoding | None,
    encoded: EncodedQuery,
    named: NamedVocabulary,
) -> Iterator[Group]:
    """Yield the parts of the score of a match with an image as groups, which sum to it."""
    whole = sum(max(0.0, part.value) for part in match.parts) or 1.0
    groups = _group_words(parts, hit, encoded, named) if match.sparse_factor else []
    for label, members in groups:
        value = match.sparse_factor * _sum_of(members)
        kind: Literal["words", "rest"] = "rest" if label == REST else "words"
        yield Group(kind, label, value, value / whole, *place_words(members))
    for part in match.parts:
        if part.word is None:
            yield Group("similarity", SIMILARITY, part.value, part.value / whole)


def _group_words(
    parts: Sequence[Part], hit: Encoding | None, encoded: EncodedQuery, named: NamedVocabulary
) -> list[tuple[str, list[Part]]]:
    """Return the words of a match in groups with labels, the largest group first, then the others.

    Names that people gave are kept. If it is not known where a word is, its own name counts, as far
    as the query shows it.
    """
    own = set(named.own_names.values())
    names = {part.word.name for part in parts if part.word.name}
    fitting = choose_names(names, named, encoded.dense_e)
    groups: dict[str, list[Part]] = {}
    unnamed = []
    for part in parts:
        name = named.own_names.get(part.word.word)
        if name is None and part.in_hit is None and part.word.name in fitting:
            name = part.word.name
        if name:
            groups.setdefault(name, []).append(part)
        else:
            unnamed.append(part)
    for part in _name_by_regions(unnamed, hit, encoded, named.vocabulary, groups):
        if part.in_hit is not None and part.in_hit.any():
            groups.setdefault(_describe_position(part.in_hit), []).append(part)
    least = _LEAST_SHARE * sum(abs(part.word.contribution) for part in parts)
    sizes = {label: abs(_sum_of(group)) for label, group in groups.items()}
    large = [label for label, size in sizes.items() if label in own or size >= least]
    large.sort(key=lambda label: -sizes[label])
    kept = sorted(large, key=lambda label: label not in own)[:_MAX_GROUPS]
    grouped = {part.word.word for label in kept for part in groups[label]}
    rest = [part for part in parts if part.word.word not in grouped]
    named_groups = [(label, groups[label]) for label in large if label in kept]
    return [*named_groups, *([(REST, rest)] if rest else [])]


def _name_by_regions(
    parts: Sequence[Part],
    hit: Encoding | None,
    encoded: EncodedQuery,
    vocabulary: Vocabulary,
    named: dict[str, list[Part]],
) -> list[Part]:
    """Add words to groups by what their regions show; return those that nothing names.

    The name that explains most of the score is chosen first, and takes all words whose regions show
    it about as much as anything else.
    """
    names, shown_nt = _read_regions(parts, hit, encoded, vocabulary)
    if not names:
        return list(parts)
    values_n = np.array([max(0.0, part.word.contribution) for part in parts])
    fits_nt = (shown_nt >= _SHOWN_FROM) & (shown_nt >= shown_nt.max(axis=1)[:, None] - _AS_GOOD)
    is_open = np.ones(len(parts), bool)
    weights_nt = fits_nt * shown_nt
    while True:
        sums_t = (values_n * is_open) @ weights_nt
        best = int(sums_t.argmax())
        chosen = np.flatnonzero(fits_nt[:, best] & is_open)
        if not sums_t[best]:
            return [part for part, still in zip(parts, is_open.tolist(), strict=True) if still]
        named.setdefault(names[best], []).extend(parts[i] for i in chosen.tolist())
        is_open[chosen] = False


def _read_regions(
    parts: Sequence[Part],
    hit: Encoding | None,
    encoded: EncodedQuery,
    vocabulary: Vocabulary,
) -> tuple[list[str], Floats]:
    """Return names, and how much both images show each of them: where each word is, and as a whole.

    Of the two images, the one counts that shows less of it.
    """
    lexicon, empty = vocabulary.lexicon, np.empty((len(parts), 0), np.float32)
    if lexicon is None or hit is None or hit.patches_pd is None or not parts:
        return [], empty
    labels = Labels.of(lexicon)
    grids = [part.in_hit for part in parts if part.in_hit is not None]
    vectors_ne = _pool_regions(grids, [hit.patches_pd] * len(grids), vocabulary.backbone)
    if vectors_ne is None or not labels.names:
        return [], empty
    shown_nt = labels.measure(vectors_ne)
    best = [int(np.argmax([grid.sum() for grid in part.in_queries] or [0])) for part in parts]
    known = [patches_pd for patches_pd in encoded.patches if patches_pd is not None]
    if known and len(known) == len(encoded.patches):
        query_grids = [part.in_queries[i] for part, i in zip(parts, best, strict=True)]
        vectors_ne = _pool_regions(query_grids, [known[i] for i in best], vocabulary.backbone)
        if vectors_ne is not None:
            shown_nt = np.minimum(shown_nt, labels.measure(vectors_ne))
    whole = [vector_e for vector_e in (hit.dense_e, encoded.dense_e) if vector_e is not None]
    shown_nt += _WHOLE_IMAGES * labels.measure(np.stack(whole)).min(axis=0) - labels.rarity_t
    position = {name: i for i, name in enumerate(labels.names)}
    for row, part in enumerate(parts):
        if part.word.name in position:
            shown_nt[row, position[part.word.name]] += _NAME_BONUS
    shown_nt[[not grid.any() for grid in grids]] = 0
    return list(labels.names), shown_nt


def _pool_regions(
    grids: Sequence[Grid], patches: Sequence[Floats], backbone: Backbone
) -> Floats | None:
    """Return the dense vectors of regions of images; None if the backbone has none of regions."""
    vectors = []
    for grid, patches_pd in zip(grids, patches, strict=True):
        weights_p = np.ravel(grid)
        mean_d = weights_p @ patches_pd / (weights_p.sum() or 1.0)
        vector_e = backbone.pool_dense(np.asarray(mean_d, np.float32))
        if vector_e is None:
            return None
        vectors.append(vector_e)
    return np.stack(vectors)


def _describe_position(grid: Grid) -> str:
    row, column = np.unravel_index(int(grid.argmax()), grid.shape)
    vertical = _ROWS[int(row) * 3 // grid.shape[0]]
    horizontal = _COLUMNS[int(column) * 3 // grid.shape[1]]
    if vertical == horizontal:
        return f"{UNNAMED}in the middle"
    return f"{UNNAMED}at the " + " ".join(dict.fromkeys((vertical, horizontal)))


def _sum_of(group: Sequence[Part]) -> float:
    return sum(part.word.contribution for part in group)


def place_words(
    parts: Sequence[Part],
) -> tuple[tuple[int, ...], tuple[Grid | None, ...], Grid | None]:
    """Return words, the largest contribution first, and where they are together.

    That is in each image of the query, and in the hit.
    """
    largest = sorted(parts, key=lambda part: -abs(part.word.contribution))
    values = [part.word.contribution for part in largest]
    images = zip(*((part.in_hit, *part.in_queries) for part in largest), strict=True)
    maps = [spread_words(list(zip(values, grids, strict=True))) for grids in images]
    return tuple(part.word.word for part in largest), tuple(maps[1:]), maps[0] if maps else None


def spread_words(values: Sequence[tuple[float, Floats | None]]) -> Floats | None:
    """Return the sum of contributions, each spread over the patches where its word is active.

    Words that count the other way than all of them together are left out.

    >>> spread_words([(6.0, np.array([[1, 2]], np.float32)), (1.0, np.array([[0, 5]], np.float32))])
    array([[2., 5.]], dtype=float32)
    """
    sign = 1 if sum(value for value, _ in values) >= 0 else -1
    return spread_contributions((sign * value, grid) for value, grid in values if sign * value > 0)


def spread_contributions(values: Iterable[tuple[float, Floats | None]]) -> Floats | None:
    """Return the sum of contributions, whatever their signs; None if nothing is known."""
    known = ((value, grid) for value, grid in values if grid is not None and grid.any())
    shares = [value * grid / grid.sum() for value, grid in known]
    return np.asarray(np.sum(shares, axis=0), np.float32) if shares else None


def describe_groups(groups: Sequence[Group], ranking: Ranking | None, *, is_text: bool) -> str:
    """Return the reasons for a match in words.

    >>> dog, grass = Group("words", "dog", 0.4, 0.4), Group("words", "grass", 0.1, 0.1)
    >>> alike = Group("similarity", "alike overall", 0.5, 0.5)
    >>> describe_groups([dog._replace(rank_without=7), grass, alike], None, is_text=False)
    'Both show: dog 40%, grass 10%. Alike overall: 50%.'
    """
    reasons = [group for group in groups if group.kind != "similarity" and group.value > 0]
    named = [g for g in reasons if g.kind != "rest" and not g.label.startswith(UNNAMED)]
    against = [group.label for group in groups if group.kind != "rest" and group.value < 0]
    shares = [f"{group.label} {group.percent}" for group in named]
    others = sum(group.share for group in reasons) - sum(group.share for group in named)
    if others:
        shares.append(f"{'other details' if named else 'details'} {percent_of(others, 1)}")
    sentences = [f"{'Shows' if is_text else 'Both show'}: {', '.join(shares)}."] if shares else []
    for group in groups:
        if group.kind == "similarity" and group.value > 0:
            sentences.append(f"{group.label.capitalize()}: {group.percent}.")
    if against:
        sentences.append(f"Against it: {', '.join(against)}.")
    changed = [g for g in named if ranking and g.rank_without and g.rank_without > ranking.rank]
    if changed and len(groups) > 1:
        most = max(changed, key=lambda group: group.rank_without or 0)
        sentences.append(f"Without {most.label} it would be rank {most.rank_without:,}.")
    return " ".join(sentences)
