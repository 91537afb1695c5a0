"""One engine's figures, and on which side of the limits they lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from essm_deploy.errors import UnavailableError
from essm_deploy.profiling.statistics import effective_samples, percentile, percentile_bounds, percentile_of
from essm_deploy.units import format_bytes, format_ms

BudgetKey = int | str
Side = Literal["fits", "exceeds", "unclear"]
Status = Literal["valid", "inconclusive", "failed"]

LOOKS = 2
"""How often one engine may be judged: once, and once more in a fresh process."""

CLAIMED = ("p50", "p90", "p95", "p99")
"""The percentiles that are reported, each with its bounds."""

WAITED_WARNING = 0.05
"""The share of its time that a process may wait for a processor, or lose to other machines, before that is worth saying."""

_FASTEST_SHARE, _CLOSE = 0.05, 1.1
_SLICE_MS = 5.0  # Linux lets a process run for about three before it is another's turn
_NOW_AND_THEN = 0.15  # one steady rival takes a quarter and more

_FIGURES = {
    "peak_bytes": "the peak of the process",
    "device_bytes": "the device memory",
    "nvml_bytes": "the process's device memory",
    "peak_bytes+device_bytes": "the peak of the process and its device memory, which are one memory here,",
}


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
    cannot support is None, and `needed_samples` is the count of independent ones that would. `bounds` has the same for p50,
    p90, p95 and p99. `pace_ms` is the time in which one call was started; None: one call followed the other.
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
    bounds: dict[str, dict[str, float | None]] = field(default_factory=dict)
    pace_ms: float | None = None

    @classmethod
    def from_samples(
        cls, samples: Sequence[float], *, statistic: str = "p95", confidence: float = 0.95, pace_ms: float | None = None
    ) -> Latency:
        """Summarise samples in milliseconds, in the order in which they were taken; at least one."""
        ordered = sorted(samples)
        look = look_confidence(confidence)
        bounds = {name: _bounds(samples, ordered, name, look) for name in dict.fromkeys((*CLAIMED, statistic))}
        effective, decides = effective_samples(samples, percentile_of(statistic)), bounds[statistic]
        return cls(
            p50=percentile(ordered, 0.50),
            p90=percentile(ordered, 0.90),
            p95=percentile(ordered, 0.95),
            p99=percentile(ordered, 0.99),
            value=percentile(ordered, percentile_of(statistic)),
            lower=decides["lower"],
            upper=decides["upper"],
            statistic=statistic,
            confidence=confidence,
            look_confidence=look,
            samples=len(ordered),
            effective_samples=effective,
            needed_samples=int(decides["needed_samples"] or 0),
            bounds=bounds,
            pace_ms=pace_ms,
        )


def look_confidence(confidence: float) -> float:
    """At which the bounds of one look are computed, for a decision that is to hold at `confidence` after all of them."""
    return 1 - (1 - confidence) / LOOKS


def _bounds(samples: Sequence[float], ordered: Sequence[float], name: str, confidence: float) -> dict[str, float | None]:
    fraction = percentile_of(name)
    found = percentile_bounds(ordered, fraction, confidence, effective_samples(samples, fraction))
    return {"lower": found.lower, "upper": found.upper, "needed_samples": found.needed}


@dataclass(frozen=True)
class Memory:
    """Bytes of the measuring process; None where `reasons` says why.

    `peak_bytes` includes the interpreter's own share, `baseline_bytes`; runtime/memory.py and runtime/device_memory.py say what
    the others are. `bounded_by` names the figure that --max-memory bounds, or those whose sum it bounds, joined by "+".
    """

    peak_bytes: int | None
    anonymous_bytes: int | None = None
    file_bytes: int | None = None
    device_bytes: int | None = None
    baseline_bytes: int | None = None
    bounded_by: str = "peak_bytes"
    reasons: dict[str, str] = field(default_factory=dict)
    pss_bytes: int | None = None
    nvml_bytes: int | None = None

    @property
    def bounded_bytes(self) -> int | None:
        """What --max-memory bounds; None where a part of it is not available."""
        total = 0
        for name in self.bounded_by.split("+"):
            value: int | None = getattr(self, name)
            if value is None:
                return None
            total += value
        return total


@dataclass(frozen=True)
class Measurement:
    """What one fresh process found out about one engine. `samples_ms` are in the order in which they were taken.

    `latency` is what limits bound: of paced calls, where a pace was asked for, and `back_to_back` is then of those that
    followed one another in the same process. `waited_share`: how much of the time of its calls the process was ready and
    waited for a processor; `stolen_share`: how much of the machine a hypervisor gave to others; None where the system does
    not tell.
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
    back_to_back: Latency | None = None
    back_to_back_samples_ms: tuple[float, ...] = ()
    stolen_share: float | None = None

    @property
    def cold_start_ms(self) -> dict[str, float] | None:
        """From opening the engine to its first result; the start of the process and of the interpreter is not in it."""
        if self.load_ms is None or self.first_ms is None:
            return None
        return {"load": self.load_ms, "first": self.first_ms, "total": self.load_ms + self.first_ms}

    def to_json(self, *, samples: bool = True) -> dict[str, Any]:
        """The record as written to observations.jsonl; without `samples`, the summary alone."""
        record = asdict(self) | {"warnings": list(self.warnings)}
        for name in _SAMPLES:
            record[name] = list(record[name])
            if not samples:
                del record[name]
        return record

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Measurement:
        """Inverse of `to_json`. Raises TypeError, KeyError or ValueError for a record of another shape."""
        known = dict(record)
        known["latency"] = Latency(**known["latency"])
        known["memory"] = Memory(**known["memory"])
        if known.get("back_to_back") is not None:
            known["back_to_back"] = Latency(**known["back_to_back"])
        for name in _SAMPLES:
            known[name] = tuple(float(value) for value in known.get(name, ()))
        known["warnings"] = tuple(known["warnings"])
        return cls(**known)


_SAMPLES = ("samples_ms", "back_to_back_samples_ms")


@dataclass(frozen=True)
class Limits:
    """What an engine must meet; None is no limit. Latency bounds Latency.upper, memory bounds Memory.bounded_bytes."""

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
    """Whether others kept the processor for so long that the engine may be faster than what was measured."""
    return _taken(measurement) > WAITED_WARNING


def _judge_latency(measurement: Measurement, limit: float) -> Finding:
    latency = measurement.latency
    name, lower, upper = latency.statistic, latency.lower, latency.upper
    if upper is not None and upper <= limit:
        reason = f"{name} is at most {format_ms(upper)}, within {format_ms(limit)}"
        return Finding("max_latency", "fits", limit, upper, reason)
    if lower is not None and lower > limit and disturbed(measurement) and limit >= _undisturbed(measurement):
        waited = f"the process waited for a processor {_taken(measurement):.0%} of the time"
        reason = f"{name} is at least {format_ms(lower)}, but {waited}, which leaves {format_ms(limit)} open"
        return Finding("max_latency", "unclear", limit, upper, reason)
    if lower is not None and lower > limit:
        reason = f"{name} is at least {format_ms(lower)}, above {format_ms(limit)}"
        return Finding("max_latency", "exceeds", limit, upper, reason)
    reason = f"{name} is between {format_ms(lower)} and {format_ms(upper)}, which leaves {format_ms(limit)} open"
    return Finding("max_latency", "unclear", limit, upper, reason)


def _undisturbed(measurement: Measurement) -> float:
    """The least that a call may take in milliseconds where nobody else computes.

    Calls that are short against a time slice, or on a machine that is busy now and then, go through whole at times: the fastest
    lie close together, and that is how long a call takes. Otherwise each of them has waited, for as large a part as all did.
    """
    ordered, share = sorted(measurement.samples_ms), _taken(measurement)
    if not ordered:
        return 0.0
    close = percentile(ordered, _FASTEST_SHARE) <= _CLOSE * ordered[0]
    whole = ordered[0] <= _SLICE_MS or share <= _NOW_AND_THEN
    return ordered[0] * (1.0 if close and whole else 1 - min(1.0, share))


def _taken(measurement: Measurement) -> float:
    """The larger of the two shares of time that others took."""
    return max(measurement.waited_share or 0.0, measurement.stolen_share or 0.0)


def _judge_memory(memory: Memory, limit: int) -> Finding:
    figure, measured = _FIGURES.get(memory.bounded_by, memory.bounded_by), memory.bounded_bytes
    if measured is None:
        missing = next(name for name in memory.bounded_by.split("+") if getattr(memory, name) is None)
        reason = memory.reasons.get(missing, "not reported")
        raise UnavailableError(f"a memory limit needs {figure}, which is not available here: {reason}")
    side: Side = "fits" if measured <= limit else "exceeds"
    relation = "within" if side == "fits" else "above"
    shown = f"{figure} is {format_bytes(measured)}, {relation} {format_bytes(limit)}"
    return Finding("max_memory", side, limit, measured, shown)
