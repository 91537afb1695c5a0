"""What the charts show, apart from how they are drawn: panels of marks and rules, which svg.py and png.py draw alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Role = Literal["plain", "chosen", "excluded"]
Rule = Literal["limit", "sweet", "collapse"]


@dataclass(frozen=True)
class Axis:
    """A linear axis from `low` to `high` with its ticks (value, text), and what is to be said of some places below them."""

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    notes: tuple[tuple[float, str], ...] = ()

    def at(self, value: float) -> float:
        """Where a value lies, 0 at the low end and 1 at the high end."""
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Mark:
    """A point with an interval along one axis; `detail` is all that is known of it, in words.

    `label` is written beside it, or `short` where there is too little room. `minor` marks stand for context (the median, the
    99th percentile), the others for the figure that the chart is about.
    """

    x: float
    y: float
    label: str
    detail: str
    role: Role = "plain"
    interval: tuple[float | None, float | None] | None = None
    minor: Literal["below", "above"] | None = None
    short: str = ""


@dataclass(frozen=True)
class Line:
    """A limit or a share of the quality, drawn across the panel; `beyond` is the side on which it lies off the scale."""

    role: Rule
    value: float
    label: str
    beyond: Literal["low", "high"] | None = None


@dataclass(frozen=True)
class Panel:
    """One chart. `vertical` lines stand at an x, `horizontal` ones at a y; intervals run along `along`."""

    name: str
    title: str
    description: str
    x: Axis
    y: Axis
    marks: tuple[Mark, ...]
    along: Literal["x", "y"]
    vertical: tuple[Line, ...] = ()
    horizontal: tuple[Line, ...] = ()
    bars: bool = False
    legend: str = ""


def linear_axis(label: str, values: Sequence[float], shown: Callable[[float], str], *, zero: bool = False) -> Axis:
    """An axis that holds all `values` with some air, and from zero where lengths are compared."""
    low, high = min(values), max(values)
    if zero:
        low = min(0.0, low)
    span = (high - low) or abs(high) or 1.0
    low, high = (low if zero and low == 0 else low - 0.06 * span), high + 0.08 * span
    step = _step(high - low)
    first = math.ceil(low / step)
    ticks = [round(index * step, 12) for index in range(first, math.floor(high / step) + 1)]
    return Axis(label, low, high, tuple((tick, shown(tick)) for tick in ticks))


def category_axis(label: str, names: Sequence[str], notes: Sequence[str], most: int = 14) -> Axis:
    """One place a name, in order, with what is to be said of it; where there are more than `most`, only some are named."""
    every = -(-len(names) // most)
    ticks = tuple((float(index), name) for index, name in enumerate(names) if index % every == 0)
    said = tuple((float(index), note) for index, note in enumerate(notes) if note)
    return Axis(label, -0.6, len(names) - 0.4, ticks, said)


def lines_within(lines: Sequence[Line], values: Sequence[float]) -> tuple[tuple[Line, ...], list[float]]:
    """The lines, those far off the marks moved to the edge; and every value that the axis has to hold."""
    low, high = min(values), max(values)
    reach = max(high - low, 0.35 * abs(high))
    placed, needed = [], list(values)
    for line in lines:
        if line.value > high + reach:
            placed.append(Line(line.role, line.value, line.label, "high"))
        elif line.value < low - reach:
            placed.append(Line(line.role, line.value, line.label, "low"))
        else:
            placed.append(line)
            needed.append(line.value)
    return tuple(placed), needed


def _step(span: float) -> float:
    """The round number (1, 2, 2.5 or 5 times a power of ten) that cuts a span into four to eight."""
    rough = span / 5
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
