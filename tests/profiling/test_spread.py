"""The winner built anew: how far apart builds are, and when that casts a doubt on the choice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from essm_deploy.profiling.choose import choose
from essm_deploy.profiling.quality import Candidate
from essm_deploy.profiling.spread import measure_spread
from essm_deploy.profiling.verdict import Attempt, BudgetKey, Limits, Measurement
from tests.profiling.simulated import measurement

CANDIDATES = [Candidate(budget) for budget in (2, 4, 8)]
LIMITS = Limits(max_latency_ms=8.5)


def steady(budget: BudgetKey, attempt: Attempt) -> Measurement:
    return measurement(budget, [float(budget)] * 300, attempt=attempt.number)


def rebuilt(*levels: float) -> tuple[list[tuple[BudgetKey, int, Attempt]], object]:
    calls: list[tuple[BudgetKey, int, Attempt]] = []

    def rebuild(budget: BudgetKey, number: int, look: Attempt) -> Measurement:
        calls.append((budget, number, look))
        return measurement(budget, [levels[number - 1]] * 300)

    return calls, rebuild


def test_the_winner_alone_is_built_anew_and_the_range_is_told() -> None:
    calls, rebuild = rebuilt(8.2, 7.8)
    choice, spread = measure_spread(choose(CANDIDATES, LIMITS, steady), LIMITS, rebuild, 2)  # type: ignore[arg-type]
    assert [call[:2] for call in calls] == [(8, 1), (8, 2)]
    assert (choice.status, choice.certain, choice.chosen) == ("ok", True, 8)
    assert spread is not None
    assert spread.to_json() == {
        "builds": 3,
        "statistic": "p95",
        "latency_ms": [8.0, 8.2, 7.8],
        "relative_range": pytest.approx(0.4 / 7.8),
        "rebuilds": "fits",
    }


def test_a_rebuild_that_surely_exceeds_the_limit_makes_the_answer_inconclusive() -> None:
    _, rebuild = rebuilt(8.1, 9.0)
    choice, spread = measure_spread(choose(CANDIDATES, LIMITS, steady), LIMITS, rebuild, 2)  # type: ignore[arg-type]
    assert (choice.status, choice.certain, choice.chosen, choice.deciding) == ("inconclusive", False, 8, 8)
    assert choice.message == "budget 8 met every limit, but built anew it did not: p95 is at least 9 ms, above 8.5 ms"
    assert choice.verdicts[8].status == "inconclusive"
    assert spread is not None
    assert spread.side == "exceeds"


def test_a_rebuild_that_leaves_the_limit_open_is_told_and_no_more() -> None:
    def rebuild(budget: BudgetKey, number: int, look: Attempt) -> Measurement:
        return measurement(budget, np.random.default_rng(0).permutation(np.linspace(8.0, 8.53, 300)).tolist())

    choice, spread = measure_spread(choose(CANDIDATES, LIMITS, steady), LIMITS, rebuild, 1)
    assert (choice.status, choice.certain) == ("ok", True)
    assert spread is not None
    assert spread.side == "unclear"


@pytest.mark.parametrize(("limits", "rebuilds"), [(LIMITS, 0), (Limits(max_latency_ms=1.0), 3)])
def test_nothing_is_built_anew_where_nobody_asks_or_nothing_was_chosen(limits: Limits, rebuilds: int) -> None:
    calls, rebuild = rebuilt(8.0)
    before = choose(CANDIDATES, limits, steady)
    assert measure_spread(before, limits, rebuild, rebuilds) == (before, None)  # type: ignore[arg-type]
    assert calls == []


@pytest.mark.parametrize(("first", "waited", "scale"), [(8.0, 0.0, 6.0), (8.0, 0.5, 1.0), (4.0, 0.0, 1.0)])
def test_a_winner_that_was_looked_at_for_long_is_rebuilt_as_thoroughly(first: float, waited: float, scale: float) -> None:
    """Not on a busy machine, where longer is no better."""

    def measure(budget: BudgetKey, attempt: Attempt) -> Measurement:
        return replace(measurement(budget, [first] * 300, attempt=attempt.number), waited_share=waited)

    calls, rebuild = rebuilt(8.0)
    measure_spread(choose(CANDIDATES[2:], LIMITS, measure), LIMITS, rebuild, 1)  # type: ignore[arg-type]
    assert [look.scale for _, _, look in calls] == [scale]
