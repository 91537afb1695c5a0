"""A device whose latency is a known law with heavy-tailed noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from essm_deploy.profiling.verdict import Attempt, BudgetKey, Latency, Measurement, Memory, stability_warnings

BODY, SPIKE_SHARE, SPIKE_TAIL = 0.03, 0.03, 2.0


@dataclass
class Device:
    """Latency a + b K ms times noise: a log-normal body, and one call in 33 slower by a Pareto factor of infinite variance."""

    a: float
    b: float
    seed: int
    count: int = 600
    calls: list[tuple[BudgetKey, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def samples(self, budget: float, count: int) -> np.ndarray:
        noise = np.exp(BODY * self.rng.standard_normal(count))
        spikes = self.rng.random(count) < SPIKE_SHARE
        return (self.a + self.b * budget) * noise * np.where(spikes, 1 + self.rng.pareto(SPIKE_TAIL, count), 1.0)

    def measure(self, budget: BudgetKey, attempt: Attempt) -> Measurement:
        self.calls.append((budget, attempt.number))
        samples = self.samples(float(budget), round(self.count * attempt.scale)).tolist()
        return measurement(budget, samples, attempt=attempt.number)


def measurement(
    budget: BudgetKey, samples: Sequence[float], *, attempt: int = 1, peak_bytes: int | None = 50 * 2**20
) -> Measurement:
    latency = Latency.from_samples(samples)
    warnings = tuple(stability_warnings(samples, latency))
    return Measurement(budget, latency, Memory(peak_bytes), tuple(samples), attempt=attempt, warnings=warnings)


def true_p95_factor() -> float:
    """p95 of the noise, from ten million draws (standard error below 2e-5)."""
    device = Device(1.0, 0.0, seed=123)
    return float(np.mean([np.quantile(device.samples(1, 1_000_000), 0.95) for _ in range(10)]))
