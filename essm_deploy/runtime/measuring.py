"""What the worker does with the request `measure`: open, warm up, sample, and tell of the process and of the machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from essm_deploy.runtime.channel import Channel
from essm_deploy.runtime.contention import Contention
from essm_deploy.runtime.device_memory import SLOWDOWNS, DeviceReading, read_device
from essm_deploy.runtime.manifest import Engine
from essm_deploy.runtime.memory import MemoryReading, read_memory
from essm_deploy.runtime.sequence import SequenceEngine
from essm_deploy.runtime.session import Session
from essm_deploy.runtime.stream_outputs import StreamEngine
from essm_deploy.runtime.strict import Fields, JsonObject
from essm_deploy.runtime.throttling import snapshot, throttling
from essm_deploy.runtime.timing import (
    BACK_TO_BACK,
    PACED,
    SamplingPlan,
    Support,
    random_inputs,
    rotating,
    sample,
    warm_up,
)


@dataclass(frozen=True)
class Request:
    """The request `measure`; the worker's docstring says what the fields are."""

    root: Path
    engine: Engine
    threads: int | None
    batch: int
    length: int | None
    seed: int
    warmup: dict[str, Any]
    plans: dict[str, SamplingPlan]

    @classmethod
    def from_fields(cls, fields: Fields) -> Request:
        """Raises BundleError for a request that does not hold together."""
        request = cls(
            root=Path(fields.text("root")),
            engine=Engine.from_json(fields.take("engine")),
            threads=fields.integer("threads", 1, optional=True),
            batch=cast(int, fields.integer("batch", 1)),
            length=fields.integer("length", 1, optional=True),
            seed=cast(int, fields.integer("seed", 0)),
            warmup=_warmup(Fields(fields.take("warmup"), "warmup")),
            plans=_plans(fields),
        )
        fields.finish()
        return request


def measure(channel: Channel, request: Request, baseline: MemoryReading) -> None:
    """Answer the request; `baseline` was read before anything was loaded."""
    start = time.perf_counter()
    runner = (StreamEngine if request.engine.kind == "stream" else SequenceEngine)(
        request.root, request.engine, request.threads
    )
    send_loaded(channel, start, runner.session)
    inputs = random_inputs(runner.inputs, batch=request.batch, length=request.length, seed=request.seed)
    call = rotating(runner.run, inputs)
    channel.send("warm", **asdict(warm_up(call, **request.warmup)))
    done = _sample(channel, call, request.plans, runner.session.threads)
    done |= {"execution": getattr(runner.session, "execution", None), "device_ms": _split(runner.session, call)}
    device = read_device(request.engine, runner.session)
    done["throttling"] = _with_gpu(done["throttling"], device)
    channel.send("memory", **_memory(baseline, device))
    channel.send("done", **done)


def send_loaded(channel: Channel, start: float, session: Session) -> None:
    """Say what was opened, and how long it took since `start`.

    No thread is pinned: apps do not pin theirs, ONNX Runtime binds none where the number of threads is given (its "Thread
    management"), and a pinned thread must wait where another could move on. The CPUs that the process may use are recorded.
    """
    load_ms = (time.perf_counter() - start) * 1e3
    affinity = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    channel.send("loaded", load_ms=load_ms, provider=session.provider, threads=session.threads, affinity=affinity)


def _sample(channel: Channel, call: Callable[[], object], plans: dict[str, SamplingPlan], threads: int) -> JsonObject:
    """Send the samples of every plan; returns what `done` says, the waiting being that of the last plan."""
    before = loaded = snapshot()
    whole, total, waited = Contention(), 0, None
    for mode, plan in plans.items():
        watch, count, busy_ms = Contention(), 0, 0.0
        for block in sample(call, plan):
            count, busy_ms = count + len(block), busy_ms + sum(block)
            channel.send("samples", mode=mode, ms=block)
        waited, total = watch.share(threads, busy_ms), total + count
        loaded = snapshot() if mode == BACK_TO_BACK else loaded
    figures = throttling(before, loaded, snapshot())
    return {"samples": total, "waited_share": waited, "stolen_share": whole.stolen_share(), "throttling": figures}


def _split(session: Session, call: Callable[[], object]) -> JsonObject | None:
    """What a call's time on a GPU goes into, by events, from some calls of their own; None on the host."""
    split = getattr(session, "split_ms", None)
    return None if split is None else split(call)


def _with_gpu(figures: JsonObject, device: DeviceReading) -> JsonObject:
    reasons = dict(figures["reasons"])
    if device.gpu_slowdowns is None:
        reasons[SLOWDOWNS] = device.reasons[SLOWDOWNS]
    return {**figures, SLOWDOWNS: device.gpu_slowdowns, "reasons": reasons}


def _memory(baseline: MemoryReading, device: DeviceReading) -> JsonObject:
    reading = asdict(read_memory())
    reasons: dict[str, str] = reading.pop("reasons")
    reasons |= {name: reason for name, reason in device.reasons.items() if name != SLOWDOWNS}
    if baseline.peak_bytes is None:
        reasons["baseline_bytes"] = baseline.reasons["peak_bytes"]
    figures = {"device_bytes": device.device_bytes, "nvml_bytes": device.nvml_bytes, "baseline_bytes": baseline.peak_bytes}
    return {**reading, **figures, "bounded_by": device.bounded_by, "reasons": reasons}


def _plans(fields: Fields) -> dict[str, SamplingPlan]:
    support = _support(fields.take("support", optional=True))
    least, shortest, longest = fields.integer("min_samples", 1), _number(fields, "min_seconds"), _number(fields, "max_seconds")
    plans = {BACK_TO_BACK: SamplingPlan(cast(int, least), shortest, longest, support=support)}
    pace = fields.take("pace_ms", optional=True)
    samples, seconds = fields.integer("paced_samples", 1, optional=True), fields.take("paced_seconds", optional=True)
    if pace is not None:
        end = longest if seconds is None else _positive(fields, "paced_seconds", seconds)
        plans[PACED] = SamplingPlan(samples or cast(int, least), 0.0, end, _positive(fields, "pace_ms", pace), support)
    return plans


def _support(value: object) -> Support | None:
    if value is None:
        return None
    fields = Fields(value, "support")
    fraction, samples = _number(fields, "percentile"), cast(int, fields.integer("samples", 1))
    fields.finish()
    if not 0 < fraction < 1:
        raise fields.wrong("percentile", fraction, "a share between 0 and 1")
    return Support(fraction, samples)


def _warmup(fields: Fields) -> dict[str, Any]:
    options = {
        "max_seconds": _number(fields, "max_seconds"),
        "window": fields.integer("window", 1),
        "tolerance": _number(fields, "tolerance"),
    }
    fields.finish()
    return options


def _number(fields: Fields, name: str) -> float:
    return _positive(fields, name, fields.take(name))


def _positive(fields: Fields, name: str, value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= 1e9:
        raise fields.wrong(name, value, "a number from 0 to 1e9")
    return float(value)
