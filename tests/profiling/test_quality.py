"""What a budget is worth, where more is not always better."""

from __future__ import annotations

import pytest

from essm_deploy.profiling.quality import Candidate, Quality, better_below


def graded(direction: str, values: dict[int, float | None]) -> list[Candidate]:
    quality = {k: None if v is None else Quality("metric", v, direction) for k, v in values.items()}  # type: ignore[arg-type]
    return [Candidate(budget, quality[budget]) for budget in values]


@pytest.mark.parametrize(
    ("direction", "values", "chosen", "better"),
    [
        ("higher", {2: 0.80, 4: 0.90, 8: 0.85, 16: 0.88}, 16, 4),
        ("higher", {2: 0.90, 4: 0.90, 8: 0.85}, 8, 2),  # of equals, the smallest
        ("higher", {2: 0.80, 4: 0.90, 8: 0.90}, 8, None),  # as good is not better
        ("higher", {2: 0.80, 4: 0.90, 8: 0.95}, 8, None),
        ("higher", {2: 0.80, 4: 0.90, 8: 0.85}, 2, None),  # larger ones do not fit
        ("lower", {2: 2.05, 8: 1.91, 32: 1.93}, 32, 8),
        ("lower", {2: 2.05, 8: 1.91, 32: 1.90}, 32, None),
        ("lower", {2: 2.05, 7: None, 8: 1.91, 32: 1.93}, 32, 8),
        ("lower", {2: 1.0, 7: None}, 7, None),  # nobody knows what 7 is worth
    ],
)
def test_a_smaller_budget_of_better_quality_is_noticed(
    direction: str, values: dict[int, float | None], chosen: int, better: int | None
) -> None:
    found = better_below(graded(direction, values), chosen)
    assert (found.budget if found else None) == better
