"""Latencies that depend on those before them by a known law, and how often the bounds of their percentiles hold the truth.

    python -m tests.profiling.dependent [--runs 500]

prints, for every law, number of calls (and how many times what is enough that is) and percentile: the share of samples whose
upper bound at 95% is at or above the truth, the share that supports none (which holds it), the share whose lower bound is at or
below the truth, and what half of the samples are worth at most.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.signal import lfilter
from scipy.stats import norm

from essm_deploy.profiling.statistics import percentile_bounds
from essm_deploy.runtime.dependence import effective_samples

CONFIDENCE = 0.95
BODY, FACTOR = 0.03, 1.5
TIMES, STRETCHES = 10, 5
"""Correlation times in a sample, and slow stretches in it on average, that make it long enough."""


class Law(Protocol):
    """Latencies in the order of time. `correlation_time`: this many calls tell as much of its state as one independent one.

    `enough`: the calls from which on bounds are to hold. In fewer, what is rare may not have happened.
    """

    @property
    def correlation_time(self) -> float: ...

    @property
    def enough(self) -> float: ...

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]: ...

    def percentile(self, fraction: float) -> float: ...


@dataclass(frozen=True)
class Autoregression:
    """The logarithm is a first-order autoregression with a standard normal law: a heavy tail whose neighbours are alike."""

    memory: float

    @property
    def correlation_time(self) -> float:
        return (1 + self.memory) / (1 - self.memory)

    @property
    def enough(self) -> float:
        return TIMES * self.correlation_time

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        noise = rng.standard_normal(count)
        noise[1:] *= math.sqrt(1 - self.memory**2)  # the first draw is of the stationary law already
        return np.exp(lfilter([1.0], [1.0, -self.memory], noise))

    def percentile(self, fraction: float) -> float:
        return math.exp(norm.ppf(fraction))


@dataclass(frozen=True)
class Switching:
    """A share of the calls is slower by a half, in stretches of geometric length, `stay` calls on average; narrow otherwise."""

    stay: float
    share: float

    @property
    def correlation_time(self) -> float:
        left = (self.stay - 1 / (1 - self.share)) / self.stay  # the correlation of neighbouring states
        return (1 + left) / (1 - left)

    @property
    def enough(self) -> float:
        return max(TIMES * self.correlation_time, STRETCHES * self.stay / self.share)

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        slow = rng.geometric(1 / self.stay, count // 2 + 1)
        normal = rng.geometric(self.share / (self.stay * (1 - self.share)), count // 2 + 1)
        if rng.random() < self.share:  # geometric runs have no memory: the first slow one is already under way
            normal[0] = 0
        ends = np.cumsum(np.stack([normal, slow], axis=1).ravel())
        state = np.searchsorted(ends, np.arange(count), side="right") % 2
        return np.exp(BODY * rng.standard_normal(count)) * np.where(state == 1, FACTOR, 1.0)

    def percentile(self, fraction: float) -> float:
        def excess(log: float) -> float:
            fast, slow = norm.cdf(log / BODY), norm.cdf((log - math.log(FACTOR)) / BODY)
            return float((1 - self.share) * fast + self.share * slow - fraction)

        return math.exp(brentq(excess, -1.0, 2.0, xtol=1e-12))


@dataclass(frozen=True)
class Coverage:
    """Shares of the samples, and the median of what they are worth."""

    upper: float
    lower: float
    unsupported: float
    worth: float


def coverage(
    law: Law,
    count: int,
    fraction: float,
    runs: int,
    *,
    worth: Callable[[Sequence[float], float], float] = effective_samples,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Coverage:
    """How the bounds of `runs` samples of `count` calls do. A bound that is not supported holds."""
    rng, truth = np.random.default_rng(seed), law.percentile(fraction)
    upper, lower, unsupported, found = 0, 0, 0, []
    for _ in range(runs):
        samples = law.draw(rng, count)
        found.append(worth(samples, fraction))  # type: ignore[arg-type]  # an array is a sequence of numbers
        bounds = percentile_bounds(np.sort(samples), fraction, confidence, found[-1])  # type: ignore[arg-type]
        upper += bounds.upper is None or bounds.upper >= truth
        lower += bounds.lower is None or bounds.lower <= truth
        unsupported += bounds.upper is None
    return Coverage(upper / runs, lower / runs, unsupported / runs, float(np.median(found)))


LAWS: tuple[Law, ...] = (
    *(Autoregression(memory) for memory in (0.0, 0.3, 0.7, 0.9, 0.97)),
    *(Switching(stay, share) for share in (0.1, 0.3) for stay in (20, 60, 200)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    runs = parser.parse_args().runs
    print(f"{'law':36} {'calls':>5} {'enough':>6} {'':4} {'upper':>6} {'none':>6} {'lower':>6} {'worth':>6}")
    for law in LAWS:
        for count in (100, 300, 1000, 3000):
            for name, fraction in (("p50", 0.5), ("p95", 0.95)):
                found, times = coverage(law, count, fraction, runs), count / law.enough
                shares = " ".join(f"{share:6.1%}" for share in (found.upper, found.unsupported, found.lower))
                print(f"{law!r:36} {count:5} {times:6.1f} {name:4} {shares} {found.worth:6.0f}", flush=True)


if __name__ == "__main__":
    main()
