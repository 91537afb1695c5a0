"""The candidates, and the limits that need no measurement on the device: what a budget is worth was measured in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from essm_deploy.profiling.verdict import BudgetKey, Limits


@dataclass(frozen=True)
class Quality:
    """A budget's quality. `direction` says what is better; `retention` is the share of the largest budget's, 1 = all."""

    metric: str
    value: float
    direction: Literal["higher", "lower"] = "higher"
    retention: float | None = None


@dataclass(frozen=True)
class Candidate:
    """A budget that could be chosen; None is a quality that nobody measured (an integer between the trained budgets)."""

    budget: BudgetKey
    quality: Quality | None = None


def split_by_quality(candidates: Sequence[Candidate], limits: Limits) -> tuple[list[Candidate], dict[BudgetKey, str]]:
    """The candidates that the quality limits leave, in order, and for each of the others what it misses."""
    excluded = {}
    for candidate in candidates:
        reason = missed_quality(candidate, limits)
        if reason:
            excluded[candidate.budget] = reason
    return [candidate for candidate in candidates if candidate.budget not in excluded], excluded


def better_below(candidates: Sequence[Candidate], chosen: BudgetKey) -> Candidate | None:
    """The best of the ascending candidates below the chosen one, if its quality is better; a smaller budget wins a draw.

    Quality need not grow with the budget, so the largest that fits need not be the best.
    """
    at = next(index for index, candidate in enumerate(candidates) if candidate.budget == chosen)
    best = candidates[at]
    for candidate in reversed(candidates[:at]):
        if _at_least_as_good(candidate.quality, best.quality, strictly=best is candidates[at]):
            best = candidate
    return None if best is candidates[at] else best


def _at_least_as_good(one: Quality | None, other: Quality | None, *, strictly: bool) -> bool:
    if one is None or other is None:
        return False
    gain = one.value - other.value if one.direction == "higher" else other.value - one.value
    return gain > 0 or (gain == 0 and not strictly)


def missed_quality(candidate: Candidate, limits: Limits) -> str:
    """What keeps the candidate out, or nothing."""
    reasons = [_missed_value(candidate, limits.min_quality), _missed_retention(candidate, limits.min_retention)]
    return "; ".join(reason for reason in reasons if reason)


def _missed_value(candidate: Candidate, bound: float | None) -> str:
    if bound is None:
        return ""
    quality = candidate.quality
    if quality is None:
        return f"budget {candidate.budget}: its quality was never measured, {bound:g} is asked for"
    met = quality.value >= bound if quality.direction == "higher" else quality.value <= bound
    return "" if met else f"budget {candidate.budget}: {quality.metric} is {quality.value:g}, {bound:g} is asked for"


def _missed_retention(candidate: Candidate, bound: float | None) -> str:
    if bound is None:
        return ""
    retention = candidate.quality.retention if candidate.quality is not None else None
    if retention is None:
        return f"budget {candidate.budget}: its retention was never measured, {bound:.1%} is asked for"
    return "" if retention >= bound else f"budget {candidate.budget}: it retains {retention:.1%}, {bound:.1%} is asked for"
