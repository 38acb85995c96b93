"""JSON that others wrote: bytes in, values of known types out.

A schema is a table from keys to rules; "backbone.name" is the key `name` in the table `backbone`.
What does not fit raises `SchemaError`, with the key and the value. Not this module's job: which
file it was and what to do about it; callers know that.
"""

import json
import math
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

MAX_DEPTH = 32  # of tables and lists in each other; a program that writes such a value needs few

_MISSING = object()


class SchemaError(ValueError):
    """A text is not JSON, or a value in it is not what it should be; the message says which."""


@dataclass(frozen=True)
class Rule:
    """What a value must be."""

    expected: str  # in words, after "not"
    accepts: Callable[[Any], bool]
    is_required: bool = True


def whole(low: int, high: int | None = None) -> Rule:
    """Return the rule of a whole number from `low` to `high`; True and 2.0 are none.

    >>> [whole(1, 9).accepts(value) for value in (1, 9, 10, True, 2.0, "3", None)]
    [True, True, False, False, False, False, False]
    """
    bounds = f"of at least {low:,}" if high is None else f"from {low:,} to {high:,}"
    return Rule(
        f"a whole number {bounds}",
        lambda value: type(value) is int and low <= value and (high is None or value <= high),
    )


def number(low: float, high: float) -> Rule:
    """Return the rule of a number from `low` to `high`.

    >>> [number(0, 1).accepts(value) for value in (0, 0.5, 1.5, math.nan, True, 10**400)]
    [True, True, False, False, False, False]
    """
    return Rule(
        f"a number from {low} to {high}",
        lambda value: type(value) in (int, float) and low <= value <= high,
    )


def text(accepts: Callable[[str], bool] = lambda value: True, expected: str = "a text") -> Rule:
    """Return the rule of a text."""
    return Rule(expected, lambda value: isinstance(value, str) and accepts(value))


def flag() -> Rule:
    """Return the rule of true and false."""
    return Rule("true or false", lambda value: isinstance(value, bool))


def table() -> Rule:
    """Return the rule of a JSON object."""
    return Rule("a JSON object", lambda value: isinstance(value, Mapping))


def listing(of: Rule, length: int | None = None) -> Rule:
    """Return the rule of a list whose values all have one rule.

    >>> [listing(whole(0), 2).accepts(value) for value in ([1, 2], [1], [1, -2], (1, 2))]
    [True, False, False, False]
    """
    size = "" if length is None else f"{length} values, each "
    return Rule(
        f"a list of {size}{of.expected}",
        lambda value: (
            isinstance(value, list) and length in (None, len(value)) and all(map(of.accepts, value))
        ),
    )


def exactly(wanted: int) -> Rule:
    """Return the rule of one number."""
    return Rule(str(wanted), lambda value: type(value) is int and value == wanted)


def optional(rule: Rule) -> Rule:
    """Return the rule of a value that may be missing."""
    return replace(rule, is_required=False)


def nullable(rule: Rule) -> Rule:
    """Return the rule of a value that may be null.

    >>> [nullable(whole(1)).accepts(value) for value in (None, 1, 0)]
    [True, True, False]
    """
    expected = f"null or {rule.expected}"
    return replace(
        rule, expected=expected, accepts=lambda value: value is None or rule.accepts(value)
    )


def parse_object(data: bytes, *, allow_nan: bool = False) -> dict[str, Any]:
    """Return the JSON object in some bytes: UTF-8, finite numbers, not nested too deeply.

    `allow_nan` is for programs that write NaN and Infinity, which JSON does not have.

    >>> parse_object(b'{"k": 16}')
    {'k': 16}
    >>> parse_object(b'{"k": NaN}')
    Traceback (most recent call last):
    bm25v.schema.SchemaError: it has NaN, which is not a number of JSON
    """
    try:
        value = json.loads(
            data.decode("utf-8-sig"),
            parse_constant=None if allow_nan else _refuse_number,
            parse_float=None if allow_nan else _parse_float,
        )
    except SchemaError:
        raise
    except UnicodeDecodeError as error:
        raise SchemaError(f"it is not UTF-8 text ({error.reason} at byte {error.start})") from error
    except RecursionError as error:
        raise SchemaError(f"it is nested deeper than {MAX_DEPTH} levels") from error
    except ValueError as error:
        raise SchemaError(f"it is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise SchemaError(f"it is {show_value(value)}, not a JSON object")
    _check_tree(value)
    return value


def check_values(values: Mapping[str, Any], schema: Mapping[str, Rule]) -> None:
    """Raise `SchemaError` for the first value that its rule does not accept.

    >>> check_values({"bag": {"size": 0}}, {"bag": table(), "bag.size": whole(1)})
    Traceback (most recent call last):
    bm25v.schema.SchemaError: bag.size is 0, not a whole number of at least 1
    """
    for key, rule in schema.items():
        value = find_value(values, key, _MISSING)
        if value is _MISSING:
            if rule.is_required:
                raise SchemaError(f"{key} is missing")
        elif not rule.accepts(value):
            raise SchemaError(f"{key} is {show_value(value)}, not {rule.expected}")


def find_value(values: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """Return the value of a key such as "backbone.name", or the default.

    >>> find_value({"backbone": {"name": "toy"}}, "backbone.name")
    'toy'
    """
    value: Any = values
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return default
        value = value[part]
    return value


def show_value(value: object) -> str:
    """Return a short text that shows a value, whatever it is.

    >>> show_value("k" * 1000)
    "'kkkkkkkkkkkkkkkkk...kkkkkkkkkkkkkkkkkk'"
    """
    short = reprlib.Repr()
    short.maxlevel, short.maxdict, short.maxlist, short.maxstring = 2, 2, 3, 40
    return short.repr(value)


def _parse_float(literal: str) -> float:
    value = float(literal)
    return value if math.isfinite(value) else _refuse_number(literal[:40])


def _refuse_number(literal: str) -> NoReturn:
    raise SchemaError(f"it has {literal}, which is not a number of JSON")


def _check_tree(value: object) -> None:
    """Raise an error for a value that is nested too deeply, or a text that cannot be written."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        if not level:
            return
        inner: list[object] = []
        for outer in level:
            if isinstance(outer, dict):
                inner += [*outer, *outer.values()]
            elif isinstance(outer, list):
                inner += outer
            elif isinstance(outer, str) and not outer.isascii():
                _check_text(outer)
        level = inner
    raise SchemaError(f"it is nested deeper than {MAX_DEPTH} levels")


def _check_text(value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise SchemaError(f"it has the text {show_value(value)}, which is not Unicode") from error
