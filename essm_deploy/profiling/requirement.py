"""Named requirements: one TOML file each, checked key by key. docs/budgets.md explains every key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from essm_deploy.errors import UnitError, UsageError
from essm_deploy.profiling.measure import Settings
from essm_deploy.profiling.verdict import Limits
from essm_deploy.resources import find_toml, shipped_toml
from essm_deploy.schema import StrictModel, parse, read_toml
from essm_deploy.units import format_ms, parse_fraction, parse_latency, parse_size

Kind = Literal["sequence", "stream"]

_LIMITS = ("max_latency", "max_memory", "min_quality", "min_retention")
_OF_LATENCY = ("statistic", "confidence", "pace")
"""What says how a latency is measured, and nothing where none is limited."""


def _duration(value: object) -> object:
    return _parsed(parse_latency, value)


def _size(value: object) -> object:
    return _parsed(parse_size, value)


def _share(value: object) -> object:
    return _parsed(parse_fraction, value)


def _parsed(reader: Any, value: object) -> object:
    """A quantity is text with a unit; a bare number is read as text, so that the complaint names the unit that it lacks."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError("expected text such as in docs/budgets.md")
    try:
        return reader(value if isinstance(value, str) else repr(value))
    except UnitError as error:
        raise ValueError(str(error)) from None


Duration = Annotated[float, BeforeValidator(_duration)]
Size = Annotated[int, BeforeValidator(_size)]
Share = Annotated[float, BeforeValidator(_share)]


class _File(StrictModel):
    """The keys of a file."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=64)
    description: str = Field(min_length=1)
    max_latency: Duration | None = None
    statistic: Literal["p50", "p90", "p95", "p99"] | None = None
    confidence: Annotated[Share, Field(ge=0.5, lt=1)] | None = None
    max_memory: Size | None = None
    min_quality: float | None = None
    min_retention: Share | None = None
    pace: Duration | None = None
    kind: Kind | None = None
    batch: int | None = Field(default=None, ge=1, le=1024)
    threads: int | None = Field(default=None, ge=1, le=1024)


@dataclass(frozen=True)
class Requirement:
    """What a budget must meet, and how that is measured; None is no limit, or the usual setting.

    `name` tells the requirements of one run apart. Milliseconds and bytes.
    """

    name: str | None = None
    description: str = ""
    max_latency: float | None = None
    statistic: str | None = None
    confidence: float | None = None
    max_memory: int | None = None
    min_quality: float | None = None
    min_retention: float | None = None
    pace: float | None = None
    kind: Kind | None = None
    batch: int | None = None
    threads: int | None = None

    @property
    def limits(self) -> Limits:
        """What an engine must meet."""
        return Limits(self.max_latency, self.max_memory, self.min_quality, self.min_retention)

    @property
    def limits_measured(self) -> bool:
        """Whether anything is limited that has to be measured."""
        return self.max_latency is not None or self.max_memory is not None

    def settings(self, usual: Settings) -> Settings:
        """How it is measured: `usual`, with what is stated here in its place."""
        named: dict[str, Any] = {name: getattr(self, name) for name in ("statistic", "confidence", "batch", "threads")}
        return replace(usual, **{name: value for name, value in (named | {"pace_ms": self.pace}).items() if value is not None})

    def overridden(self, **given: Any) -> Requirement:
        """With every value that is given (not None) in the place of its own."""
        return replace(self, **{name: value for name, value in given.items() if value is not None})

    def check(self, where: str) -> None:
        """UsageError, beginning with `where`, for values that contradict each other."""
        if self.kind == "stream" and (self.batch or 1) > 1:
            raise UsageError(f"{where}: kind stream and batch {self.batch} exclude each other: streams are measured one by one")
        if self.pace is not None and self.max_latency is not None and self.pace < self.max_latency:
            raise UsageError(
                f"{where}: max_latency {format_ms(self.max_latency)} is longer than pace {format_ms(self.pace)}: "
                "a call could still be running when the next one is due; expected at most the pace"
            )


def known_requirements() -> dict[str, Path]:
    """Every shipped file by name."""
    return shipped_toml("budgets")


def find_requirement(name: str) -> Requirement:
    """A shipped requirement by name, or a file of one's own by its path (ending in .toml). UsageError otherwise."""
    return read_requirement(find_toml(name, known_requirements(), "budget file", "states limits of your own", UsageError))


def read_requirement(path: Path) -> Requirement:
    """Read and check one file; UsageError names the file, the key and what is allowed."""
    file = parse(_File, read_toml(path, "a file of limits", UsageError), str(path), UsageError)
    stated = {name: value for name, value in file.model_dump().items() if value is not None}
    for problem in _contradictions(stated):
        raise UsageError(f"{path}: {problem}")
    requirement = Requirement(**stated)
    requirement.check(str(path))
    return requirement


def _contradictions(stated: dict[str, Any]) -> Iterator[str]:
    if not stated.keys() & set(_LIMITS):
        yield f"states no limit; expected at least one of {', '.join(_LIMITS)}"
    for name in _OF_LATENCY:
        if name in stated and "max_latency" not in stated:
            yield f"{name} says how a latency is measured, and no max_latency is stated: state it, or leave {name} out"
