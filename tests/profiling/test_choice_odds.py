"""How often the choice is right, and how often the chosen budget is too slow, on a device whose law and noise are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from essm_deploy.profiling.choose import choose
from essm_deploy.profiling.quality import Candidate
from essm_deploy.profiling.verdict import Limits
from tests.profiling.simulated import Device, true_p95_factor

BUDGETS = (2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
CANDIDATES = [Candidate(budget) for budget in BUDGETS]
ENGINES = math.ceil(math.log2(len(BUDGETS))) + 2
CLEAR = 0.05
"""A limit is clear of a candidate whose true p95 is further away than that."""


@cache
def factor(slow: bool) -> float:
    return true_p95_factor(slow=slow)


def law(rng: np.random.Generator) -> Callable[[float], float]:
    """Milliseconds by budget: linear, or in steps as where channels are padded to a multiple, or with a share that grows."""
    a, b, kind = float(rng.uniform(0.1, 3)), float(rng.uniform(0.03, 0.6)), rng.integers(3)
    if kind == 0:
        return lambda k: a + b * k
    if kind == 1:
        return lambda k: a + b * 4 * math.ceil(k / 4)
    return lambda k: a + b * k**1.2


def odds(runs: int, slow: bool) -> tuple[float, float, int]:
    """The share of right answers where no candidate is near the limit, the share of too slow ones, and how many were clear."""
    rng, clear, right, wrong = np.random.default_rng(42), 0, 0, 0
    for seed in range(runs):
        device = Device(0, 0, seed, count=None, slow=slow, law=law(rng))
        truth = {k: device.level(k) * factor(slow) for k in BUDGETS}
        limit = float(rng.uniform(0.9 * truth[2], 1.1 * truth[32]))
        choice = choose(CANDIDATES, Limits(max_latency_ms=limit), device.measure)
        wrong += choice.chosen is not None and truth[int(choice.chosen)] > limit
        if all(abs(value / limit - 1) > CLEAR for value in truth.values()):
            clear += 1
            best = max((k for k in BUDGETS if truth[k] <= limit), default=None)
            right += choice.chosen == best and choice.status != "inconclusive"
        assert len({budget for budget, _ in device.calls}) <= ENGINES
    return right / clear, wrong / runs, clear


@pytest.mark.parametrize("runs", [60, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
@pytest.mark.parametrize("slow", [False, True], ids=["independent", "slow stretches"])
def test_the_choice_is_right_and_rarely_too_slow(slow: bool, runs: int) -> None:
    right, wrong, clear = odds(runs, slow)
    assert clear >= runs // 3
    assert right >= 0.99
    assert wrong <= 0.05


@pytest.mark.parametrize("runs", [60, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
def test_a_candidate_just_above_the_limit_is_chosen_in_at_most_5_percent(runs: int) -> None:
    """The worst case: one budget whose true p95 is the limit and a hair more."""
    wrong = 0
    for seed in range(runs):
        device = Device(a=1.0, b=0.5, seed=seed)
        limit = device.level(8) * factor(False) * (1 - 1e-4)
        wrong += choose(CANDIDATES, Limits(max_latency_ms=limit), device.measure).chosen not in (None, 2, 3, 4, 5, 6)
    assert wrong / runs <= 0.05 + 3 * (0.05 * 0.95 / runs) ** 0.5  # three standard errors of the simulation
