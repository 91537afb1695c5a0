"""A device whose latency is a known law with heavy-tailed noise, measured as the protocol measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from essm_deploy.profiling.measure import Settings
from essm_deploy.profiling.stability import stability_warnings
from essm_deploy.profiling.statistics import percentile_of
from essm_deploy.profiling.verdict import Attempt, BudgetKey, Latency, Measurement, Memory
from essm_deploy.runtime.dependence import effective_samples

BODY, SPIKE_SHARE, SPIKE_TAIL = 0.03, 0.03, 2.0
SLOW_SHARE, SLOW_CALLS, SLOW_FACTOR = 0.1, 10.0, 1.15


@dataclass
class Device:
    """Latency a + b K ms times noise: a log-normal body, and one call in 33 slower by a Pareto factor of infinite variance.

    `slow`: a tenth of the calls come in stretches, of ten on average, that are slower by 15%, so that neighbours are alike.
    `law` takes the place of a + b K. `count` samples a look, or with None as many as the protocol would take.
    """

    a: float
    b: float
    seed: int
    count: int | None = 600
    slow: bool = False
    law: Callable[[float], float] | None = None
    calls: list[tuple[BudgetKey, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def level(self, budget: float) -> float:
        """Milliseconds without noise."""
        return self.law(budget) if self.law else self.a + self.b * budget

    def samples(self, budget: float, count: int) -> NDArray[np.float64]:
        noise = np.exp(BODY * self.rng.standard_normal(count))
        spikes = self.rng.random(count) < SPIKE_SHARE
        noise = noise * np.where(spikes, 1 + self.rng.pareto(SPIKE_TAIL, count), 1.0)
        return self.level(budget) * (noise * np.where(self._stretches(count), SLOW_FACTOR, 1.0) if self.slow else noise)

    def measure(self, budget: BudgetKey, attempt: Attempt) -> Measurement:
        self.calls.append((budget, attempt.number))
        if self.count is None:
            samples = self._protocol(float(budget), Settings().scaled(attempt.scale))
        else:
            samples = self.samples(float(budget), round(self.count * attempt.scale))
        return measurement(budget, samples.tolist(), attempt=attempt.number)

    def _protocol(self, budget: float, settings: Settings) -> NDArray[np.float64]:
        """Enough samples, seconds and independent samples, or the longest time."""
        a_second = 1e3 / self.level(budget)
        taken = self.samples(budget, max(1, min(settings.min_samples, round(settings.max_seconds * a_second))))
        while True:
            seconds = float(taken.sum()) / 1e3
            independent = effective_samples(taken, percentile_of(settings.statistic))
            enough = seconds >= settings.min_seconds and independent >= settings.wanted_samples
            if enough or seconds >= settings.max_seconds:
                return taken
            rest = max(settings.min_seconds - seconds, 0.1 * seconds) * a_second
            taken = np.concatenate([taken, self.samples(budget, max(1, round(rest)))])

    def _stretches(self, count: int) -> NDArray[np.bool_]:
        """Whether each call lies in a slow stretch: alternating runs of geometric lengths, from a random moment on."""
        pairs = 4 + round(4 * count * SLOW_SHARE / SLOW_CALLS)
        slow = self.rng.geometric(1 / SLOW_CALLS, pairs)
        normal = self.rng.geometric(SLOW_SHARE / (SLOW_CALLS * (1 - SLOW_SHARE)), pairs)
        if self.rng.random() < SLOW_SHARE:  # geometric runs have no memory: the first one is already under way
            normal[0] = 0
        runs = np.stack([normal, slow], axis=1).ravel()
        state = np.repeat(np.arange(2 * pairs) % 2 == 1, runs)
        return state[:count] if len(state) >= count else np.concatenate([state, self._stretches(count - len(state))])


def measurement(
    budget: BudgetKey, samples: Sequence[float], *, attempt: int = 1, peak_bytes: int | None = 50 * 2**20
) -> Measurement:
    latency = Latency.from_samples(samples)
    warnings = tuple(stability_warnings(samples, latency))
    return Measurement(budget, latency, Memory(peak_bytes), tuple(samples), attempt=attempt, warnings=warnings)


def true_p95_factor(*, slow: bool = False) -> float:
    """p95 of the noise, from ten million draws (standard error below 1e-4)."""
    device = Device(1.0, 0.0, seed=123, slow=slow)
    return float(np.mean([np.quantile(device.samples(1, 1_000_000), 0.95) for _ in range(10)]))
