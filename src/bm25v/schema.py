"""Checks JSON that others wrote: what does not fit raises `SchemaError`, with the key and value.

`list_fields` is for JSON that bm25v writes: its types say what it has.
"""

import json
import math
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

MAX_DEPTH = 32  # of tables and lists in each other


class SchemaError(ValueError):
    """A text is not JSON, or a value in it is not what it should be; the message says which."""


class Rule(NamedTuple):
    """What a value must be."""

    expected: str  # in words, after "not"
    accepts: Callable[[Any], bool]


FLAG = Rule("true or false", lambda value: isinstance(value, bool))
TABLE = Rule("a JSON object", lambda value: isinstance(value, Mapping))


def whole(low: int, high: int | None = None) -> Rule:
    """Return the rule of a whole number from `low` to `high`; True and 2.0 are none."""
    bounds = f"of at least {low:,}" if high is None else f"from {low:,} to {high:,}"
    return Rule(
        f"a whole number {bounds}",
        lambda value: type(value) is int and low <= value and (high is None or value <= high),
    )


def number(low: float, high: float) -> Rule:
    """Return the rule of a number from `low` to `high`; NaN and True are none."""
    return Rule(
        f"a number from {low} to {high}",
        lambda value: type(value) in (int, float) and low <= value <= high,
    )


def text(accepts: Callable[[str], bool] = lambda value: True, expected: str = "a text") -> Rule:
    return Rule(expected, lambda value: isinstance(value, str) and accepts(value))


def listing(of: Rule) -> Rule:
    return Rule(
        f"a list of values, each {of.expected}",
        lambda value: isinstance(value, list) and all(map(of.accepts, value)),
    )


def nullable(rule: Rule) -> Rule:
    return Rule(
        f"null or {rule.expected}", lambda value: value is None or bool(rule.accepts(value))
    )


def check_values(values: Mapping[str, Any], rules: Mapping[str, Rule], within: str = "") -> None:
    """Raise `SchemaError` for the first value that its rule does not accept.

    >>> check_values({"size": 0}, {"size": whole(1)}, within="bag.")
    Traceback (most recent call last):
    bm25v.schema.SchemaError: bag.size is 0, not a whole number of at least 1
    """
    for key, rule in rules.items():
        if key not in values:
            raise SchemaError(f"{within}{key} is missing")
        if not rule.accepts(values[key]):
            raise SchemaError(f"{within}{key} is {show_value(values[key])}, not {rule.expected}")


def parse_object(data: bytes, *, allow_nan: bool = False) -> dict[str, Any]:
    """Return the JSON object in some bytes: UTF-8, finite numbers, not nested too deeply.

    `allow_nan` is for programs that write NaN and Infinity, which JSON does not have.
    """
    try:
        value = json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise SchemaError(f"it is not UTF-8 text ({error.reason} at byte {error.start})") from error
    except RecursionError as error:
        raise SchemaError(f"it is nested deeper than {MAX_DEPTH} levels") from error
    except ValueError as error:
        raise SchemaError(f"it is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise SchemaError(f"it is {show_value(value)}, not a JSON object")
    _check_tree(value, allow_nan)
    return value


def _check_tree(value: object, allow_nan: bool, depth: int = 0) -> None:
    if depth > MAX_DEPTH:
        raise SchemaError(f"it is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise SchemaError(
                f"it has the text {show_value(value)}, which is not Unicode"
            ) from error
    elif isinstance(value, float) and not (allow_nan or math.isfinite(value)):
        raise SchemaError(f"it has {value}, which is not a number of JSON")
    elif isinstance(value, dict | list):
        inner = [*value, *value.values()] if isinstance(value, dict) else value
        for part in inner:
            _check_tree(part, allow_nan, depth + 1)


def list_fields(kind: Any) -> dict[str, Any]:
    """Return the public fields of a dataclass or named tuple with their types; else nothing."""
    types = kind.__annotations__ if hasattr(kind, "_fields") else {}
    if is_dataclass(kind):
        types = {field.name: field.type for field in fields(kind)}
    return {name: type_ for name, type_ in types.items() if not name.startswith("_")}


def show_value(value: object) -> str:
    """Return a short text that shows a value, whatever it is.

    >>> show_value("k" * 1000)
    "'kkkkkkkkkkkkkkkkk...kkkkkkkkkkkkkkkkkk'"
    """
    short = reprlib.Repr()
    short.maxlevel, short.maxdict, short.maxlist, short.maxstring = 2, 2, 3, 40
    return short.repr(value)
