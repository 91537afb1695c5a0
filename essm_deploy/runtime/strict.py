"""Reading JSON that somebody else wrote.

A document is refused, never repaired: duplicate keys, NaN, unknown keys and wrong types are errors that name the place.
Every failure is a BundleError, so that no byte sequence can surface as a KeyError or a RecursionError.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from essm_deploy.errors import BundleError

JsonObject = dict[str, Any]


def parse_json(text: str, where: str) -> Any:
    """Decode one JSON document; duplicate keys, non-finite numbers and deep nesting are refused with BundleError."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{where} is not strict JSON: {_one_line(error)}; expected one JSON document") from None


class Fields:
    """The keys of one JSON object, taken one by one; `finish` refuses those that nobody took.

    `strict=False` ignores unknown keys: a newer minor version may add some.
    """

    def __init__(self, value: object, where: str, *, strict: bool = True) -> None:
        if not isinstance(value, dict):
            raise BundleError(f"{where} is {_kind(value)}, expected an object")
        self.where = where
        self.strict = strict
        self._left: JsonObject = dict(value)

    def take(self, name: str, *, optional: bool = False) -> Any:
        """The value under `name`; None if it is absent or null and `optional`."""
        value = self._left.pop(name, None)
        if value is None and not optional:
            raise BundleError(f"{self.where} has no {name!r}")
        return value

    def text(self, name: str, allowed: Iterable[str] = ()) -> str:
        """A string that is not empty, and one of `allowed` if that is given."""
        value = self.take(name)
        choices = tuple(allowed)
        if not isinstance(value, str) or not value or not value.isprintable():
            raise self.wrong(name, value, "a printable string")
        if choices and value not in choices:
            raise self.wrong(name, value, "one of " + ", ".join(choices))
        return value

    def integer(self, name: str, minimum: int, *, optional: bool = False) -> int | None:
        """A whole number of at least `minimum`; None if absent and `optional`."""
        value = self.take(name, optional=optional)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value < 2**63:
            raise self.wrong(name, value, f"a whole number of at least {minimum}")
        return value

    def mapping(self, name: str, *, optional: bool = False) -> JsonObject | None:
        """A JSON object, left as it is."""
        value = self.take(name, optional=optional)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(name, value, "an object")
        return value

    def sequence(self, name: str, *, optional: bool = False) -> list[Any]:
        """A JSON array, left as it is; empty if absent and `optional`."""
        value = self.take(name, optional=optional)
        if value is None and optional:
            return []
        if not isinstance(value, list):
            raise self.wrong(name, value, "an array")
        return value

    def finish(self) -> None:
        """Refuse what is left over."""
        if self.strict and self._left:
            raise BundleError(f"{self.where} has the unknown key {min(self._left)!r}: written by another version?")

    def wrong(self, name: str, value: object, expected: str) -> BundleError:
        """The error for a value of the wrong type or range."""
        return BundleError(f"{self.where}: {name!r} is {_kind(value)}, expected {expected}")


def _unique(pairs: list[tuple[str, Any]]) -> JsonObject:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return result


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is out of range")
    return value


def _kind(value: object) -> str:
    if isinstance(value, (str, int, float, bool)) or value is None:
        shown = json.dumps(value) if not isinstance(value, int) or abs(value) < 10**18 else "a huge number"
        return shown if len(shown) <= 60 else shown[:60] + "..."
    return "an array" if isinstance(value, list) else "an object"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
