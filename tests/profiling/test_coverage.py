"""The bounds of a percentile hold the truth of calls that depend on each other, where there are enough of them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.profiling.dependent import CONFIDENCE, LAWS, Autoregression, Law, Switching, coverage

RUNS = 300
SLACK = 3 * (CONFIDENCE * (1 - CONFIDENCE) / RUNS) ** 0.5  # three standard errors of the simulation


@pytest.mark.parametrize(
    ("law", "count", "fraction"),
    [
        (Autoregression(0.7), 100, 0.5),
        (Autoregression(0.9), 300, 0.5),
        (Autoregression(0.9), 300, 0.95),
        (Autoregression(0.97), 1000, 0.5),
        (Autoregression(0.97), 1000, 0.95),
        (Switching(20, 0.3), 400, 0.5),
        (Switching(20, 0.3), 400, 0.95),
        (Switching(60, 0.3), 1000, 0.5),
        (Switching(20, 0.1), 1000, 0.95),
    ],
)
def test_the_upper_bound_covers_the_percentile_as_often_as_it_says(law: Law, count: int, fraction: float) -> None:
    assert count >= law.enough
    assert coverage(law, count, fraction, RUNS).upper >= CONFIDENCE - SLACK


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_it_covers_93_percent_of_every_law_and_count(law: Law) -> None:
    counts = [count for count in (100, 300, 1000, 3000) if count >= law.enough]
    found = {(n, p): coverage(law, n, p, 2000).upper for n in counts for p in (0.5, 0.95)}
    assert min(found.values(), default=1.0) >= 0.93, found


def test_what_is_independent_supports_a_bound_as_soon_as_it_has_the_samples() -> None:
    found = coverage(Autoregression(0.0), 120, 0.95, RUNS)  # twice the 59 that it takes
    assert found.unsupported <= 0.05


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_a_law_has_the_percentile_and_the_correlation_time_that_it_says(law: Law) -> None:
    rng, count = np.random.default_rng(1), 400_000
    samples = law.draw(rng, count)
    for fraction in (0.5, 0.95):
        error = (fraction * (1 - fraction) * law.correlation_time / count) ** 0.5
        assert abs(np.mean(samples <= law.percentile(fraction)) - fraction) <= 4 * error
