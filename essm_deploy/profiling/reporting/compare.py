"""Two documents, budget by budget. docs/reports.md shows what comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from essm_deploy.errors import UsageError
from essm_deploy.profiling.reporting.contrast import Estimate, Ratio, common, estimate, ratio
from essm_deploy.profiling.reporting.document import Memory, Quality, Row, Run
from essm_deploy.profiling.reporting.reading import runs_of
from essm_deploy.profiling.reporting.words import disturbed, statistic_of
from essm_deploy.profiling.statistics import percentile_of

CONFIDENCE = 0.95
_STATISTICS = ("p50", "p95")
METHOD = (
    "distribution-free intervals of each percentile at its effective sample size, joined to an interval of the ratio "
    "(Zou and Donner 2008); over all budgets Student's interval of the mean log ratio"
)


def compare_documents(raw_a: Mapping[str, Any], raw_b: Mapping[str, Any], name_a: str, name_b: str) -> dict[str, Any]:
    """The comparison as a JSON document: one entry of `pairs` for each run that both have.

    Raises UsageError for what is no document, and where A and B have no budget in common.
    """
    pairs = _paired(runs_of(raw_a, name_a), runs_of(raw_b, name_b), name_a, name_b)
    compared = [_compare(a, b) for a, b in pairs]
    if not any(pair["budgets"] for pair in compared):
        budgets = [
            "; ".join(", ".join(row.name for row in run.candidates) for run in side) for side in zip(*pairs, strict=True)
        ]
        raise UsageError(f"{name_a} and {name_b} have no measured budget in common: A has {budgets[0]}, B has {budgets[1]}")
    warnings = [line for pair, (a, b) in zip(compared, pairs, strict=True) if pair["budgets"] for line in _warnings(a, b)]
    return {
        "schema_version": "1.0",
        "kind": "comparison",
        "a": name_a,
        "b": name_b,
        "confidence": CONFIDENCE,
        "method": METHOD,
        "warnings": list(dict.fromkeys(warnings)),
        "pairs": compared,
    }


def _paired(a: Sequence[Run], b: Sequence[Run], name_a: str, name_b: str) -> list[tuple[Run, Run]]:
    """Runs that ask the same of the same target; with one run each, those two, whatever they are of."""
    if len(a) == len(b) == 1:
        return [(a[0], b[0])]
    for key in (lambda run: (run.target, run.requirement, run.limits), lambda run: run.target):
        left, right = ({key(run): run for run in reversed(runs)} for runs in (a, b))
        found = [(left[k], right[k]) for k in reversed(list(left)) if k in right]
        if found:
            return found
    targets = [", ".join(dict.fromkeys(run.target for run in runs)) for runs in (a, b)]
    raise UsageError(f"{name_a} and {name_b} have no target in common: A has {targets[0]}, B has {targets[1]}")


def _compare(a: Run, b: Run) -> dict[str, Any]:
    other = {row.budget: row for row in b.candidates}
    both = [
        (row, other[row.budget])
        for row in a.candidates
        if row.budget in other and row.latency_ms and other[row.budget].latency_ms
    ]
    names = tuple(dict.fromkeys((*_STATISTICS, *(name for run in (a, b) if (name := statistic_of(run)) != "latency"))))
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(names) * len(both))
    budgets = [_budget(one, two, names, confidence) for one, two in both]
    overall = {name: _overall(budgets, name) for name in names}
    return {
        "target": {"a": a.target, "b": b.target},
        "differences": differences(a, b),
        "interval_confidence": confidence,
        "budgets": budgets,
        "overall": {name: _ratio_json(found) for name, found in overall.items() if found},
        "only_in_a": [row.budget for row in a.candidates if row.budget not in other],
        "only_in_b": [row.budget for row in b.candidates if row.budget not in {row.budget for row in a.candidates}],
        "summary": _summary(overall, len(budgets)) if budgets else ["no measured budget in common"],
    }


def _budget(a: Row, b: Row, names: Sequence[str], confidence: float) -> dict[str, Any]:
    figures = {name: _figure(a, b, name, confidence) for name in names}
    return {
        "budget": a.budget,
        "latency_ms": {name: figure for name, figure in figures.items() if figure},
        "memory": _memory(a.memory, b.memory),
        "quality": _quality(a.quality, b.quality),
    }


def _figure(a: Row, b: Row, name: str, confidence: float) -> dict[str, Any] | None:
    one, two = _estimate(a, name, confidence), _estimate(b, name, confidence)
    if one is None or two is None:
        return None
    found = ratio(one, two)
    sides = {side: {"ms": e.value, "lower": e.lower, "upper": e.upper} for side, e in (("a", one), ("b", two))}
    return {**sides, **_ratio_json(found)}


def _estimate(row: Row, name: str, confidence: float) -> Estimate | None:
    """From the samples; without them what the document says, whose bounds hold by themselves at its own confidence."""
    if row.latency_ms is None:
        return None
    if row.samples:
        return estimate(row.samples, percentile_of(name), confidence)
    value = getattr(row.latency_ms, name, None)
    if value is None:
        return None
    if name == row.latency_ms.statistic:
        return Estimate(value, row.latency_ms.lower, row.latency_ms.upper)
    bounds = row.latency_ms.bounds.get(name)
    return Estimate(value, bounds.lower if bounds else None, bounds.upper if bounds else None)


def _ratio_json(found: Ratio | None) -> dict[str, Any]:
    if found is None:
        return {"ratio": None, "lower": None, "upper": None, "verdict": "cannot tell"}
    return {"ratio": found.value, "lower": found.lower, "upper": found.upper, "verdict": found.verdict}


def _memory(a: Memory | None, b: Memory | None) -> dict[str, Any] | None:
    if a is None or b is None or a.bounded_by != b.bounded_by or a.bounded is None or b.bounded is None:
        return None
    return {"figure": a.name, "a": a.bounded, "b": b.bounded, "difference_bytes": b.bounded - a.bounded}


def _quality(a: Quality | None, b: Quality | None) -> dict[str, Any] | None:
    if a is None or b is None or (a.metric, a.direction) != (b.metric, b.direction):
        return None
    gain = (b.value - a.value) * (1 if a.direction == "higher" else -1)
    verdict = "equal" if gain == 0 else "B is better" if gain > 0 else "B is worse"
    return {"metric": a.metric, "a": a.value, "b": b.value, "difference": b.value - a.value, "verdict": verdict}


def differences(a: Run, b: Run) -> list[dict[str, str]]:
    """What the two documents say differently about what was measured, where and how."""
    left, right = _described(a), _described(b)
    names = dict.fromkeys((*left, *right))
    pairs = [(name, left.get(name, "not stated"), right.get(name, "not stated")) for name in names]
    return [{"name": name, "a": one, "b": two} for name, one, two in pairs if one != two]


def _described(run: Run) -> dict[str, str]:
    stated = {
        "target": run.target,
        "model": run.model.name,
        "checkpoint": run.model.hash,
        "call": run.kind,
        "precision": run.precision,
    }
    described = {name: value for name, value in stated.items() if value}
    environment = run.environment
    if environment is None:
        return described
    for name, value in (
        ("provider", environment.provider),
        ("threads", environment.threads),
        ("boundary", environment.boundary),
    ):
        if value is not None:
            described[name] = str(value)
    for group in ("machine", "versions", "settings"):
        facts = getattr(environment, group) or {}
        described |= {f"{group} {key}": text for key, text in facts.items()}
    return described


def _warnings(a: Run, b: Run) -> list[str]:
    """What keeps the two from being two looks at the same thing, the gravest first."""
    names = {entry["name"] for entry in differences(a, b)}
    machines = [run.environment.machine if run.environment else None for run in (a, b)]
    found = []
    if any(machine is None for machine in machines):
        found.append("a document does not say on which machine it was measured")
    elif any(name.startswith("machine ") for name in names):
        cpus = [(machine or {}).get("cpu", "unknown") for machine in machines]
        found.append(
            f"A and B were measured on different machines: {cpus[0]}, and {cpus[1]}"
            + (" (see below)" if cpus[0] == cpus[1] else "")
        )
    if names & {"checkpoint", "model"}:
        found.append("A and B measured different checkpoints")
    if "call" in names:
        found.append("A and B timed different calls: a step of a stream is not a sequence")
    if any(name.startswith("settings ") for name in names) or names & {"threads", "provider", "precision"}:
        found.append("A and B were not measured in the same way (see what differs)")
    for side, run in (("A", a), ("B", b)):
        busy = disturbed(run)
        if busy:
            found.append(f"{side} shared its machine with other work at {', '.join(busy)}: what differs there may be that")
    if any("estimated" in {row.latency_ms.basis for row in run.candidates if row.latency_ms} for run in (a, b)):
        found.append("one of the two was estimated, not measured; budgets without percentiles are left out")
    if not all(row.samples for run in (a, b) for row in run.candidates if row.latency_ms):
        found.append("a document has no samples: only its own bounds are compared, each of which holds by itself")
    return found


def _overall(budgets: Sequence[Mapping[str, Any]], name: str) -> Ratio | None:
    found = [budget["latency_ms"].get(name, {}).get("ratio") for budget in budgets]
    return common([value for value in found if value is not None], CONFIDENCE)


def _summary(overall: Mapping[str, Ratio | None], count: int) -> list[str]:
    lines = []
    for name, found in overall.items():
        if found is not None and found.lower is not None and found.upper is not None:
            interval = f"{found.lower:.3f} to {found.upper:.3f}"
            lines.append(
                f"over {count} budgets, {name} of B is {found.value:.3f} of A's, {interval} with 95% confidence "
                f"(the spread between processes included): {found.verdict}"
            )
    return lines
