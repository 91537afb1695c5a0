"""What a report knows of a document of `profile` or `build`. reading.py reads them.

Unknown keys are ignored, because a newer version may add some; wrong types and impossible numbers are refused. Text loses its
control characters, so that no document can draw on a terminal or break a page.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from essm_deploy.profiling.statistics import percentile, percentile_of

_MOST_TEXT = 4000


def clean(text: str) -> str:
    """One line of printable text, at most 4000 characters."""
    line = "".join(c if c.isprintable() else " " for c in text[: _MOST_TEXT + 1])
    return line if len(line) <= _MOST_TEXT else line[:_MOST_TEXT] + "..."


def _facts(value: Any) -> Any:
    """A JSON object as text by dotted name, for machines, versions and settings, whose keys are their own."""
    return dict(_flat("", value)) if isinstance(value, Mapping) else value


def _flat(name: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        return [pair for key, inner in value.items() for pair in _flat(f"{name}.{key}" if name else key, inner)]
    if isinstance(value, float):
        return [(clean(name), f"{value:.6g}")]
    shown = "none" if value is None else ("yes" if value else "no") if isinstance(value, bool) else str(value)
    return [(clean(name), clean(shown))]


Text = Annotated[str, AfterValidator(clean)]
Facts = Annotated[dict[str, str], BeforeValidator(_facts)]
Milliseconds = Annotated[float, Field(ge=0, le=1e9)]
Bytes = Annotated[int, Field(ge=0, le=2**60)]
Number = Annotated[float, Field(ge=-1e15, le=1e15)]
Basis = Literal["measured", "estimated"]
Budget = Annotated[int, Field(ge=1, le=10**9)] | Annotated[str, Field(min_length=1, max_length=40), AfterValidator(clean)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, allow_inf_nan=False)


class Bounds(_Part):
    """One-sided bounds of one percentile in milliseconds."""

    lower: Milliseconds | None = None
    upper: Milliseconds | None = None


class Latency(_Part):
    """Milliseconds of one call. An estimate has neither percentiles nor bounds."""

    p50: Milliseconds | None = None
    p90: Milliseconds | None = None
    p95: Milliseconds | None = None
    p99: Milliseconds | None = None
    lower: Milliseconds | None = None
    upper: Milliseconds | None = None
    statistic: Annotated[str, Field(pattern=r"^p[0-9]{1,2}(\.[0-9]{1,2})?$")] = "p95"
    confidence: Annotated[float, Field(gt=0, lt=1)] | None = None
    samples: Annotated[int, Field(ge=0, le=10**9)] | None = None
    bounds: dict[Text, Bounds] = {}
    pace_ms: Milliseconds | None = None
    estimate: Milliseconds | None = None
    basis: Basis = "measured"


class Memory(_Part):
    """Bytes; None where `reasons` says why."""

    peak_bytes: Bytes | None = None
    anonymous_bytes: Bytes | None = None
    file_bytes: Bytes | None = None
    pss_bytes: Bytes | None = None
    device_bytes: Bytes | None = None
    nvml_bytes: Bytes | None = None
    baseline_bytes: Bytes | None = None
    bounded_by: Annotated[str, Field(pattern=r"^[a-z]{1,20}_bytes(\+[a-z]{1,20}_bytes){0,3}$")] = "peak_bytes"
    reasons: Facts = {}
    basis: Basis = "measured"

    @property
    def bounded(self) -> int | None:
        """What --max-memory bounds: one figure, or the sum of those that `bounded_by` joins; None where one is not known."""
        parts: list[int | None] = [getattr(self, name, None) for name in self.bounded_by.split("+")]
        known = [part for part in parts if part is not None]
        return sum(known) if len(known) == len(parts) else None

    @property
    def name(self) -> str:
        """What that is, in words."""
        names = self.bounded_by.replace("_bytes", "").replace("+", " and ")
        return f"{names} memory"


class Quality(_Part):
    """A budget's quality on held-out data; `retention` is the share of the full budget's."""

    metric: Annotated[str, Field(max_length=60), AfterValidator(clean)] = "quality"
    value: Number
    direction: Literal["higher", "lower"] = "higher"
    retention: Annotated[float, Field(ge=0, le=1e9)] | None = None

    @property
    def name(self) -> str:
        """The metric in words."""
        return self.metric.replace("_", " ")


class Limits(_Part):
    """What was asked for; None is no limit."""

    max_latency_ms: Milliseconds | None = None
    max_memory_bytes: Bytes | None = None
    min_quality: Number | None = None
    min_retention: Annotated[float, Field(ge=0, le=1)] | None = None


class ColdStart(_Part):
    """Milliseconds from opening the engine to its first result."""

    total: Milliseconds


class Spread(_Part):
    """The deciding statistic of every build of the chosen engine."""

    statistic: Text
    latency_ms: Annotated[list[Milliseconds], Field(min_length=1, max_length=100)]


class Row(_Part):
    """One budget."""

    budget: Budget
    latency_ms: Latency | None = None
    back_to_back_ms: Latency | None = None
    memory: Memory | None = None
    quality: Quality | None = None
    verdict: Text = "not measured"
    reasons: list[Text] = []
    warnings: list[Text] = []
    cold_start_ms: ColdStart | None = None
    samples: Annotated[list[Milliseconds], Field(max_length=1_000_000)] = []

    @property
    def name(self) -> str:
        """ "K=8", or the budget's own name."""
        return f"K={self.budget}" if isinstance(self.budget, int) else self.budget

    @property
    def milliseconds(self) -> float | None:
        """The statistic that was asked for, or the estimate; None where there is neither."""
        return None if self.latency_ms is None else figure(self.latency_ms, self.samples)


class Environment(_Part):
    """Where and how it was measured, as text by name."""

    machine: Facts | None = None
    versions: Facts | None = None
    settings: Facts | None = None
    warmup: Facts | None = None
    throttling: Facts | None = None
    affinity: Annotated[list[int], Field(max_length=4096)] | None = None
    provider: Text | None = None
    threads: int | None = None
    boundary: Text | None = None


class Model(_Part):
    """Which checkpoint."""

    name: Text = ""
    hash: Text = ""


class Run(_Part):
    """One target, one set of limits."""

    status: Literal["ok", "nothing_fits", "inconclusive", "estimated", "failed"]
    target: Text
    budget: Budget | None = None
    certain: bool = False
    limits: Limits = Limits()
    message: Text = ""
    requirement: Text | None = None
    precision: Text | None = None
    kind: Text | None = None
    model: Model = Model()
    candidates: Annotated[list[Row], Field(max_length=4096)] = []
    spread: Spread | None = None
    environment: Environment | None = None
    efficiency: Facts = {}

    @property
    def chosen(self) -> Row | None:
        """The row of the chosen budget."""
        return next((row for row in self.candidates if row.budget == self.budget), None)


def figure(latency: Latency, samples: list[float]) -> float | None:
    """The deciding statistic in milliseconds: as the document says it, or from its samples; an estimate as it is."""
    if latency.basis == "estimated" and latency.estimate is not None:
        return latency.estimate
    stated: float | None = getattr(latency, latency.statistic, None)
    if stated is None and samples:
        return percentile(sorted(samples), percentile_of(latency.statistic))
    return stated
