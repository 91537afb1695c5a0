"""Documents as `profile` prints them, of a device whose latency is a known law."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from essm_deploy.profiling.choose import choose
from essm_deploy.profiling.quality import Candidate, Quality
from essm_deploy.profiling.report import candidate_json, choice_json
from essm_deploy.profiling.verdict import Attempt, BudgetKey, Limits, Measurement, Memory
from tests.profiling.simulated import Device

ENVIRONMENT: dict[str, Any] = {
    "versions": {"essm_deploy": "0.1.0", "onnxruntime": "1.32.0"},
    "machine": {"machine": "x86_64", "cpu": "A processor", "physical_cores": 2, "governor": None},
    "provider": "CPUExecutionProvider",
    "threads": 2,
    "boundary": "host-to-host around one call",
    "settings": {"statistic": "p95", "min_samples": 300, "pace_ms": None},
}
ACCURACY = {2: 0.75, 4: 0.90, 8: 0.925, 16: 0.94, 32: 0.935}
BITS = {2: 2.30, 4: 1.99, 8: 1.94, 16: 1.91, 32: 1.93}


def make_document(
    limits: Limits = Limits(),  # noqa: B008  # frozen
    *,
    quality: dict[int, float] | None = ACCURACY,
    direction: str = "higher",
    budgets: Sequence[int] = (2, 4, 8, 16, 32),
    slope: float = 0.05,
    seed: int = 1,
    target: str = "cpu",
) -> dict[str, Any]:
    """The document of an exhaustive `profile`, samples included; latency is 1 ms + `slope` K ms."""
    device = Device(1.0, slope, seed)

    def measure(budget: BudgetKey, attempt: Attempt) -> Measurement:
        assert isinstance(budget, int)
        memory = Memory(
            50 * 2**20 + budget * 2**18, 20 * 2**20, 30 * 2**20, None, 40 * 2**20, reasons={"device_bytes": "on the host"}
        )
        return replace(device.measure(budget, attempt), memory=memory, environment=ENVIRONMENT)

    candidates = [Candidate(k, _quality(quality, direction, k)) for k in budgets]
    choice = choose(candidates, limits, measure, exhaustive=True)
    document = choice_json(choice, limits, dict.fromkeys(budgets, 1e-6), target)
    document["model"] = {"name": "keywords", "hash": "0123456789abcdef"}
    document["candidates"] = [candidate_json(choice, candidate, samples=True) for candidate in choice.candidates]
    document["observations"] = "/somewhere/finished.jsonl"
    return json.loads(json.dumps(document))  # type: ignore[no-any-return]


def _quality(quality: dict[int, float] | None, direction: str, k: int) -> Quality | None:
    if quality is None:
        return None
    full = quality[max(quality)]
    share = quality[k] / full if direction == "higher" else full / quality[k]
    return Quality("accuracy" if direction == "higher" else "bits_per_byte", quality[k], direction, share)  # type: ignore[arg-type]  # one of two literals


def nothing_measured() -> dict[str, Any]:
    """Every engine failed: no figures at all, and no environment."""
    document = make_document(Limits(max_latency_ms=0.01))
    for row in document["candidates"]:
        row |= {"latency_ms": None, "memory": None, "verdict": "failed", "reasons": ["the worker died"], "basis": None}
        del row["samples"]
    return {
        **document,
        "status": "nothing_fits",
        "budget": None,
        "certain": False,
        "environment": None,
        "message": "every engine failed",
    }


def estimated() -> dict[str, Any]:
    """What `build` prints for a device that is not here."""
    document = make_document(Limits(max_latency_ms=10.0))
    for row in document["candidates"]:
        row["latency_ms"] = {
            "estimate": 1 + 0.05 * row["budget"],
            "flops": 10,
            "bytes": 10,
            "launches": 3,
            "basis": "estimated",
        }
        row["memory"] = {"device_bytes": 10**8, "bounded_by": "device_bytes", "basis": "estimated"}
        row |= {"verdict": "estimated", "basis": "estimated"}
        del row["samples"]
    return {
        **document,
        "status": "estimated",
        "basis": "estimated",
        "environment": None,
        "efficiency": {"source": "data sheets"},
    }
