"""Parameter types and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from essm_deploy import units
from essm_deploy.errors import UnitError

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType  # older releases of click have no generic form

FORMAT = click.option(
    "--format", "output_format", type=click.Choice(["text", "json"]), default="text", help="How to print the result."
)
THREADS = click.option(
    "--threads", type=click.IntRange(1, 1024), default=None, help="Threads of a call; default: the physical cores."
)
EXISTING = click.Path(path_type=Path)


class Quantity(ParamType):
    """A value with a unit, read by one of the functions of `essm_deploy.units`."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse text; values that are already parsed pass."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except UnitError as error:
            self.fail(str(error), param, ctx)


class Budgets(ParamType):
    """`4,8,12`, or one of the `words`."""

    name = "budgets"

    def __init__(self, words: tuple[str, ...] = ()) -> None:
        self._words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """A tuple of positive integers, ascending, or the word."""
        if not isinstance(value, str) or value in self._words:
            return value
        parts = [part.strip() for part in value.split(",")]
        if not all(part.isdecimal() and part.isascii() and 0 < len(part) < 7 and int(part) > 0 for part in parts):
            spellings = " or ".join(["4,8,12", *self._words])
            self.fail(f"{value!r} is not a list of budgets; write {spellings}", param, ctx)
        return tuple(sorted({int(part) for part in parts}))


LATENCY = Quantity("latency", units.parse_latency)
SIZE = Quantity("size", units.parse_size)
FRACTION = Quantity("fraction", units.parse_fraction)
BUDGETS = Budgets(("all", "trained"))
BUDGET_LIST = Budgets()
