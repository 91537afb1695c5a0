"""How many independent samples a sequence of latencies is worth: what decides how long to go on sampling, and every bound."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_POINTS = 256
_LEVELS = 3
_LEAST_ABOVE = 10
"""Samples above a level that is asked besides the percentile itself: fewer lie next to one another by chance."""


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """The sample's percentile: the smallest value with at least that share of the ascending samples at or below it."""
    return ordered[_rank(len(ordered), fraction)]


def effective_samples(samples: Sequence[float], fraction: float) -> float:
    """How many independent samples this sequence (in the order of time) is worth for one percentile, at most as many as it has.

    Slow stretches make neighbours alike, and the binomial bounds then promise too much. Whether a sample lies above the
    percentile is a sequence whose integrated autocorrelation time says how many samples tell as much as one independent one.
    The upper bound lies higher, where slow stretches stand out from the noise: the levels that leave a half and a quarter of
    the samples above the percentile are asked too, and the longest time counts. docs/measuring.md has what that covers.
    """
    values = np.asarray(samples, dtype=np.float64)
    count = len(values)
    if count == 0:
        return 0.0
    ranks = [_rank(count, level) for level in _levels(count, fraction)]
    longest = max(_correlation_time(values, float(limit)) for limit in np.partition(values, ranks)[ranks])
    return count / longest


def _levels(count: int, fraction: float) -> list[float]:
    """The percentile, and those that halve what lies above, while enough of `count` samples does."""
    above = [(1 - fraction) / 2**halvings for halvings in range(_LEVELS)]
    return [fraction, *(1 - share for share in above[1:] if share * count >= _LEAST_ABOVE)]


def _correlation_time(values: NDArray[np.float64], limit: float) -> float:
    """In samples, at least 1: the integrated autocorrelation time of whether a value lies above the limit.

    The initial monotone sequence estimator (Geyer, Practical Markov chain Monte Carlo, Statistical Science 7:473, 1992): sums
    of neighbouring pairs of autocovariances, each at most the one before, up to the first that is not positive. It is taken of
    the means of at most 256 blocks: the long-run variance is theirs as well, the cost does not grow with the square of
    the samples, and a weak dependence over many samples is not lost in the noise of single ones.
    """
    above = values > limit
    share = float(above.mean())
    if share == 0:
        return 1.0
    size = -(-len(above) // _POINTS)
    blocks = above[: len(above) // size * size].reshape(-1, size).mean(axis=1)
    blocks -= blocks.mean()
    twice, least = -_covariance(blocks, 0), math.inf
    for lag in range(0, len(blocks) - 1, 2):
        least = min(least, _covariance(blocks, lag) + _covariance(blocks, lag + 1))
        if least <= 0:
            break
        twice += 2 * least
    return max(1.0, size * twice / (share * (1 - share)))


def _covariance(centred: NDArray[np.float64], lag: int) -> float:
    return float(centred[: len(centred) - lag] @ centred[lag:]) / len(centred)


def _rank(count: int, fraction: float) -> int:
    """Of the percentile among ascending samples, from 0."""
    return max(math.ceil(round(fraction * count, 9)), 1) - 1
