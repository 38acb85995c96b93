"""The settings between patch features and a ranking, with their defaults and the paper's values."""

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from bm25v.errors import InvalidOption
from bm25v.index.bm25 import DEFAULT_PARAMETERS, Bm25Parameters
from bm25v.search.scoring import HYBRID_WEIGHT, MODES, Mode
from bm25v.vocabulary import Vocabulary

Pooling = Literal["sum", "max", "top3"]
"""How a word's activations over the patches become its term frequency: the sum of all of them, the
largest, or the sum of the three largest."""

Transform = Literal["none", "sqrt", "log1p"]
"""What is applied to term frequencies before scoring, in images and in queries."""

Weighting = Literal["presence", "tf", "sqrt-tf", "saturated"]
"""How a word of the query is weighted in BM25: 1, its term frequency, the square root of it, or the
saturation that BM25 would give it in an image."""

Scoring = Literal["bm25", "tfidf", "cosine", "dot", "idf", "binary"]
"""BM25; the cosine of tf · IDF, or of tf; the dot product of tf; the summed IDF of the shared
words, or their number."""

ALL = 10**9
"""More words, or candidates, than there can be."""

_CHOICES = {"pooling": Pooling, "tf": Transform, "scoring": Scoring, "query": Weighting}
_COUNTS = ("k_post", "k_full", "k_query", "candidates")
_SWITCHES = ("quantised", "stop_words", "full_bags")


@dataclass(frozen=True)
class RankingSettings:
    """How images are ranked; the defaults are those of `bm25v search`.

    `tf`, `scoring`, `stop` and `quantised` are for the bags of the index: the systems "words" and
    "hybrid" find and order images as searches with these modes do.

    >>> RankingSettings(k_post=64, query="sqrt-tf").non_default
    {'k_post': 64, 'query': 'sqrt-tf'}
    """

    k_post: int | None = None  # words per image in the index; None: the vocabulary's k_post
    k_full: int | None = None  # words per full bag; None: as many as the vocabulary's have
    k_query: int | None = None  # words per query; None: as many as the bags that are scored have
    pooling: Pooling = "sum"
    quantised: bool = True
    tf: Transform = "none"
    scoring: Scoring = "bm25"
    k1: float = DEFAULT_PARAMETERS.k1
    b: float = DEFAULT_PARAMETERS.b
    query: Weighting | None = None  # None: presence in the index, sqrt-tf in full bags
    stop: float = 1.0  # queries ignore words that are in a larger share of the gallery
    stop_words: bool = True  # bags leave out the stop words of the vocabulary
    full_bags: bool = True  # there are full bags, hence the systems "words" and "hybrid"
    candidates: int | None = None  # of the first stage; None: as in a search with that mode
    weight: float = HYBRID_WEIGHT  # of the words in the system "hybrid"

    def __post_init__(self) -> None:
        for name, choice in _CHOICES.items():
            value = getattr(self, name)
            if value not in get_args(choice) and not (name == "query" and value is None):
                raise InvalidOption(
                    f"{name} = {value!r}: choose one of {', '.join(get_args(choice))}"
                )
        Bm25Parameters(self.k1, self.b)  # checks them
        for name, least in {**dict.fromkeys(_COUNTS, 1), "stop": 0, "weight": 0}.items():
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise InvalidOption(f"{name} = {value}: it must be at least {least}")
        if self.stop > 1:
            raise InvalidOption(f"stop = {self.stop}: it must be at most 1")

    @classmethod
    def paper(cls) -> "RankingSettings":
        """Return the paper's method (sections 3 and 4.1), and nothing else."""
        return cls(
            k_post=16,
            k_query=16,
            pooling="sum",
            k1=1.5,
            b=0.75,
            query="presence",
            stop_words=False,
            full_bags=False,
            candidates=200,
        )

    def with_value(self, name: str, text: str) -> "RankingSettings":
        """Return a copy with one setting changed; `text` is the value as a person types it.

        >>> RankingSettings().with_value("k_post", "all").k_post == ALL
        True
        """
        names = [field.name for field in fields(self)]
        if name not in names:
            raise InvalidOption(f"there is no setting {name!r}; choose one of {', '.join(names)}")
        value: Any = text
        expected = "a number"
        try:
            if name in _COUNTS:
                expected = "a whole number or all"
                value = ALL if text == "all" else int(text)
            elif name in _SWITCHES:
                expected = "on or off"
                value = {"on": True, "off": False}[text]
            elif name not in _CHOICES:
                value = float(text)
        except (ValueError, KeyError) as error:
            raise InvalidOption(f"{name} = {text!r}: it must be {expected}") from error
        return replace(self, **{name: value})

    @property
    def non_default(self) -> dict[str, object]:
        defaults = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in vars(self).items() if value != defaults[name]}

    def bag_sizes(self, vocabulary: Vocabulary) -> dict[str, int]:
        """Return `k_post` and `k_full`, which the vocabulary decides unless they are set."""
        return {
            "k_post": self.k_post or vocabulary.k_post,
            "k_full": self.k_full or vocabulary.full_bag_words,
        }

    def candidates_for(self, mode: Mode) -> int:
        """Return how many images the first stage of a mode passes on.

        >>> RankingSettings().candidates_for("two-stage"), RankingSettings().candidates_for("words")
        (200, 1000)
        """
        return self.candidates or MODES[mode].candidates

    @property
    def index_weighting(self) -> Weighting:
        return self.query or "presence"

    @property
    def full_weighting(self) -> Weighting:
        return self.query or "sqrt-tf"

    @property
    def fits_index(self) -> bool:
        """Whether `bm25v.index` can rank with these settings."""
        return self.quantised and self.tf == "none" and self.scoring == "bm25"

    @property
    def parameters(self) -> Bm25Parameters:
        return Bm25Parameters(self.k1, self.b)


def format_setting(value: object) -> str:
    """Return a value as a person types it.

    >>> format_setting(64), format_setting(ALL), format_setting(False), format_setting(2.0)
    ('64', 'all', 'off', '2')
    """
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "all" if value == ALL else str(value)
