"""Docstrings as Markdown, for the Python reference.

In: docstrings as they are in the code, with doctests, trees, and lists of `name: meaning`; the
fields of a class, with a comment behind each. Out: Markdown with code blocks and lists. Not this
module's job: what a docstring says.
"""

import re
from typing import Any

import griffe

_FIELD = re.compile(r"^((?:\w+, )*\w+): (.*(?:\n {4}.*)*)", flags=re.MULTILINE)


class MarkdownDocstrings(griffe.Extension):
    """Rewrites the docstring of each object."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite it paragraph by paragraph."""
        if obj.docstring is not None:
            paragraphs = obj.docstring.value.split("\n\n")
            obj.docstring.value = "\n\n".join(map(to_markdown, paragraphs))

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """List the fields of a class, unless its docstring does."""
        fields = [f for f in cls.attributes.values() if f.annotation and not f.docstring]
        listed = [f for f in fields if not f.name.startswith("_")]
        if (
            cls.docstring is not None
            and listed
            and f"`{listed[0].name}`: " not in cls.docstring.value
        ):
            cls.docstring.value += "\n\n" + "\n".join(map(describe_field, listed))


def to_markdown(paragraph: str) -> str:
    """Return a paragraph of a docstring as Markdown.

    >>> to_markdown("k: the number of hits.")
    '- `k`: the number of hits.'
    """
    if paragraph.startswith(">>> "):
        return f"```pycon\n{paragraph}\n```"
    if "\n├── " in paragraph:
        return f"```text\n{paragraph}\n```"
    if _FIELD.match(paragraph):
        return _FIELD.sub(_to_item, paragraph)
    return paragraph


def describe_field(field: griffe.Attribute) -> str:
    """Return a field as an item of a list, with the comment behind it as its meaning."""
    _, _, comment = field.source.partition("  # ")
    meaning = f": {comment}" if comment else ""
    return f"- `{field.name}` (`{field.annotation}`){meaning}"


def _to_item(field: re.Match[str]) -> str:
    names = ", ".join(f"`{name}`" for name in field[1].split(", "))
    return f"- {names}: {field[2]}"
