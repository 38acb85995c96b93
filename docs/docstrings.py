"""Docstrings, fields and defaults as Markdown, for the Python reference."""

import importlib
import json
import re
from typing import Any

import griffe

_FIELD = re.compile(r"^((?:\w+, )*\w+): (.*(?:\n {4}.*)*)", flags=re.MULTILINE)


class MarkdownDocstrings(griffe.Extension):
    """Rewrites the docstring of each object."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            paragraphs = obj.docstring.value.split("\n\n")
            obj.docstring.value = "\n\n".join(map(to_markdown, paragraphs))

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """List the fields of a class that its docstring does not list, before its examples."""
        for function in [*cls.functions.values()]:
            if any("cached_property" in str(decorator.value) for decorator in function.decorators):
                cls.set_member(function.name, to_property(function))
        for field in cls.attributes.values():  # an option of `Query`: show its default alone
            if isinstance(field.value, griffe.ExprCall) and str(field.value.function) == "_option":
                field.value = field.value.arguments[0]
        if cls.docstring is None:
            return
        described = {name for f in _FIELD.findall(cls.docstring.value) for name in f[0].split(", ")}
        fields = [f for f in cls.attributes.values() if f.annotation and not f.docstring]
        listed = [f for f in fields if not f.name.startswith("_") and f.name not in described]
        text, *examples = cls.docstring.value.split("\n\n>>> ", 1)
        text += ("\n" if described else "\n\n") + "\n".join(map(describe_field, listed))
        cls.docstring.value = "\n\n>>> ".join([text.rstrip(), *examples])

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Show the value of a default that is a constant, such as `Bm25Parameters.k1`."""
        for parameter in func.parameters:
            if isinstance(parameter.default, griffe.ExprName | griffe.ExprAttribute):
                value: Any = importlib.import_module(func.module.path)
                for name in str(parameter.default).split("."):
                    value = getattr(value, name, None)  # None: a default that is inherited
                if isinstance(value, str | int | float):
                    parameter.default = json.dumps(value)


def to_markdown(paragraph: str) -> str:
    """Return a paragraph of a docstring as Markdown.

    >>> to_markdown("k: the number of hits.")
    '- `k`: the number of hits.'
    """
    if paragraph.startswith(">>> "):
        return f"```pycon\n{paragraph}\n```"
    if _FIELD.match(paragraph):
        return _FIELD.sub(_to_item, paragraph)
    return paragraph


def describe_field(field: griffe.Attribute) -> str:
    """Return a field as an item of a list, with the comment behind it as its meaning."""
    _, _, comment = field.source.partition("  # ")
    meaning = f": {comment}" if comment else ""
    default = "" if field.value is None or "(" in str(field.value) else f" = {field.value}"
    return f"- `{field.name}` (`{field.annotation}{default}`){meaning}"


def to_property(function: griffe.Function) -> griffe.Attribute:
    """Return a method with a decorator that makes it a property, as the reference shows one."""
    attribute = griffe.Attribute(
        function.name, annotation=function.returns, docstring=function.docstring
    )
    attribute.labels.add("property")
    return attribute


def _to_item(field: re.Match[str]) -> str:
    names = ", ".join(f"`{name}`" for name in field[1].split(", "))
    return f"- {names}: {field[2]}"
