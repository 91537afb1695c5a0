from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from essm_deploy.runtime import dependence
from essm_deploy.runtime.dependence import effective_samples
from tests.profiling.dependent import Autoregression

FRACTIONS = st.sampled_from([0.01, 0.5, 0.9, 0.95, 0.99, 0.9999])
LATENCIES = st.lists(st.integers(1, 8) | st.integers(1, 10**6), min_size=1, max_size=600)


@given(LATENCIES, FRACTIONS)
def test_a_sequence_is_worth_one_sample_at_least_and_its_count_at_most(values: list[int], fraction: float) -> None:
    assert 1 <= effective_samples(values, fraction) <= len(values)


@given(LATENCIES, FRACTIONS)
def test_only_the_order_of_the_latencies_counts(values: list[int], fraction: float) -> None:
    assert effective_samples([math.sqrt(value) for value in values], fraction) == effective_samples(values, fraction)


@given(LATENCIES.filter(lambda values: len(values) <= 256), FRACTIONS)
def test_time_may_run_backwards(values: list[int], fraction: float) -> None:
    assert effective_samples(values[::-1], fraction) == pytest.approx(effective_samples(values, fraction))


@pytest.mark.parametrize("samples", [[], [1.0], [2.0] * 50, [1.0] * 5000, [1.0, 2.0] * 400, [math.nan] * 30])
def test_samples_that_do_not_vary_or_alternate_are_taken_as_they_are(samples: list[float]) -> None:
    assert [effective_samples(samples, fraction) for fraction in (0.5, 0.95)] == [len(samples)] * 2


@pytest.mark.parametrize("memory", [0.5, 0.9, 0.97])
def test_the_correlation_time_is_that_of_the_law(memory: float) -> None:
    """Neighbours k calls apart lie on the same side of a normal median with correlation 2 / pi arcsin(memory^k) (Sheppard)."""
    law = 1 + 2 * sum(2 / math.pi * math.asin(memory**lag) for lag in range(1, 2000))
    rng = np.random.default_rng(1)
    found = np.mean([20_000 / effective_samples(Autoregression(memory).draw(rng, 20_000).tolist(), 0.5) for _ in range(10)])
    assert law < found < 1.35 * law  # the longest of three estimates, each with a standard error of about a tenth


def test_a_coarse_clock_counts_stretches_of_what_lies_above_the_percentile() -> None:
    samples = ([0.1] * 60 + [0.2] * 40) * 5
    assert effective_samples(samples, 0.5) < 50
    assert effective_samples(samples, 0.95) == len(samples)  # no call took longer than 0.2, whenever it came


def test_the_lags_of_a_million_samples_are_those_of_a_few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    points = []
    covariance = dependence._covariance
    monkeypatch.setattr(dependence, "_covariance", lambda *given: points.append(len(given[0])) or covariance(*given))
    steps = np.random.default_rng(2).standard_normal(1_000_000)
    effective_samples(np.cumsum(steps).tolist(), 0.5)
    assert max(points) <= 256
    assert len(points) <= 3 * 257
