"""The intervals of a comparison cover the truth on calls that depend on each other, and find a difference that is there."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.signal import lfilter

from essm_deploy.profiling.reporting.contrast import Estimate, Ratio, common, estimate, ratio


def calls(rng: np.random.Generator, count: int, slower: float = 1.0, memory: float = 0.9) -> list[float]:
    """Latencies whose logarithm is a first-order autoregression, and one call in fifty that takes three times as long."""
    noise = rng.standard_normal(count + WARM) * math.sqrt(1 - memory**2)
    level = lfilter([1.0], [1.0, -memory], noise)[WARM:]
    return (slower * np.exp(0.05 * level) * np.where(rng.random(count) < 0.02, 3.0, 1.0)).tolist()  # type: ignore[no-any-return]


WARM = 200  # draws until the autoregression has forgotten where it began: 0.9 ** 200 is 7e-10
PAIRS = 200
MOST_WRONG = PAIRS * 0.05 + 3 * math.sqrt(PAIRS * 0.05 * 0.95)  # what 95% promises, and three standard errors


@pytest.mark.parametrize("slower", [1.0, 1.1])
@pytest.mark.parametrize("fraction", [0.5, 0.95])
@pytest.mark.parametrize("memory", [0.0, 0.9])
def test_the_interval_holds_the_truth_as_often_as_it_promises(slower: float, fraction: float, memory: float) -> None:
    rng = np.random.default_rng(7)
    wrong = 0
    for _ in range(PAIRS):
        found = ratio(*(estimate(calls(rng, 800, factor, memory), fraction, 0.95) for factor in (1.0, slower)))
        assert found is not None
        wrong += not ((found.lower or 0) <= slower <= (found.upper or math.inf))
    assert wrong <= MOST_WRONG


def test_a_tenth_slower_is_seen() -> None:
    rng = np.random.default_rng(11)
    found = [ratio(*(estimate(calls(rng, 800, factor), 0.5, 0.95) for factor in (1.0, 1.1))) for _ in range(50)]
    assert sum(f is not None and f.verdict == "B is slower" for f in found) >= 48


def test_the_two_directions_of_a_comparison_agree() -> None:
    a, b = Estimate(2.0, 1.8, 2.3), Estimate(3.0, 2.9, 3.3)
    there, back = ratio(a, b), ratio(b, a)
    assert there is not None
    assert back is not None
    assert there.value == pytest.approx(1 / back.value)
    assert there.lower == pytest.approx(1 / (back.upper or 0))
    assert there.upper == pytest.approx(1 / (back.lower or 0))


def test_the_interval_is_that_of_the_formula() -> None:
    found = ratio(Estimate(2.0, 1.8, 2.3), Estimate(3.0, 2.9, 3.3))
    assert found is not None
    reach = math.sqrt(math.log(3.0 / 2.9) ** 2 + math.log(2.3 / 2.0) ** 2)
    assert found.lower == pytest.approx(math.exp(math.log(1.5) - reach))


def test_a_bound_that_is_not_supported_is_missing_and_decides_nothing() -> None:
    found = ratio(Estimate(2.0, 1.9, None), Estimate(1.0, 0.9, 1.1))
    assert found is not None
    assert (found.lower, found.verdict) == (None, "B is faster")  # the upper end needs A's lower and B's upper bound only
    open_ended = ratio(Estimate(2.0, None, 2.1), Estimate(1.0, 0.9, 1.1))
    assert open_ended is not None
    assert (open_ended.upper, open_ended.verdict) == (None, "cannot tell")
    assert ratio(Estimate(0.0, None, None), Estimate(1.0, 0.9, 1.1)) is None


def test_what_all_budgets_have_in_common_includes_how_processes_differ() -> None:
    found = common([1.10, 1.12, 1.08, 1.11, 1.09])
    assert found is not None
    assert found.verdict == "B is slower"
    assert found.value == pytest.approx(1.1, abs=0.001)
    assert common([1.10, 0.92, 1.05, 0.97, 1.0]) is not None
    scattered = common([1.10, 0.92, 1.05, 0.97, 1.0])
    assert scattered is not None
    assert scattered.verdict == "no difference seen"
    assert common([1.1, 1.2]) is None


def test_students_interval_is_the_textbooks() -> None:
    found = common([math.exp(value) for value in (0.1, 0.2, 0.3)])
    assert found is not None
    assert math.log(found.upper or 0) == pytest.approx(0.2 + 4.302652730 * 0.1 / math.sqrt(3))  # t(0.975, 2)


def test_one_sided_knowledge_can_decide() -> None:
    assert Ratio(1.5, 1.2, None).verdict == "B is slower"
    assert Ratio(0.5, None, 0.9).verdict == "B is faster"
    assert Ratio(1.0, None, 1.1).verdict == "cannot tell"
