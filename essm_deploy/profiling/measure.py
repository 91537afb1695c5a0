"""Measuring one engine in one fresh process."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from essm_deploy.errors import UsageError, WorkerError
from essm_deploy.profiling.statistics import percentile_of
from essm_deploy.profiling.verdict import Attempt, BudgetKey, Latency, Measurement, Memory, stability_warnings
from essm_deploy.profiling.worker_process import Conversation, Launcher, conversation
from essm_deploy.runtime.manifest import Engine
from essm_deploy.runtime.strict import JsonObject

_MOST_SAMPLES = 1_000_000
_RETRY_SECONDS = 15.0  # a second look may take longer than the first, not for ever


@dataclass(frozen=True)
class Settings:
    """What is measured and for how long. Two runs are comparable if these are equal; they belong in every cache key.

    Sampling goes on until there are `min_samples` and `min_seconds`, or for `max_seconds`. `threads` None: the physical
    cores of the device. `length` None: the engine's own. `pace_ms`: one call in that time, as an app would call.
    """

    statistic: str = "p95"
    confidence: float = 0.95
    min_samples: int = 300
    min_seconds: float = 1.0
    max_seconds: float = 8.0
    warmup_seconds: float = 2.0
    warmup_window: int = 20
    warmup_tolerance: float = 0.03
    threads: int | None = None
    batch: int = 1
    length: int | None = None
    seed: int = 0
    pace_ms: float | None = None

    def __post_init__(self) -> None:
        percentile_of(self.statistic)
        if not 0.5 <= self.confidence < 1:
            raise UsageError(f"the confidence is {self.confidence}, expected at least 0.5 and less than 1")

    def scaled(self, scale: float) -> Settings:
        """The settings of a second look: `scale` times the samples and the time, the time within bounds."""
        most = max(self.max_seconds, _RETRY_SECONDS)
        return replace(
            self,
            min_samples=min(_MOST_SAMPLES, round(self.min_samples * scale)),
            min_seconds=min(self.min_seconds * scale, most / 2),
            max_seconds=min(self.max_seconds * scale, most),
        )

    def to_json(self) -> JsonObject:
        """All settings, for records and cache keys."""
        return asdict(self)


@dataclass(frozen=True)
class Timeouts:
    """Seconds of silence after which a worker is given up: until it greets, until the engine is open, between reports."""

    start: float = 120.0
    load: float = 600.0
    report: float = 120.0


_FIRST = Attempt()
_TIMEOUTS = Timeouts()


def measure_engine(
    launcher: Launcher,
    root: Path,
    engine: Engine,
    settings: Settings,
    *,
    budget: BudgetKey,
    attempt: Attempt = _FIRST,
    timeouts: Timeouts = _TIMEOUTS,
) -> Measurement:
    """Start a worker, let it measure `engine` (files below `root`) and summarise what it sent.

    Raises the worker's own error (InputError, UnavailableError, ...) and WorkerError if it dies, hangs or answers
    garbage. The worker is gone when this returns, whatever happened, Ctrl-C included.
    """
    wanted = settings.scaled(attempt.scale)
    placed = launcher.place(root, engine)
    with conversation(launcher) as talk:
        hello = talk.receive("hello", timeouts.start)
        talk.send(_request(placed, engine, wanted))
        loaded = talk.receive("loaded", timeouts.load)
        warm = talk.receive("warm", timeouts.report + wanted.warmup_seconds)
        samples, memory, waited_share = _collect(talk, timeouts.report)
    latency = Latency.from_samples(samples, statistic=wanted.statistic, confidence=wanted.confidence)
    return Measurement(
        budget=budget,
        latency=latency,
        memory=memory,
        waited_share=waited_share,
        samples_ms=tuple(samples),
        load_ms=_number(loaded, "load_ms"),
        first_ms=_number(warm, "first_ms"),
        attempt=attempt.number,
        warnings=(*_warm_warnings(warm), *stability_warnings(samples, latency, waited_share)),
        environment=_environment(hello, loaded, warm, wanted),
    )


def _request(root: str, engine: Engine, settings: Settings) -> JsonObject:
    return {
        "op": "measure",
        "root": root,
        "engine": engine.to_json(),
        "threads": settings.threads,
        "batch": settings.batch,
        "length": settings.length,
        "seed": settings.seed,
        "warmup": {
            "max_seconds": settings.warmup_seconds,
            "window": settings.warmup_window,
            "tolerance": settings.warmup_tolerance,
        },
        "min_samples": settings.min_samples,
        "min_seconds": settings.min_seconds,
        "max_seconds": settings.max_seconds,
        "pace_ms": settings.pace_ms,
    }


def _collect(talk: Conversation, timeout: float) -> tuple[list[float], Memory, float | None]:
    samples: list[float] = []
    while (message := talk.receive(("samples", "memory"), timeout))["event"] == "samples":
        samples += _samples(message)
        if len(samples) > _MOST_SAMPLES:
            raise WorkerError(f"the worker sent more than {_MOST_SAMPLES} samples")
    memory = _memory(message)
    done = talk.receive("done", timeout)
    if not samples or done.get("samples") != len(samples):
        raise WorkerError(f"the worker took {str(done.get('samples'))[:20]} samples and {len(samples)} arrived")
    return samples, memory, None if done.get("waited_share") is None else _number(done, "waited_share")


def _samples(message: JsonObject) -> list[float]:
    values = message.get("ms")
    if not isinstance(values, list) or not all(_is_number(value) for value in values):
        raise WorkerError("the worker sent samples that are not a list of durations in milliseconds")
    return [float(value) for value in values]


def _memory(message: JsonObject) -> Memory:
    names = ("peak_bytes", "anonymous_bytes", "file_bytes", "device_bytes", "baseline_bytes")
    values = {name: message.get(name) for name in names}
    reasons = message.get("reasons", {})
    for name, value in values.items():
        whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
        if value is not None and not whole:
            raise WorkerError(f"the worker sent {name} = {str(value)[:40]}, expected a positive number of bytes or null")
    if not isinstance(reasons, dict) or not all(isinstance(reason, str) for reason in reasons.values()):
        raise WorkerError("the worker sent reasons that are not sentences by name")
    return Memory(**values, reasons=reasons)  # type: ignore[arg-type]  # checked above


def _warm_warnings(warm: JsonObject) -> list[str]:
    if warm.get("settled") is True:
        return []
    return [f"warm-up: the running median had not settled after {_number(warm, 'seconds'):.1f} s"]


def _environment(hello: JsonObject, loaded: JsonObject, warm: JsonObject, settings: Settings) -> dict[str, Any]:
    return {
        "versions": hello.get("versions"),
        "machine": hello.get("machine"),
        "provider": loaded.get("provider"),
        "threads": loaded.get("threads"),
        "boundary": "host-to-host around one call",
        "warmup": {key: warm.get(key) for key in ("iterations", "settled", "seconds", "median_ms")},
        "settings": settings.to_json(),
    }


def _number(message: JsonObject, name: str) -> float:
    value = message.get(name)
    if not _is_number(value):
        raise WorkerError(f"the worker sent {name} = {str(value)[:40]}, expected a number of at least 0")
    return float(value)  # type: ignore[arg-type]  # _is_number has looked


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf
