"""What a sample of latencies supports, and no more.

The bounds of a percentile are order statistics of the sample, with no assumption on the distribution: the number of
samples below the true p-quantile is Binomial(n, p), so

    P(x_(j) >= quantile) = P(Binomial(n, p) <= j - 1)        x_(1) <= ... <= x_(n)
    P(x_(i) <= quantile) = P(Binomial(n, p) >= i)

(David and Nagaraja, Order Statistics, 7.1; the same counts as MLPerf's loadgen uses for early stopping). Each bound
holds by itself at the stated confidence. They assume independent samples; `effective_samples` says how many independent
ones a sequence is worth.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from essm_deploy.errors import UnitError
from essm_deploy.runtime.dependence import effective_samples as effective_samples
from essm_deploy.runtime.dependence import percentile as percentile

_TAIL_SIGMAS = 12.0  # mass beyond: below 1e-30


@dataclass(frozen=True)
class Bounds:
    """One-sided bounds of a percentile, None where the sample cannot support one; `needed` samples would support the upper."""

    lower: float | None
    upper: float | None
    needed: int


def percentile_of(statistic: str) -> float:
    """ "p95" -> 0.95, "p99.9" -> 0.999. Raises UnitError for anything else than p1 to p99.99."""
    match = re.fullmatch(r"p([0-9]{1,2}(?:\.[0-9]{1,2})?)", statistic)
    if match is None or not 1 <= float(match[1]) < 100:
        raise UnitError(f"a statistic was read as {statistic[:40]!r}: write a percentile such as p50, p95, p99 or p99.9")
    return round(float(match[1]) / 100, 6)


def percentile_bounds(ordered: Sequence[float], fraction: float, confidence: float, effective: float | None = None) -> Bounds:
    """Bounds of the true percentile from ascending samples, each at `confidence`.

    `effective` is the number of independent samples that these are worth; the ranks are taken there and scaled back.
    """
    count = len(ordered)
    worth = count if effective is None else max(1, min(count, math.floor(effective)))
    low, high = lower_rank(worth, fraction, confidence), upper_rank(worth, fraction, confidence)
    return Bounds(
        lower=None if low is None else ordered[max(1, low * count // worth) - 1],
        upper=None if high is None else ordered[min(count, -(-high * count // worth)) - 1],
        needed=samples_needed(fraction, confidence),
    )


@lru_cache(maxsize=256)
def upper_rank(count: int, fraction: float, confidence: float) -> int | None:
    """The smallest j such that the j-th smallest of `count` samples is at or above the percentile at `confidence`."""
    first, below = _cumulative(count, fraction)
    index = int(np.searchsorted(below, confidence, side="left"))  # P(Binomial <= first + index) >= confidence
    rank = first + index + 1
    return rank if rank <= count else None


@lru_cache(maxsize=256)
def lower_rank(count: int, fraction: float, confidence: float) -> int | None:
    """The largest i such that the i-th smallest of `count` samples is at or below the percentile at `confidence`."""
    first, below = _cumulative(count, fraction)
    rank = first + int(np.searchsorted(below, 1.0 - confidence, side="right"))  # P(Binomial <= rank - 1) <= 1 - confidence
    return rank if rank >= 1 else None


def samples_needed(fraction: float, confidence: float, over: int = 0) -> int:
    """The fewest samples whose (over + 1)-th largest bounds the percentile from above; p99 at 99%: 459, with one over 662."""
    low, high = 0, over + 1
    while not _supports(high, fraction, confidence, over):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _supports(middle, fraction, confidence, over) else (middle, high)
    return high


def drift(samples: Sequence[float]) -> float:
    """Relative change of the median from the first half of the sequence to the second; 0.0 for fewer than two samples."""
    half = len(samples) // 2
    if half == 0:
        return 0.0
    before, after = float(np.median(samples[:half])), float(np.median(samples[half:]))
    return (after - before) / before if before > 0 else 0.0


def variation(samples: Sequence[float]) -> float:
    """Coefficient of variation: standard deviation over mean."""
    mean = float(np.mean(samples))
    return float(np.std(samples)) / mean if mean > 0 else 0.0


def isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The non-decreasing sequence nearest to `values` in weighted least squares (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (a, wa, na), (b, wb, nb) = pools[-2:]
            pools[-2:] = [((a * wa + b * wb) / (wa + wb), wa + wb, na + nb)]
    return [value for value, _, count in pools for _ in range(count)]


def _supports(count: int, fraction: float, confidence: float, over: int) -> bool:
    rank = upper_rank(count, fraction, confidence)
    return rank is not None and rank <= count - over


def _cumulative(count: int, fraction: float) -> tuple[int, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """P(Binomial(count, fraction) <= first + i) for i = 0, 1, ...; below `first` there is no mass worth counting."""
    spread = _TAIL_SIGMAS * math.sqrt(count * fraction * (1 - fraction)) + 2 * _TAIL_SIGMAS
    first, last = max(0, math.floor(count * fraction - spread)), min(count, math.ceil(count * fraction + spread))
    k = np.arange(first, last, dtype=np.float64)
    start = (
        math.lgamma(count + 1)
        - math.lgamma(first + 1)
        - math.lgamma(count - first + 1)
        + first * math.log(fraction)
        + (count - first) * math.log1p(-fraction)
    )
    steps = np.log((count - k) / (k + 1)) + math.log(fraction / (1 - fraction))
    mass = np.exp(start + np.concatenate(([0.0], np.cumsum(steps))))
    return first, np.cumsum(mass)
