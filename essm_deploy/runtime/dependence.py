"""How many independent samples a sequence of latencies is worth: what decides how long to go on sampling, and every bound."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

_BATCHES = 20
_LEAST_PER_BATCH = 10
_INFLATION_BY_CHANCE = 1.905
"""The 99% quantile of chi-square with 19 degrees of freedom over 19: what 20 batches of independent samples stay below."""


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """The sample's percentile: the smallest value with at least that share of the ascending samples at or below it."""
    return ordered[_rank(len(ordered), fraction)]


def effective_samples(samples: Sequence[float], fraction: float) -> float:
    """How many independent samples this sequence (in the order of time) is worth for one percentile.

    Slow stretches make neighbours alike, and the binomial bounds then promise too much. Whether a sample lies above the
    percentile is a 0/1 sequence; the variance of its means over 20 batches, against that of independent draws, is the
    inflation (batch means; Law and Kelton, Simulation Modeling and Analysis, 9.5). Inflation that chance alone would
    show is not counted.
    """
    count = len(samples)
    size = count // _BATCHES
    if size < _LEAST_PER_BATCH:
        return float(count)
    values = np.asarray(samples, dtype=np.float64)
    at = _rank(count, fraction)
    over = values > np.partition(values, at)[at]
    means = over[: size * _BATCHES].reshape(_BATCHES, size).mean(axis=1)
    expected = fraction * (1 - fraction) / size
    inflation = float(means.var(ddof=1)) / expected
    return count / inflation if inflation > _INFLATION_BY_CHANCE else float(count)


def _rank(count: int, fraction: float) -> int:
    """Of the percentile among ascending samples, from 0."""
    return max(math.ceil(round(fraction * count, 9)), 1) - 1
