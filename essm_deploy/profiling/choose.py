"""Choosing the largest budget that surely meets every limit, with as few engines measured as the question needs.

Cost grows with the budget, so the search is a bisection over the candidates that the quality limits leave, the largest
first: a generous limit is answered by one engine. A budget fits when its upper bound meets every limit. A second look
in a fresh process, with as many samples as the first one suggests, is taken

- where a limit lies between the bounds, or below them while other processes kept the processor: a busy machine proves nothing
  against an engine whose fastest call meets the limit;
- where an engine meets the limit by little: a short look may have seen no slow stretch of the device;
- where an engine exceeds a limit although the isotonic fit over everything measured says that it should not (larger budgets
  were faster: something disturbed it);
- at the engine just above the chosen one, where it exceeds the latency limit by little or was unstable.

No engine gets a third look: the bounds are computed for two (see Latency). What is still unclear then is not chosen,
and makes the answer inconclusive if it is the budget just above the chosen one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from essm_deploy.errors import UsageError, WorkerError
from essm_deploy.profiling.nothing_fits import Relaxation, explain, quality_relaxations, relaxations
from essm_deploy.profiling.quality import Candidate, split_by_quality
from essm_deploy.profiling.statistics import isotonic
from essm_deploy.profiling.verdict import (
    LOOKS,
    Attempt,
    BudgetKey,
    Finding,
    Limits,
    Measurement,
    Side,
    Verdict,
    disturbed,
    judge,
    overall,
)

_NEAR = 1.25  # an engine within a quarter of the limit deserves the second look before it is ruled out
_BARELY = 1.1  # and one that has less than a tenth to spare, before it is ruled in
SECOND_LOOK_LEAST, _SCALE_MOST = 6.0, 20.0
_SCALE_SURE = 4.0
"""How many times the samples that would do: the first look's figures, which say how many these are, are rough themselves."""


Measure = Callable[[BudgetKey, Attempt], Measurement]


@dataclass(frozen=True)
class Choice:
    """The answer. `certain` says whether the chosen budget surely fits; it is the largest that does.

    Where none surely fits and the smallest may, the status is inconclusive and the smallest is chosen, not certain.
    `deciding` is the budget whose figures decided: the one just above the chosen one, or the chosen one if there is
    none above. `excluded` maps budgets to the quality limit that they miss (those were not measured).
    """

    status: Literal["ok", "nothing_fits", "inconclusive"]
    chosen: BudgetKey | None
    deciding: BudgetKey | None
    candidates: tuple[Candidate, ...]
    measurements: dict[BudgetKey, Measurement]
    verdicts: dict[BudgetKey, Verdict]
    excluded: dict[BudgetKey, str]
    findings: tuple[Finding, ...] = ()
    relaxations: tuple[Relaxation, ...] = ()
    message: str = ""
    certain: bool = True


def choose(candidates: Sequence[Candidate], limits: Limits, measure: Measure, *, exhaustive: bool = False) -> Choice:
    """The largest of the ascending `candidates` that surely meets `limits`.

    `measure` is called with a budget and an Attempt, and may raise WorkerError: that budget then counts as one that
    does not fit. `exhaustive` measures every candidate that the quality limits leave. Without it, at most ceil(log2 n)
    + 2 engines are measured. Raises WorkerError if no engine could be measured that decides, and whatever else
    `measure` raises.
    """
    if not candidates:
        raise UsageError("there is no budget to choose from")
    admitted, excluded = split_by_quality(candidates, limits)
    search = _Search(admitted, limits, measure)
    if not admitted:
        return _none_admitted(candidates, limits, excluded)
    low = search.exhaust() if exhaustive else search.bisect(-1, len(admitted))
    low = search.confirm(low, may_measure=exhaustive)
    return _answer(candidates, excluded, search, low)


class _Search:
    """What has been measured so far, by index into the admitted candidates."""

    def __init__(self, admitted: Sequence[Candidate], limits: Limits, measure: Measure) -> None:
        self.admitted = admitted
        self.limits = limits
        self._measure = measure
        self.results: dict[int, Measurement] = {}
        self.failures: dict[int, WorkerError] = {}
        self._looks: dict[int, int] = {}
        self._most = math.ceil(math.log2(max(1, len(admitted)))) + 2

    def bisect(self, low: int, high: int) -> int:
        """The largest index that fits, between one that fits (or -1) and one that does not (or n)."""
        if high == len(self.admitted) and low < high - 1:
            if self.side(high - 1) == "fits":
                return high - 1
            high -= 1
        while high - low > 1 and len(self._looks) < self._most:
            middle = (low + high) // 2
            low, high = (middle, high) if self.side(middle) == "fits" else (low, middle)
        return low

    def exhaust(self) -> int:
        """Measure everything, the largest first, and return the largest index that fits."""
        sides = {index: self.side(index) for index in reversed(range(len(self.admitted)))}
        return max((index for index, side in sides.items() if side == "fits"), default=-1)

    def confirm(self, low: int, *, may_measure: bool) -> int:
        """Look again at the engine just above `low` where that is worth it; if it fits after all, go on from there."""
        above = self.next_measured(low)
        while above is not None and self._looks[above] < LOOKS and self._doubtful(above):
            self._look(above, self._scale(above))
            if self.judged(above) != "fits":
                break
            low = self.exhaust() if may_measure else self.bisect(above, self._next_not_fitting(above))
            above = self.next_measured(low)
        return low

    def side(self, index: int) -> Side:
        """On which side of the limits a candidate lies, after as many looks as that takes."""
        if index not in self._looks:
            self._look(index, 1.0)
        again = self.judged(index) == "unclear" or self._contradicts(index) or self._barely_fits(index)
        if again and self._looks[index] < LOOKS:
            self._look(index, self._scale(index))
        return self.judged(index)

    def findings(self, index: int) -> list[Finding]:
        """The figures against the limits; empty if the engine could not be measured."""
        return judge(self.results[index], self.limits) if index in self.results else []

    def judged(self, index: int) -> Side:
        """The side by what is known, without another look."""
        return "exceeds" if index in self.failures else overall(self.findings(index))

    def next_measured(self, low: int) -> int | None:
        """The smallest index above `low` that was looked at."""
        return min((index for index in self._looks if index > low), default=None)

    def reason(self, index: int) -> str:
        """What the figures say against the limits, for people."""
        if index in self.failures:
            return f"budget {self.admitted[index].budget} failed: {self.failures[index]}"
        reasons = [finding.reason for finding in self.findings(index)]
        return f"budget {self.admitted[index].budget}: " + ("; ".join(reasons) or "no limit was given")

    def _look(self, index: int, scale: float) -> None:
        number = self._looks.get(index, 0) + 1
        self._looks[index] = number
        try:
            self.results[index] = self._measure(self.admitted[index].budget, Attempt(number, scale))
            self.failures.pop(index, None)
        except WorkerError as error:
            self.failures[index] = error
            self.results.pop(index, None)
            if number < LOOKS:
                self._look(index, 1.0)

    def _contradicts(self, index: int) -> bool:
        """Whether the isotonic fit over everything measured lies below this engine's own lower bound."""
        if index in self.failures or self.judged(index) != "exceeds":
            return False
        known = sorted(self.results)
        latencies = [self.results[i].latency for i in known]
        fit = isotonic([entry.value for entry in latencies], [entry.effective_samples for entry in latencies])
        lower = self.results[index].latency.lower
        return lower is not None and fit[known.index(index)] < lower

    def _barely_fits(self, index: int) -> bool:
        limit = self.limits.max_latency_ms
        if limit is None or self.judged(index) != "fits":
            return False
        upper = self.results[index].latency.upper
        return upper is not None and upper * _BARELY > limit

    def _doubtful(self, index: int) -> bool:
        limit = self.limits.max_latency_ms
        if index in self.failures or limit is None or self.judged(index) != "exceeds":
            return False
        exceeded = {finding.limit for finding in self.findings(index) if finding.side == "exceeds"}
        result = self.results[index]
        near = result.latency.lower is not None and result.latency.lower <= _NEAR * limit
        return exceeded == {"max_latency"} and (near or bool(result.warnings))

    def _scale(self, index: int) -> float:
        """How many times the samples would clear the limit of the interval, if the sample's own figure is right."""
        limit, latency = self.limits.max_latency_ms, self.results[index].latency
        if disturbed(self.results[index]):
            return 1.0  # a longer look at a busy machine sees no more
        if limit is None:
            return SECOND_LOOK_LEAST
        bound = latency.upper if latency.value <= limit else latency.lower
        distance = abs(latency.value - limit)
        if bound is None:
            wanted = _SCALE_SURE * latency.needed_samples / latency.effective_samples
        else:
            wanted = _SCALE_SURE * (abs(bound - latency.value) / distance) ** 2 if distance > 0 else _SCALE_MOST
        return min(_SCALE_MOST, max(SECOND_LOOK_LEAST, wanted))

    def _next_not_fitting(self, index: int) -> int:
        above = [i for i in self._looks if i > index and self.judged(i) != "fits"]
        return min(above, default=len(self.admitted))


def _none_admitted(candidates: Sequence[Candidate], limits: Limits, excluded: dict[BudgetKey, str]) -> Choice:
    ways = tuple(quality_relaxations(candidates, limits))
    reason = f"no budget has the quality asked for: {next(iter(excluded.values()))}"
    return Choice(
        "nothing_fits", None, None, tuple(candidates), {}, {}, excluded, relaxations=ways, message=explain(reason, ways)
    )


def _answer(candidates: Sequence[Candidate], excluded: dict[BudgetKey, str], search: _Search, low: int) -> Choice:
    above = search.next_measured(low)
    deciding = low if above is None else above
    if low < 0 and deciding in search.failures:
        raise search.failures[deciding]
    status: Literal["ok", "nothing_fits", "inconclusive"] = "ok" if low >= 0 else "nothing_fits"
    if search.judged(deciding) == "unclear":
        status = "inconclusive"
    findings = tuple(search.findings(deciding))
    budgets = [candidate.budget for candidate in search.admitted]
    may_fit = status == "inconclusive" and search.judged(0) == "unclear"
    ways = tuple(relaxations(budgets[deciding], findings)) if status == "nothing_fits" else ()
    return Choice(
        status=status,
        chosen=budgets[low] if low >= 0 else budgets[0] if may_fit else None,
        deciding=budgets[deciding],
        candidates=tuple(candidates),
        measurements={budgets[index]: search.results[index] for index in sorted(search.results)},
        verdicts=_verdicts(search, deciding, status),
        excluded=excluded,
        findings=findings,
        relaxations=ways,
        message=explain(search.reason(deciding), ways),
        certain=low >= 0,
    )


def _verdicts(search: _Search, deciding: int, status: str) -> dict[BudgetKey, Verdict]:
    verdicts = {}
    for index in sorted({*search.results, *search.failures}):
        reasons = tuple(finding.reason for finding in search.findings(index))
        if index in search.failures:
            verdict = Verdict("failed", (str(search.failures[index]),))
        elif index == deciding and status == "inconclusive":
            verdict = Verdict("inconclusive", reasons)
        else:
            verdict = Verdict("valid", reasons)
        verdicts[search.admitted[index].budget] = verdict
    return verdicts
