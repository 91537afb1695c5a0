"""A choice as JSON: the document that `build` and `profile` print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from essm_deploy.profiling.choose import Choice
from essm_deploy.profiling.quality import Candidate, Quality
from essm_deploy.profiling.verdict import BudgetKey, Limits, Measurement

SCHEMA_VERSION = "1.0"
_MEMORY = ("peak_bytes", "anonymous_bytes", "file_bytes", "device_bytes", "baseline_bytes", "bounded_by")


def latency_json(measurement: Measurement) -> dict[str, Any]:
    """p50, p95, p99 and the upper confidence bound of the deciding statistic, in milliseconds."""
    latency = measurement.latency
    names = ("p50", "p95", "p99", "lower", "upper", "statistic", "confidence", "samples", "basis")
    return {name: getattr(latency, name) for name in names}


def memory_json(measurement: Measurement) -> dict[str, Any]:
    """Bytes of the measuring process; null where `reasons` says why."""
    memory = measurement.memory
    shown = {name: getattr(memory, name) for name in _MEMORY}
    return {**shown, "basis": "measured", **({"reasons": memory.reasons} if memory.reasons else {})}


def quality_json(quality: Quality | None) -> dict[str, Any] | None:
    """Metric, value and retention; null where nobody measured it."""
    return None if quality is None else asdict(quality)


def candidate_json(choice: Choice, candidate: Candidate, samples: bool) -> dict[str, Any]:
    """One row of `candidates`. A budget that was not measured has a verdict that says so."""
    measurement, verdict = choice.measurements.get(candidate.budget), choice.verdicts.get(candidate.budget)
    excluded = choice.excluded.get(candidate.budget)
    row = {
        "budget": candidate.budget,
        "latency_ms": latency_json(measurement) if measurement else None,
        "memory": memory_json(measurement) if measurement else None,
        "quality": quality_json(candidate.quality),
        "verdict": verdict.status if verdict else "excluded" if excluded else "not measured",
        "reasons": list(verdict.reasons) if verdict else [excluded] if excluded else [],
        "warnings": list(measurement.warnings) if measurement else [],
        "basis": measurement.latency.basis if measurement else None,
    }
    return {**row, "samples": list(measurement.samples_ms)} if samples and measurement else row


def choice_json(choice: Choice, limits: Limits, errors: Mapping[BudgetKey, float], target: str) -> dict[str, Any]:
    """The part of the document that `build` and `profile` share, without the candidates."""
    chosen = None if choice.chosen is None else choice.measurements[choice.chosen]
    candidate = next((c for c in choice.candidates if c.budget == choice.chosen), None)
    return {
        "schema_version": SCHEMA_VERSION,
        "status": choice.status,
        "target": target,
        "budget": choice.chosen,
        "certain": choice.certain and choice.chosen is not None,
        "limits": asdict(limits),
        "message": choice.message,
        "latency_ms": latency_json(chosen) if chosen else None,
        "memory": memory_json(chosen) if chosen else None,
        "quality": quality_json(candidate.quality) if candidate else None,
        "verification": {"max_rel_error": errors.get(choice.chosen) if choice.chosen is not None else None},
        "environment": chosen.environment if chosen else None,
    }
