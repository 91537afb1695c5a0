"""What a bundle says of an engine that was measured."""

from __future__ import annotations

from typing import Any

from essm_deploy.profiling.report import apart_json, latency_json, memory_json
from essm_deploy.profiling.verdict import Measurement


def profile_json(measurement: Measurement, lowering: str | None) -> dict[str, Any]:
    """The engine's `profile`. `lowering` is left out where nobody knows it, the host's name always: bundles are published."""
    return {
        "basis": measurement.latency.basis,
        "latency_ms": latency_json(measurement),
        "memory": memory_json(measurement),
        **apart_json(measurement),
        "warnings": list(measurement.warnings),
        "environment": {name: value for name, value in measurement.environment.items() if name != "host"},
        **({} if lowering is None else {"lowering": lowering}),
    }
