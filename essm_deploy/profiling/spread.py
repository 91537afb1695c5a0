"""The spread between builds: the winner built anew, in fresh processes, and what that says about the choice.

An engine that is built twice may not be as fast twice. Each rebuild is judged as the winner was. One that surely exceeds a
limit makes the answer inconclusive, for the budget was chosen because it surely fits; one that leaves a limit open is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from essm_deploy.profiling.choose import SECOND_LOOK_LEAST, Choice
from essm_deploy.profiling.verdict import Attempt, BudgetKey, Limits, Measurement, Side, Verdict, disturbed, judge, overall

Rebuild = Callable[[BudgetKey, int, Attempt], Measurement]
"""Builds a budget's engine anew and measures it: the budget, the number of the rebuild from 1, how long to look."""


@dataclass(frozen=True)
class Spread:
    """The deciding statistic of every build of the winner, the chosen one first; `side`: the worst side of the rebuilds."""

    statistic: str
    values_ms: tuple[float, ...]
    side: Side

    @property
    def relative_range(self) -> float:
        """(largest - smallest) / smallest."""
        return (max(self.values_ms) - min(self.values_ms)) / min(self.values_ms)

    def to_json(self) -> dict[str, Any]:
        """The key `spread` of a document."""
        return {
            "builds": len(self.values_ms),
            "statistic": self.statistic,
            "latency_ms": list(self.values_ms),
            "relative_range": self.relative_range,
            "rebuilds": self.side,
        }


def measure_spread(choice: Choice, limits: Limits, rebuild: Rebuild, rebuilds: int) -> tuple[Choice, Spread | None]:
    """Rebuild the winner so many times: the choice, less certain where a rebuild says so, and the spread.

    A budget that was chosen without being certain is not rebuilt: there is no spread (None). Raises what `rebuild` raises.
    """
    if choice.chosen is None or not choice.certain or rebuilds < 1:
        return choice, None
    winner = choice.measurements[choice.chosen]
    look = Attempt(1, 1.0 if winner.attempt == 1 or disturbed(winner) else SECOND_LOOK_LEAST)
    again = [rebuild(choice.chosen, number, look) for number in range(1, rebuilds + 1)]
    side = _worst([overall(judge(measurement, limits)) for measurement in again])
    values = tuple(measurement.latency.value for measurement in (winner, *again))
    spread = Spread(winner.latency.statistic, values, side)
    return (_contradicted(choice, limits, again) if side == "exceeds" else choice), spread


def _worst(sides: Sequence[Side]) -> Side:
    return next(side for side in ("exceeds", "unclear", "fits") if side in sides)


def _contradicted(choice: Choice, limits: Limits, again: Sequence[Measurement]) -> Choice:
    assert choice.chosen is not None
    findings = [finding for measurement in again for finding in judge(measurement, limits) if finding.side == "exceeds"]
    reason = f"budget {choice.chosen} met every limit, but built anew it did not: {findings[0].reason}"
    verdicts = {**choice.verdicts, choice.chosen: Verdict("inconclusive", (*choice.verdicts[choice.chosen].reasons, reason))}
    return replace(choice, status="inconclusive", certain=False, deciding=choice.chosen, verdicts=verdicts, message=reason)
