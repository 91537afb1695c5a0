"""Measuring one engine in one fresh process."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from essm_deploy.errors import UsageError, WorkerError
from essm_deploy.profiling.answers import (
    MOST_SAMPLES,
    Samples,
    affinity_of,
    execution_of,
    memory_of,
    number_of,
    optional_number,
    throttling_of,
    warnings_of,
)
from essm_deploy.profiling.stability import Stability, machine_warnings, pace_warnings, stability_warnings
from essm_deploy.profiling.statistics import percentile_of, samples_needed
from essm_deploy.profiling.verdict import Attempt, BudgetKey, Latency, Measurement, Memory, look_confidence
from essm_deploy.profiling.worker_process import Conversation, Launcher, conversation, reconnecting
from essm_deploy.runtime.manifest import Engine
from essm_deploy.runtime.strict import JsonObject
from essm_deploy.runtime.timing import BACK_TO_BACK, PACED
from essm_deploy.units import format_ms

_RETRY_SECONDS = 60.0  # a second look decides, and a slow engine makes few calls in less; not for ever
_PACED_SECONDS, _PACED_RETRY_SECONDS, _PACED_MOST_SECONDS = 12.0, 60.0, 600.0
_MARGIN = 2
"""How many times the independent samples that an upper bound takes at least: with just enough, it is the largest sample, and
one interrupted call among thousands decides. With twice as many it is about the third largest of the independent ones."""
_PACED_MARGIN = 1.5
"""The same for paced calls, which take their time."""


@dataclass(frozen=True)
class Settings:
    """What is measured and for how long. Two runs are comparable if these are equal; they belong in every cache key.

    Sampling goes on until there are `min_samples`, `min_seconds` and `wanted_samples` independent ones, twice what a bound of
    `statistic` takes, or for `max_seconds` (early stopping as in MLPerf's loadgen: what supports a bound is enough). `threads`
    None: the physical cores of the device. `length` None: the engine's own. `pace_ms`: after those calls, which follow one
    another, one in that time, as an app would call; `paced` says for how long.
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
        if self.pace_ms is not None and not 0 < self.needed_samples * self.pace_ms <= _PACED_MOST_SECONDS * 1e3:
            longest = format_ms(_PACED_MOST_SECONDS * 1e3 / self.needed_samples)
            raise UsageError(
                f"the pace is {self.pace_ms:g} ms, and a bound of {self.statistic} takes {self.needed_samples} calls: "
                f"expected a pace of more than 0 and at most {longest}"
            )

    @property
    def needed_samples(self) -> int:
        """Independent samples that an upper bound of the statistic takes in one look."""
        return samples_needed(percentile_of(self.statistic), look_confidence(self.confidence))

    @property
    def wanted_samples(self) -> int:
        """Independent samples that end the sampling."""
        return _MARGIN * self.needed_samples

    def paced(self, scale: float = 1.0) -> tuple[int | None, float | None]:
        """Paced samples to take, 12 seconds' worth and enough for a bound, and the seconds to give up after; None: no pace."""
        if self.pace_ms is None:
            return None, None
        least = math.ceil(_PACED_MARGIN * self.needed_samples)
        usual = min(max(self.min_samples, least), max(least, int(_PACED_SECONDS * 1e3 / self.pace_ms)))
        most = max(2 * usual, int(_PACED_RETRY_SECONDS * 1e3 / self.pace_ms))
        samples = min(MOST_SAMPLES, round(usual * scale), most)
        return samples, max(self.max_seconds, 1.1 * samples * self.pace_ms / 1e3)

    def scaled(self, scale: float) -> Settings:
        """The settings of a second look: `scale` times the samples and the time, the time within bounds."""
        most = max(self.max_seconds, _RETRY_SECONDS)
        return replace(
            self,
            min_samples=min(MOST_SAMPLES, round(self.min_samples * scale)),
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


@reconnecting
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
        hello = {**talk.receive("hello", timeouts.start), "host": getattr(launcher, "host", None)}
        asked = time.monotonic()
        talk.send(_request(placed, engine, wanted, settings.paced(attempt.scale)))
        loaded = talk.receive("loaded", timeouts.load)
        warm = talk.receive("warm", timeouts.report + wanted.warmup_seconds)
        samples, message = _collect(talk, timeouts.report + (wanted.pace_ms or 0.0) / 1e3)
        elapsed = time.monotonic() - asked
        memory, done = memory_of(message), talk.receive("done", timeouts.report)
    samples.check(done.get("samples"), elapsed)
    return _summary(budget, attempt, wanted, samples, memory, {"hello": hello, "loaded": loaded, "warm": warm, "done": done})


def _request(root: str, engine: Engine, settings: Settings, paced: tuple[int | None, float | None]) -> JsonObject:
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
        "support": {"percentile": percentile_of(settings.statistic), "samples": settings.wanted_samples},
        "pace_ms": settings.pace_ms,
        "paced_samples": paced[0],
        "paced_seconds": paced[1],
    }


def _collect(talk: Conversation, timeout: float) -> tuple[Samples, JsonObject]:
    """All samples, and the message after them."""
    samples = Samples()
    while (message := talk.receive(("samples", "memory"), timeout))["event"] == "samples":
        samples.add(message)
    return samples, message


def _summary(
    budget: BudgetKey, attempt: Attempt, settings: Settings, samples: Samples, memory: Memory, said: dict[str, JsonObject]
) -> Measurement:
    mode = BACK_TO_BACK if settings.pace_ms is None else PACED
    if set(samples.modes) != {BACK_TO_BACK, mode}:
        raise WorkerError(f"the worker sent samples of {', '.join(samples.modes)}, expected {BACK_TO_BACK} and {mode}")
    taken, done = samples.modes[mode], said["done"]
    latency, plain = _latency(taken, settings, settings.pace_ms), _latency(samples.modes[BACK_TO_BACK], settings, None)
    waited_share, stolen_share = optional_number(done, "waited_share"), optional_number(done, "stolen_share")
    throttling = throttling_of(done)
    return Measurement(
        budget=budget,
        latency=latency,
        memory=memory,
        waited_share=waited_share,
        stolen_share=stolen_share,
        samples_ms=tuple(taken),
        back_to_back=None if mode == BACK_TO_BACK else plain,
        back_to_back_samples_ms=() if mode == BACK_TO_BACK else tuple(samples.modes[BACK_TO_BACK]),
        load_ms=number_of(said["loaded"], "load_ms"),
        first_ms=number_of(said["warm"], "first_ms"),
        attempt=attempt.number,
        warnings=(
            *_warm_warnings(said["warm"]),
            *stability_warnings(taken, latency, waited_share),
            *machine_warnings(stolen_share, throttling),
            *(pace_warnings(taken, settings.pace_ms) if settings.pace_ms else ()),
            *warnings_of(done),
        ),
        environment={
            **_environment(said["hello"], said["loaded"], said["warm"], settings),
            "stability": Stability.of(taken).to_json(),
            "throttling": throttling,
            **execution_of(done),
        },
    )


def _latency(samples: list[float], settings: Settings, pace_ms: float | None) -> Latency:
    return Latency.from_samples(samples, statistic=settings.statistic, confidence=settings.confidence, pace_ms=pace_ms)


def _warm_warnings(warm: JsonObject) -> list[str]:
    if warm.get("settled") is True:
        return []
    return [f"warm-up: the running median had not settled after {number_of(warm, 'seconds'):.1f} s"]


def _environment(hello: JsonObject, loaded: JsonObject, warm: JsonObject, settings: Settings) -> dict[str, Any]:
    return {
        "host": hello["host"],
        "versions": hello.get("versions"),
        "machine": hello.get("machine"),
        "provider": loaded.get("provider"),
        "threads": loaded.get("threads"),
        "affinity": affinity_of(loaded),
        "boundary": "host-to-host around one call",
        "warmup": {key: warm.get(key) for key in ("iterations", "settled", "seconds", "median_ms")},
        "settings": settings.to_json(),
    }
