"""Captions as numbers of English words and phrases; the longest phrase counts."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import pyarrow.parquet as pq

from bm25v.vocabulary.phrases import SMALL_WORDS, list_singulars, split_text

MIN_PHOTOS = 10  # of a word
MIN_PHRASE_PHOTOS = 40
MIN_LIFT = 8.0  # how many times as often as by chance two words follow each other
LONGEST = 3  # words of a phrase
_PLURAL_ALONE = {  # they do not mean several of what they seem to be the plural of
    *("arms", "bangs", "binoculars", "blinds", "braces", "brakes", "briefs", "cards", "chips"),
    *("clothes", "glasses", "goggles", "goods", "greens", "headphones", "heels", "jeans"),
    *("leggings", "news", "overalls", "pajamas", "pants", "ruins", "scissors", "shades", "shorts"),
    *("species", "stairs", "suds", "sunglasses", "sweats", "tights", "tongs", "trunks", "woods"),
}

Captions = Mapping[str, Sequence[str]]


def read_coco(path: Path, skipped: Path) -> dict[str, list[str]]:
    """Return the captions of each photo of COCO, by its name, without those to be skipped."""
    held_out = set(skipped.read_text().split())
    captions: dict[str, list[str]] = {}
    for row in pq.read_table(path).to_pylist():
        name = Path(row["URL"]).stem
        if name not in held_out:
            captions.setdefault(name, []).append(row["TEXT"])
    return captions


class Reader:
    """Turns texts into numbers of the words and phrases that it knows."""

    def __init__(self, phrases: Iterable[str]) -> None:
        self.phrases = tuple(phrases)
        self._numbers = {phrase: number for number, phrase in enumerate(self.phrases)}

    def __len__(self) -> int:
        return len(self.phrases)

    def read(self, text: str) -> list[int]:
        """Return the phrases of a text, the longest at each position."""
        keys, numbers, at = split_keys(text), [], 0
        while at < len(keys):
            for n in range(min(LONGEST, len(keys) - at), 0, -1):
                number = self.find(*keys[at : at + n])
                if number is not None:
                    numbers.append(number)
                    break
            at += n
        return numbers

    def list_all(self, text: str) -> set[int]:
        """Return all phrases of a text, also those within longer ones: "girl" of "little girl"."""
        keys = split_keys(text)
        runs = (keys[at : at + n] for n in range(1, LONGEST + 1) for at in range(len(keys) - n + 1))
        return {number for run in runs if (number := self.find(*run)) is not None}

    @lru_cache(maxsize=1_000_000)  # noqa: B019 - a reader lives as long as the script
    def find(self, *keys: str) -> int | None:
        *first, last = keys
        for ending in (last, *list_singulars(last)):
            number = self._numbers.get(" ".join((*first, ending)))
            if number is not None:
                return number
        return None


def split_keys(text: str) -> list[str]:
    return [token.key for token in split_text(text)]


def find_phrases(captions: Captions) -> list[str]:
    """Return the words and phrases of captions that enough photos have, most frequent first.

    A plural is the same word as its singular.
    """
    photos = [[split_keys(caption) for caption in texts] for texts in captions.values()]
    counts = Counter(key for texts in photos for key in {key for keys in texts for key in keys})
    singular = {key: _singular(key, counts) for key in counts}
    words: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    for texts in photos:
        words.update({singular[key] for keys in texts for key in keys})
        runs.update({run for keys in texts for run in _list_runs(keys, singular)})
    total = len(photos)
    chosen = {
        word: n
        for word, n in words.items()
        if n >= MIN_PHOTOS and word not in SMALL_WORDS and re.fullmatch("[a-z]{2,}", word)
    }
    for run, n in runs.items():
        parts = run.split(" ")
        expected = math.prod(counts[part] / total for part in parts) * total
        is_noun = not parts[-1].endswith(("ing", "ed"))  # "people standing" is two words
        if n >= MIN_PHRASE_PHOTOS and is_noun and n >= MIN_LIFT ** (len(parts) - 1) * expected:
            chosen[run] = n
    return sorted(chosen, key=lambda phrase: (-chosen[phrase], phrase))


def _singular(key: str, counts: Mapping[str, int]) -> str:
    if key in _PLURAL_ALONE:
        return key
    known = (s for s in list_singulars(key) if counts.get(s, 0) >= max(5, counts[key] / 50))
    return next(known, key)


def _list_runs(keys: Sequence[str], singular: Mapping[str, str]) -> set[str]:
    """Return the runs of two or three words that start and end with a telling one."""
    runs = set()
    for n in range(2, LONGEST + 1):
        for at in range(len(keys) - n + 1):
            run = [*keys[at : at + n - 1], singular[keys[at + n - 1]]]
            if SMALL_WORDS.isdisjoint((run[0], run[-1])):
                runs.add(" ".join(run))
    return runs
