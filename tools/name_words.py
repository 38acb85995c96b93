"""Names visual words by what people say about the photos where they are strongest.

A word is named after the noun that captions of half of its strongest photos have much more often
than others, if those of the other half confirm it. Nouns are found by how captions use them: after
an article or an adjective, before a small word or the end.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import captions as texts
import click
import numpy as np
from encode_photos import read_photos
from make_lexicon import Sources, source_options
from numpy.typing import NDArray
from pool_bags import read_bags

from bm25v.store.bags import RowArray
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.names import format_names
from bm25v.vocabulary.phrases import ARTICLES, SMALL_WORDS

_STRONGEST = 30  # photos of each half
_MIN_SHARE = 0.5  # of them, whose captions have the name
_MIN_LIFT = 4.0  # times as often as in all photos
_MIN_PHOTOS = 80  # that have the name
_NOUN_SHARE = 0.12  # of a word's uses that are those of a noun
_UNNAMED = (  # what captions count, compare and arrange with
    "black white red blue green brown yellow orange pink purple gray grey silver gold tan",
    "area background back bunch close closeup couple day different display end edge front group",
    "image item kind left line lot middle number object one other pair photo piece right row scene",
    "set shot side something someone thing top two type variety view way style",
    "person man woman people looking foreground",
)
_NO_NAMES = frozenset(word for line in _UNNAMED for word in line.split())


def find_nouns(captions: texts.Captions, phrases: Sequence[str]) -> set[int]:
    """Return the numbers of the phrases that are used like nouns."""
    reader, used, as_noun = texts.Reader(phrases), Counter[int](), Counter[int]()
    for photo in captions.values():
        for caption in photo[:2]:
            keys = ["", *texts.split_keys(caption), ""]
            for before, key, after in zip(keys, keys[1:], keys[2:], strict=False):
                number = reader.find(key) if key else None
                if number is not None:
                    used[number] += 1
                    ends = not after or after in SMALL_WORDS
                    as_noun[number] += ends and (before in ARTICLES or before == "of")
    nouns = {n for n in used if as_noun[n] >= _NOUN_SHARE * used[n]}
    numbers = {phrase: number for number, phrase in enumerate(phrases)}
    for number, phrase in enumerate(phrases):
        last = phrase.split(" ")[-1]
        if " " in phrase and numbers.get(last) in nouns:
            nouns.add(number)
    return {n for n in nouns if phrases[n].split(" ")[-1] not in _NO_NAMES}


def find_strongest(bags: RowArray, n_words: int) -> dict[int, NDArray[np.int64]]:
    """Return for each word the rows with most of it."""
    levels, words = bags["levels"].ravel(), bags["words"].ravel().astype(np.int64)
    rows = np.repeat(np.arange(len(bags)), bags["words"].shape[1])
    used = levels > 0
    order = np.lexsort((-levels[used].astype(np.int16), words[used]))
    words, rows = words[used][order], rows[used][order]
    bounds = np.searchsorted(words, np.arange(n_words + 1))
    return {w: rows[bounds[w] : bounds[w + 1]][:_STRONGEST] for w in range(n_words)}


@click.command()
@source_options
@click.argument("vocabulary")
def main(vocabulary: str, **paths: Path) -> None:
    """Write names into the folder of a vocabulary, as suggested.tsv."""
    target = Vocabulary.load(vocabulary)
    assert target.folder is not None
    examples, read, phrases, _ = Sources(**paths).read(target.n_words)
    written = texts.read_coco(paths["captions"], paths["skipped"])
    nouns = np.array(sorted(find_nouns(written, phrases)))
    all_photos = read_photos(paths["photos"])
    is_used = np.isin(all_photos.names, read.names)
    stored = read_bags(paths["bags"])[is_used]
    labels = (examples.labels_nt[:, nouns] > 0).astype(np.float32).tocsr()
    base = np.asarray(labels.mean(axis=0)).ravel()
    is_frequent = np.asarray(labels.sum(axis=0)).ravel() >= _MIN_PHOTOS
    halves = [find_strongest(stored[half::2], target.n_words) for half in (0, 1)]
    names, notes = {}, {}
    for word in range(target.n_words):
        shares = [
            np.asarray(labels[half::2][halves[half][word]].mean(axis=0)).ravel()
            if len(halves[half][word]) >= _STRONGEST // 2
            else np.zeros(len(nouns))
            for half in (0, 1)
        ]
        least = np.minimum(*shares)
        lift = least / base.clip(1e-6)
        score = np.where(
            is_frequent & (least >= _MIN_SHARE) & (lift >= _MIN_LIFT),
            least * np.log(lift + 1e-9),
            0,
        )
        best = int(score.argmax())
        if score[best] > 0:
            names[word] = phrases[nouns[best]]
            notes[word] = f"{least[best]:.0%} of its strongest photos, {base[best]:.1%} of all"
    table = format_names(names, vocabulary=target.fingerprint, notes=notes)
    (target.folder / "suggested.tsv").write_text(table, encoding="utf-8")
    print(f"{len(names):,} of {target.n_words:,} words named, {len(set(names.values())):,} names")


if __name__ == "__main__":
    main()
