"""Bounds of a percentile that need no assumption on the distribution, as small as a device's runtime can have them.

Of n independent samples, those below the true p-quantile are Binomial(n, p), so the j-th smallest is at or above it with
probability P(Binomial(n, p) <= j - 1), and at or below it with P(Binomial(n, p) >= j). (David and Nagaraja, Order
Statistics, 7.1.) That neighbouring calls are alike is not looked at here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def bounds(samples: Sequence[float], fraction: float, confidence: float) -> tuple[float | None, float | None]:
    """Lower and upper bound of the `fraction`-quantile, each at `confidence`; None where the samples cannot support one."""
    ordered = sorted(samples)
    below = _cumulative(len(ordered), fraction)
    lower = sum(mass <= 1 - confidence for mass in below)  # the largest i with P(Binomial <= i - 1) <= 1 - confidence
    upper = next((j for j, mass in enumerate(below[: len(ordered)], 1) if mass >= confidence), None)
    return (ordered[lower - 1] if lower >= 1 else None), (ordered[upper - 1] if upper else None)


def quantile(samples: Sequence[float], fraction: float) -> float:
    """The samples' own: the smallest with at least that fraction of them at or below it."""
    ordered = sorted(samples)
    return ordered[max(1, math.ceil(round(fraction * len(ordered), 9))) - 1]


def _cumulative(count: int, fraction: float) -> list[float]:
    """P(Binomial(count, fraction) <= i) for i from 0 to count."""
    total, result = 0.0, []
    for i in range(count + 1):
        ways = math.lgamma(count + 1) - math.lgamma(i + 1) - math.lgamma(count - i + 1)
        total += math.exp(ways + i * math.log(fraction) + (count - i) * math.log1p(-fraction))
        result.append(total)
    return result
