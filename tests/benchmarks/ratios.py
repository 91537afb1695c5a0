"""Medians, spreads and ratios of rounds in which several contenders took turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

Rounds = Sequence[float | None]
"""One figure a round in milliseconds; None where the contender sat out."""


@dataclass(frozen=True)
class Summary:
    """Median, 10th and 90th percentile of `count` rounds."""

    median: float
    p10: float
    p90: float
    count: int


@dataclass(frozen=True)
class Ratio:
    """Median and quartiles of the ratios of single rounds; `best` is that of the two fastest rounds.

    Other work on the machine only ever adds time: where `best` and the median differ much, the run was disturbed.
    """

    median: float
    p25: float
    p75: float
    best: float
    rounds: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        digits = 0 if self.median >= 100 else 2
        median, p25, p75, best = (f"{value:.{digits}f}" for value in (self.median, self.p25, self.p75, self.best))
        return f"{median} ({p25} to {p75}; {best})"


def summary(rounds: Rounds) -> Summary:
    """Of the rounds that were run; ValueError if there are none."""
    values = [value for value in rounds if value is not None]
    if not values:
        raise ValueError("no round was run")
    p10, median, p90 = np.percentile(values, [10, 50, 90])
    return Summary(float(median), float(p10), float(p90), len(values))


def ratio(above: Rounds, below: Rounds) -> Ratio:
    """above / below, round by round: only rounds in which both ran count. ValueError if there is none."""
    both = [(a, b) for a, b in zip(above, below, strict=True) if a is not None and b is not None]
    if not both:
        raise ValueError("no round in which both ran")
    p25, median, p75 = np.percentile([a / b for a, b in both], [25, 50, 75])
    best = min(a for a, _ in both) / min(b for _, b in both)
    return Ratio(float(median), float(p25), float(p75), best, len(both))


def fastest(times: Mapping[str, Rounds]) -> str | None:
    """The contender with the least median; None if nobody ran."""
    ran = {name: summary(rounds).median for name, rounds in times.items() if any(v is not None for v in rounds)}
    return min(ran, key=lambda name: ran[name]) if ran else None
