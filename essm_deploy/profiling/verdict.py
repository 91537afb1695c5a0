"""One engine's figures, and on which side of the limits they lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from essm_deploy.errors import UnavailableError
from essm_deploy.profiling.statistics import (
    drift,
    effective_samples,
    percentile,
    percentile_bounds,
    percentile_of,
    variation,
)
from essm_deploy.units import format_bytes, format_ms

BudgetKey = int | str
Side = Literal["fits", "exceeds", "unclear"]
Status = Literal["valid", "inconclusive", "failed"]

LOOKS = 2
"""How often one engine may be judged: once, and once more in a fresh process."""

_DRIFT_WARNING = 0.10
_DEPENDENCE_WARNING = 0.5
_WAITED_WARNING = 0.05


@dataclass(frozen=True)
class Attempt:
    """Which look at an engine this is (1 or 2), and how many times the usual samples it should take."""

    number: int = 1
    scale: float = 1.0


@dataclass(frozen=True)
class Latency:
    """Percentiles in milliseconds of one call, host to host; `value` is the sample's own figure for `statistic`.

    `lower` and `upper` bound the true `statistic`. They are computed at `look_confidence` = 1 - (1 - confidence) / 2,
    so that a decision taken after up to two looks at an engine still holds at `confidence`. A bound that the sample
    cannot support is None, and `needed_samples` is the count of independent ones that would.
    """

    p50: float
    p90: float
    p95: float
    p99: float
    value: float
    lower: float | None
    upper: float | None
    statistic: str
    confidence: float
    look_confidence: float
    samples: int
    effective_samples: float
    needed_samples: int
    basis: str = "measured"

    @classmethod
    def from_samples(cls, samples: Sequence[float], *, statistic: str = "p95", confidence: float = 0.95) -> Latency:
        """Summarise samples in milliseconds, in the order in which they were taken; at least one."""
        fraction = percentile_of(statistic)
        ordered = sorted(samples)
        effective = effective_samples(samples, fraction)
        look_confidence = 1 - (1 - confidence) / LOOKS
        bounds = percentile_bounds(ordered, fraction, look_confidence, effective)
        return cls(
            p50=percentile(ordered, 0.50),
            p90=percentile(ordered, 0.90),
            p95=percentile(ordered, 0.95),
            p99=percentile(ordered, 0.99),
            value=percentile(ordered, fraction),
            lower=bounds.lower,
            upper=bounds.upper,
            statistic=statistic,
            confidence=confidence,
            look_confidence=look_confidence,
            samples=len(ordered),
            effective_samples=effective,
            needed_samples=bounds.needed,
        )


@dataclass(frozen=True)
class Memory:
    """Bytes of the measuring process; None where `reasons` says why. `bounded_by` is the figure that --max-memory bounds."""

    peak_bytes: int | None
    anonymous_bytes: int | None = None
    file_bytes: int | None = None
    device_bytes: int | None = None
    baseline_bytes: int | None = None
    bounded_by: str = "peak_bytes"
    reasons: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Measurement:
    """What one fresh process found out about one engine. `samples_ms` are in the order in which they were taken.

    `waited_share`: how much of its time the process was ready and waited for a processor; None where the system does not tell.
    """

    budget: BudgetKey
    latency: Latency
    memory: Memory
    samples_ms: tuple[float, ...] = ()
    load_ms: float | None = None
    first_ms: float | None = None
    waited_share: float | None = None
    attempt: int = 1
    warnings: tuple[str, ...] = ()
    environment: dict[str, Any] = field(default_factory=dict)

    def to_json(self, *, samples: bool = True) -> dict[str, Any]:
        """The record as written to observations.jsonl; without `samples`, the summary alone."""
        record = asdict(self) | {"warnings": list(self.warnings), "samples_ms": list(self.samples_ms)}
        if not samples:
            del record["samples_ms"]
        return record

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Measurement:
        """Inverse of `to_json`. Raises TypeError, KeyError or ValueError for a record of another shape."""
        known = dict(record)
        known["latency"] = Latency(**known["latency"])
        known["memory"] = Memory(**known["memory"])
        known["samples_ms"] = tuple(float(value) for value in known.get("samples_ms", ()))
        known["warnings"] = tuple(known["warnings"])
        return cls(**known)


@dataclass(frozen=True)
class Limits:
    """What an engine must meet; None is no limit. Latency bounds Latency.upper, memory bounds Memory.peak_bytes."""

    max_latency_ms: float | None = None
    max_memory_bytes: int | None = None
    min_quality: float | None = None
    min_retention: float | None = None


@dataclass(frozen=True)
class Finding:
    """One measured figure against one limit: `reason` is a sentence for people."""

    limit: str
    side: Side
    bound: float
    measured: float | None
    reason: str


@dataclass(frozen=True)
class Verdict:
    """`valid`: the measurement can be used; `inconclusive`: it decides and cannot; `failed`: there is none."""

    status: Status
    reasons: tuple[str, ...] = ()


def judge(measurement: Measurement, limits: Limits) -> list[Finding]:
    """One finding for each of the measurable limits. Raises UnavailableError if a limited quantity cannot be read there."""
    findings = []
    if limits.max_latency_ms is not None:
        findings.append(_judge_latency(measurement, limits.max_latency_ms))
    if limits.max_memory_bytes is not None:
        findings.append(_judge_memory(measurement.memory, limits.max_memory_bytes))
    return findings


def overall(findings: Sequence[Finding]) -> Side:
    """Exceeds if anything exceeds, fits if everything fits, else unclear."""
    sides = {finding.side for finding in findings}
    if "exceeds" in sides:
        return "exceeds"
    return "unclear" if "unclear" in sides else "fits"


def disturbed(measurement: Measurement) -> bool:
    """Whether other processes kept the processor for so long that the engine may be faster than what was measured."""
    return measurement.waited_share is not None and measurement.waited_share > _WAITED_WARNING


def stability_warnings(samples: Sequence[float], latency: Latency, waited_share: float | None = None) -> list[str]:
    """What makes these samples less trustworthy than their count suggests. Warnings never fail a measurement."""
    warnings = []
    if waited_share is not None and waited_share > _WAITED_WARNING:
        warnings.append(f"contention: the process waited for a processor {waited_share:.0%} of the time")
    change = drift(samples)
    if abs(change) > _DRIFT_WARNING:
        warnings.append(
            f"drift: the median of the second half differs by {change:+.0%} from the first (CV {variation(samples):.0%})"
        )
    if latency.effective_samples < _DEPENDENCE_WARNING * latency.samples:
        warnings.append(
            f"dependence: slow calls came in stretches, {latency.samples} samples count as {latency.effective_samples:.0f}"
        )
    if latency.upper is None:
        warnings.append(
            f"support: {latency.statistic} has no upper bound, that takes {latency.needed_samples} independent samples "
            f"and there are {latency.effective_samples:.0f}"
        )
    return warnings


def _judge_latency(measurement: Measurement, limit: float) -> Finding:
    latency = measurement.latency
    name, lower, upper = latency.statistic, latency.lower, latency.upper
    if upper is not None and upper <= limit:
        reason = f"{name} is at most {format_ms(upper)}, within {format_ms(limit)}"
        return Finding("max_latency", "fits", limit, upper, reason)
    fastest = min(measurement.samples_ms, default=0.0)  # a call that nothing disturbed takes about that long
    if lower is not None and lower > limit >= fastest and disturbed(measurement):
        waited = f"the process waited for a processor {measurement.waited_share:.0%} of the time"
        reason = f"{name} is at least {format_ms(lower)}, but {waited}, which leaves {format_ms(limit)} open"
        return Finding("max_latency", "unclear", limit, upper, reason)
    if lower is not None and lower > limit:
        reason = f"{name} is at least {format_ms(lower)}, above {format_ms(limit)}"
        return Finding("max_latency", "exceeds", limit, upper, reason)
    reason = f"{name} is between {format_ms(lower)} and {format_ms(upper)}, which leaves {format_ms(limit)} open"
    return Finding("max_latency", "unclear", limit, upper, reason)


def _judge_memory(memory: Memory, limit: int) -> Finding:
    peak = memory.peak_bytes
    if peak is None:
        reason = memory.reasons.get("peak_bytes", "not reported")
        raise UnavailableError(f"a memory limit needs the peak of the process, which is not available here: {reason}")
    side: Side = "fits" if peak <= limit else "exceeds"
    relation = "within" if side == "fits" else "above"
    return Finding("max_memory", side, limit, peak, f"the peak is {format_bytes(peak)}, {relation} {format_bytes(limit)}")
