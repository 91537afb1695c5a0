"""A choice as JSON: the document that `build` and `profile` print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from essm_deploy.profiling.choose import Choice
from essm_deploy.profiling.quality import Candidate, Quality
from essm_deploy.profiling.verdict import BudgetKey, Latency, Limits, Measurement

SCHEMA_VERSION = "1.0"
_NOTHING_APART = {"back_to_back_ms": None, "cold_start_ms": None}
_LATENCY = (
    *("p50", "p90", "p95", "p99", "lower", "upper", "statistic", "confidence", "samples", "basis"),
    *("look_confidence", "effective_samples", "needed_samples", "bounds", "pace_ms"),
)
_MEMORY = (
    *("peak_bytes", "anonymous_bytes", "file_bytes", "pss_bytes", "device_bytes", "nvml_bytes", "baseline_bytes"),
    *("bounded_by", "bounded_bytes"),
)


def latency_json(measurement: Measurement) -> dict[str, Any]:
    """Percentiles in milliseconds, the bounds of each, and those of the deciding statistic; see Latency for the keys.

    Of paced calls where `pace_ms` is not null. A bound is null where it takes more samples: `needed_samples` says how many.
    """
    return _latency_json(measurement.latency)


def memory_json(measurement: Measurement) -> dict[str, Any]:
    """Bytes of the measuring process; null where `reasons` says why. See Memory for the keys."""
    memory = measurement.memory
    shown = {name: getattr(memory, name) for name in _MEMORY}
    return {**shown, "basis": "measured", **({"reasons": memory.reasons} if memory.reasons else {})}


def apart_json(measurement: Measurement) -> dict[str, Any]:
    """What no limit bounds: the cold start, and calls that followed one another where `latency_ms` is of paced ones."""
    found = measurement.back_to_back
    return {"back_to_back_ms": _latency_json(found) if found else None, "cold_start_ms": measurement.cold_start_ms}


def _latency_json(latency: Latency) -> dict[str, Any]:
    return {name: getattr(latency, name) for name in _LATENCY}


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
        **(apart_json(measurement) if measurement else _NOTHING_APART),
        "quality": quality_json(candidate.quality),
        "verdict": verdict.status if verdict else "excluded" if excluded else "not measured",
        "reasons": list(verdict.reasons) if verdict else [excluded] if excluded else [],
        "warnings": list(measurement.warnings) if measurement else [],
        "basis": measurement.latency.basis if measurement else None,
    }
    if samples and measurement:
        row["samples"] = list(measurement.samples_ms)
        if measurement.back_to_back is not None:
            row["back_to_back_samples"] = list(measurement.back_to_back_samples_ms)
    return row


def choice_json(choice: Choice, limits: Limits, errors: Mapping[BudgetKey, float], target: str) -> dict[str, Any]:
    """The part of the document that `build` and `profile` share, without the candidates."""
    chosen = None if choice.chosen is None else choice.measurements[choice.chosen]
    measured = chosen or next(iter(choice.measurements.values()), None)  # where nothing fits, it still says on what machine
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
        **(apart_json(chosen) if chosen else _NOTHING_APART),
        "quality": quality_json(candidate.quality) if candidate else None,
        "verification": {"max_rel_error": errors.get(choice.chosen) if choice.chosen is not None else None},
        "environment": measured.environment if measured else None,
    }
