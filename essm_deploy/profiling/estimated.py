"""Choosing a budget by estimate, and the document that says so. Nothing in it can be taken for a measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from essm_deploy.profiling.choose import Choice, choose
from essm_deploy.profiling.estimate import BASIS, Efficiency, Estimate
from essm_deploy.profiling.quality import Candidate
from essm_deploy.profiling.report import SCHEMA_VERSION, quality_json
from essm_deploy.profiling.verdict import Attempt, BudgetKey, Latency, Limits, Measurement, Memory

NOTE = "engine built, not yet measured"


def choose_by_estimate(candidates: Sequence[Candidate], limits: Limits, estimates: Mapping[BudgetKey, Estimate]) -> Choice:
    """The largest of the ascending candidates whose estimates meet the limits; a memory limit bounds the device's memory."""

    def look_up(budget: BudgetKey, attempt: Attempt) -> Measurement:
        found = estimates[budget]
        return Measurement(
            budget, _latency(found.latency_ms), Memory(None, device_bytes=found.device_bytes, bounded_by="device_bytes")
        )

    return choose(candidates, limits, look_up, exhaustive=True)


def with_neighbours(candidates: Sequence[Candidate], chosen: BudgetKey) -> list[Candidate]:
    """The chosen candidate, the one below and the one above, as far as they exist: the device may move the choice."""
    at = next(index for index, candidate in enumerate(candidates) if candidate.budget == chosen)
    return list(candidates[max(0, at - 1) : at + 2])


def estimated_json(
    choice: Choice, limits: Limits, estimates: Mapping[BudgetKey, Estimate], efficiency: Efficiency, target: str
) -> dict[str, Any]:
    """The document of a build whose device is not here; `status` is estimated or nothing_fits."""
    chosen = next((c for c in choice.candidates if c.budget == choice.chosen), None)
    return {
        "schema_version": SCHEMA_VERSION,
        "status": "nothing_fits" if chosen is None else BASIS,
        "basis": BASIS,
        "certain": False,
        "target": target,
        "budget": choice.chosen,
        "limits": asdict(limits),
        "message": f"by estimate: {choice.message}",
        "note": NOTE if chosen else "nothing was measured",
        **(figures_json(estimates[choice.chosen]) if choice.chosen is not None else {"latency_ms": None, "memory": None}),
        "quality": quality_json(chosen.quality) if chosen else None,
        "efficiency": efficiency.to_json(),
        "candidates": [_candidate_json(choice, candidate, estimates) for candidate in choice.candidates],
    }


def figures_json(estimate: Estimate) -> dict[str, Any]:
    """The keys `latency_ms` and `memory` of documents and profiles: an estimate has no percentiles."""
    work = {"flops": estimate.flops, "bytes": estimate.bytes, "launches": estimate.launches}
    return {
        "latency_ms": {"estimate": estimate.latency_ms, **estimate.bound, **work, "basis": BASIS},
        "memory": {"device_bytes": estimate.device_bytes, "bounded_by": "device_bytes", "basis": BASIS},
    }


def _candidate_json(choice: Choice, candidate: Candidate, estimates: Mapping[BudgetKey, Estimate]) -> dict[str, Any]:
    verdict, excluded = choice.verdicts.get(candidate.budget), choice.excluded.get(candidate.budget)
    known = estimates.get(candidate.budget)
    return {
        "budget": candidate.budget,
        **(figures_json(known) if known else {"latency_ms": None, "memory": None}),
        "quality": quality_json(candidate.quality),
        "verdict": "excluded" if excluded else BASIS,
        "reasons": [excluded] if excluded else list(verdict.reasons) if verdict else [],
        "basis": BASIS,
    }


def _latency(value: float) -> Latency:
    """A point: an estimate has neither a spread nor samples."""
    return Latency(value, value, value, value, value, value, value, "the estimate", 0.0, 0.0, 0, 1.0, 0, BASIS)
