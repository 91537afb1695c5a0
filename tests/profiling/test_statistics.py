from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from essm_deploy.errors import UnitError
from essm_deploy.profiling.stability import DEPENDENCE_WARNING
from essm_deploy.profiling.statistics import (
    drift,
    effective_samples,
    isotonic,
    lower_rank,
    percentile,
    percentile_bounds,
    percentile_of,
    samples_needed,
    upper_rank,
    variation,
)


@pytest.mark.parametrize(
    ("fraction", "confidence", "over", "count"),
    [(0.99, 0.99, 0, 459), (0.99, 0.99, 1, 662), (0.99, 0.95, 0, 299), (0.95, 0.95, 0, 59), (0.95, 0.975, 0, 72)],
)
def test_the_counts_that_a_claim_takes(fraction: float, confidence: float, over: int, count: int) -> None:
    assert samples_needed(fraction, confidence, over) == count
    enough, short = list(range(count)), list(range(count - 1))
    assert percentile_bounds(enough, fraction, confidence).upper is not None
    if over == 0:
        assert percentile_bounds(enough, fraction, confidence).upper == enough[-1]
        bounds = percentile_bounds(short, fraction, confidence)
        assert (bounds.upper, bounds.needed) == (None, count)


@given(st.integers(1, 5000), st.sampled_from([0.5, 0.9, 0.95, 0.99]), st.sampled_from([0.901, 0.951, 0.975, 0.989]))
def test_ranks_are_those_of_the_binomial_distribution(count: int, fraction: float, confidence: float) -> None:
    high, low = upper_rank(count, fraction, confidence), lower_rank(count, fraction, confidence)
    below = stats.binom(count, fraction)
    if high is None:
        assert below.cdf(count - 1) < confidence
    else:
        assert below.cdf(high - 1) >= confidence > below.cdf(high - 2)
    if low is None:
        assert below.sf(0) < confidence
    else:
        assert below.sf(low - 1) >= confidence > below.sf(low)


def test_ranks_stay_right_for_a_million_samples() -> None:
    high = upper_rank(1_000_000, 0.99, 0.95)
    assert high == int(stats.binom(1_000_000, 0.99).ppf(0.95)) + 1


@pytest.mark.parametrize("count", [60, 300, 1500])
def test_each_bound_covers_the_true_percentile_as_often_as_it_says(count: int) -> None:
    rng, runs, truth = np.random.default_rng(count), 2000, float(stats.lognorm(0.5).ppf(0.95))
    above = below = 0
    for _ in range(runs):
        bounds = percentile_bounds(np.sort(rng.lognormal(0, 0.5, count)).tolist(), 0.95, 0.95)
        above += bounds.upper is not None and bounds.upper >= truth
        below += bounds.lower is not None and bounds.lower <= truth
    slack = 3 * (0.95 * 0.05 / runs) ** 0.5  # three standard errors of the simulation
    assert above / runs >= 0.95 - slack
    assert below / runs >= 0.95 - slack


def test_the_point_estimate_is_an_order_statistic() -> None:
    assert percentile([1.0], 0.99) == 1.0
    assert percentile(list(range(1, 101)), 0.95) == 95
    assert percentile(list(range(1, 101)), 0.5) == 50
    assert percentile(list(range(1, 21)), 0.95) == 19


def test_independent_samples_are_worth_nearly_their_count() -> None:
    rng = np.random.default_rng(0)
    found = [effective_samples(rng.pareto(2.5, 1000).tolist(), 0.95) for _ in range(300)]
    assert max(found) <= 1000
    assert np.mean(found) > 800  # the longest of three estimates, none below one, leans to fewer
    assert np.quantile(found, 0.01) > DEPENDENCE_WARNING * 1000


def test_slow_stretches_are_worth_fewer_and_widen_the_bounds() -> None:
    rng = np.random.default_rng(1)
    samples = 1 + 0.01 * rng.standard_normal(2000)
    samples[500:700] *= 2  # somebody else took the core for a while
    effective = effective_samples(samples.tolist(), 0.95)
    assert effective < 200
    ordered = sorted(samples.tolist())
    plain, honest = percentile_bounds(ordered, 0.95, 0.95), percentile_bounds(ordered, 0.95, 0.95, effective)
    assert honest.upper is None or honest.upper >= plain.upper  # type: ignore[operator]
    assert honest.lower is None or honest.lower < plain.lower  # type: ignore[operator]


def test_drift_is_the_change_of_the_median() -> None:
    assert drift([1.0] * 10 + [1.5] * 10) == pytest.approx(0.5)
    assert drift([1.0]) == 0.0
    assert variation([1.0, 3.0]) == pytest.approx(0.5)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 10)), min_size=1, max_size=12))
def test_the_isotonic_fit_ascends_and_keeps_the_weighted_mean(points: list[tuple[float, float]]) -> None:
    values, weights = zip(*points, strict=True)
    fit = isotonic(values, weights)
    assert len(fit) == len(values)
    assert all(a <= b for a, b in pairwise(fit))
    assert np.average(fit, weights=weights) == pytest.approx(np.average(values, weights=weights), abs=1e-9)


def test_the_isotonic_fit_agrees_with_scipy() -> None:
    from scipy.optimize import isotonic_regression

    rng = np.random.default_rng(2)
    values, weights = rng.standard_normal(40), rng.uniform(0.5, 2, 40)
    np.testing.assert_allclose(isotonic(values, weights), isotonic_regression(values, weights=weights).x, atol=1e-12)


@pytest.mark.parametrize(("text", "fraction"), [("p50", 0.5), ("p95", 0.95), ("p99.9", 0.999)])
def test_a_statistic_is_a_percentile(text: str, fraction: float) -> None:
    assert percentile_of(text) == fraction


@pytest.mark.parametrize("text", ["mean", "p0", "p100", "95", "p-1", "p99.999", ""])
def test_another_statistic_is_refused(text: str) -> None:
    with pytest.raises(UnitError, match="p95"):
        percentile_of(text)
