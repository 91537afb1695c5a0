"""The budget sampler draws what the paper says."""

from __future__ import annotations

import numpy as np
import pytest

from essm_train.budget import BUDGETS, BudgetSampler

PUBLISHED = (0.0805, 0.1214, 0.0906, 0.0724, 0.0870, 0.1286, 0.1214, 0.1286, 0.1214, 0.0482)


def test_the_intervals_of_xi_have_the_published_lengths() -> None:
    probabilities = BudgetSampler().probabilities()
    assert tuple(probabilities) == BUDGETS
    assert sum(probabilities.values()) == pytest.approx(1.0, abs=1e-12)
    assert tuple(probabilities.values()) == pytest.approx(PUBLISHED, abs=5e-5)  # published to four digits


def test_a_fine_grid_of_xi_falls_into_those_intervals() -> None:
    sampler, n = BudgetSampler(), 200_000
    drawn = [sampler.nearest((i + 0.5) / n) for i in range(n)]
    counts = np.array([drawn.count(k) for k in BUDGETS]) / n
    np.testing.assert_allclose(counts, list(sampler.probabilities().values()), atol=1.1 / n)  # one grid point an edge


def test_the_ends_of_xi_are_the_ends_of_the_budgets() -> None:
    assert BudgetSampler().nearest(0.0) == 2
    assert BudgetSampler().nearest(1.0) == 32


def test_warm_up_is_full_and_so_is_every_eighth_step() -> None:
    sampler = BudgetSampler(warmup_steps=20, n_full=8)
    budgets = [sampler.at(step, xi=0.0) for step in range(60)]
    assert [step for step, k in enumerate(budgets) if k == 32] == [*range(20), 24, 32, 40, 48, 56]
    assert {k for k in budgets if k != 32} == {2}


def test_the_mean_budget_is_that_of_the_paper() -> None:
    mean = sum(k * p for k, p in BudgetSampler().probabilities().items())
    assert mean == pytest.approx(10.77, abs=0.005)


@pytest.mark.parametrize("budgets", [(), (4, 2), (2, 2, 4), (0, 2)])
def test_budgets_ascend(budgets: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="ascending"):
        BudgetSampler(budgets)


def test_a_single_budget_is_always_drawn() -> None:
    assert BudgetSampler((8,)).probabilities() == {8: 1.0}
    assert BudgetSampler((8,)).nearest(0.3) == 8
