"""Takes the names that people gave to images out of a text: “Anna's birthday”."""

from collections.abc import Container, Mapping

from bm25v.store.filters import Called
from bm25v.vocabulary.phrases import list_singulars, make_key


def take_names(
    text: str, names: Mapping[str, Called], negations: Container[str]
) -> tuple[str, tuple[Called, ...]]:
    """Return what is left of a text, and the images that names in it stand for; the longest count.

    `names` are given by their keys. A name is left in the text if one of `negations` or a minus is
    before it.

    >>> names = {"annas birthday": Called("Anna's birthday", ())}
    >>> take_names("cake at anna’s birthdays!", names, {"no"})
    ('cake at', (Called(name="Anna's birthday", contents=()),))
    >>> take_names("no Anna's birthday", names, {"no"})
    ("no Anna's birthday", ())
    """
    if not names:
        return text, ()
    keyed = [(chunk, key) for chunk in text.split() if (key := make_key(chunk))]
    chunks, keys = [chunk for chunk, _ in keyed], [key for _, key in keyed]
    longest = max(key.count(" ") + 1 for key in names)
    left: list[str] = []
    called: list[Called] = []
    at = 0
    while at < len(keys):
        is_negated = chunks[at][0] in "-−–" or (at > 0 and keys[at - 1] in negations)
        for n in range(0 if is_negated else min(longest, len(keys) - at), 0, -1):
            images = _find_name(" ".join(keys[at : at + n]), names)
            if images is not None:
                called.append(images)
                at += n
                break
        else:
            left.append(chunks[at])
            at += 1
    return (" ".join(left), tuple(dict.fromkeys(called))) if called else (text, ())


def _find_name(key: str, names: Mapping[str, Called]) -> Called | None:
    """Return the name that a key is; its last word may be a plural."""
    first, _, last = key.rpartition(" ")
    endings = (last, *list_singulars(last))
    written = (f"{first} {ending}".lstrip() for ending in endings)
    return next((names[name] for name in written if name in names), None)
