"""An honest no: how far the nearest budget is from the limits, and which one limit would have to give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from essm_deploy.profiling.quality import Candidate, missed_quality
from essm_deploy.profiling.verdict import BudgetKey, Finding, Limits
from essm_deploy.units import format_bytes, format_ms


@dataclass(frozen=True)
class Relaxation:
    """Changing `limit` alone from `asked` to `to` admits `admits`. `proven`: by measurement, against all other limits."""

    limit: str
    asked: float
    to: float
    admits: BudgetKey
    proven: bool

    def describe(self) -> str:
        """One clause for people: "--max-latency 12.3 ms admits budget 4"."""
        shown = {"max_latency": format_ms, "max_memory": format_bytes}.get(self.limit, "{:.4g}".format)(self.to)
        condition = "" if self.proven else ", if the other limits let it"
        return f"--{self.limit.replace('_', '-')} {shown} admits budget {self.admits}{condition}"


def relaxations(budget: BudgetKey, findings: Sequence[Finding]) -> Iterator[Relaxation]:
    """The one limit that keeps the smallest budget out, if it is only one: relaxing one of several would not help."""
    missed = [finding for finding in findings if finding.side != "fits"]
    if len(missed) == 1 and missed[0].measured is not None:
        yield Relaxation(missed[0].limit, missed[0].bound, missed[0].measured, budget, proven=True)


def quality_relaxations(candidates: Sequence[Candidate], limits: Limits) -> Iterator[Relaxation]:
    """For each quality limit, the least change that admits a budget which meets the other one."""
    proven = limits.max_latency_ms is None and limits.max_memory_bytes is None
    for name, asked in (("min_quality", limits.min_quality), ("min_retention", limits.min_retention)):
        if asked is None:
            continue
        others = replace(limits, min_quality=None) if name == "min_quality" else replace(limits, min_retention=None)
        best = _best([candidate for candidate in candidates if not missed_quality(candidate, others)], name)
        if best is not None:
            yield Relaxation(name, asked, best[0], best[1], proven)


def explain(reason: str, ways: Sequence[Relaxation]) -> str:
    """One line: what is in the way, and what would help."""
    if not ways:
        return reason
    return f"{reason}; " + ", or ".join(way.describe() for way in ways)


def _best(candidates: Sequence[Candidate], name: str) -> tuple[float, BudgetKey] | None:
    scored: list[tuple[float, float, BudgetKey]] = []
    for candidate in candidates:
        quality = candidate.quality
        if quality is None:
            continue
        value = quality.value if name == "min_quality" else quality.retention
        if value is not None:
            falling = name == "min_quality" and quality.direction == "lower"
            scored.append((-value if falling else value, value, candidate.budget))
    return max(scored, key=lambda entry: entry[0])[1:] if scored else None
