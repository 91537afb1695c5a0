"""The process that measures one engine: `python -m essm_deploy.runtime.worker`, JSON Lines on stdin and stdout.

One process measures one engine once and ends, so that its peak memory is the engine's own. Every message is one JSON
object on one line of at most 1 MiB, UTF-8. Stdout carries nothing else: whatever a library prints goes to stderr.

    <- hello    {event, protocol: 1, pid, versions {essm_deploy, python, numpy, onnxruntime}, machine {...},
                 baseline_bytes}                      VmHWM after the imports and before anything is loaded
    -> request  {op: "measure", root, engine {an entry of the manifest's engines}, threads|null, batch, length|null, seed,
                 warmup {max_seconds, window, tolerance}, min_samples, min_seconds, max_seconds, pace_ms|null}
    <- loaded   {event, load_ms, provider, threads}
    <- warm     {event, iterations, settled, first_ms, median_ms, seconds}
    <- samples  {event, ms: [...]}                    as they come, several times a second
    <- memory   {event, peak_bytes, anonymous_bytes, file_bytes, device_bytes, baseline_bytes, reasons {name: why null}}
    <- done     {event, samples: how many there were, waited_share: of the time, for a processor; null if unknown}
    <- error    {event, type, message, exit_code}     instead of the rest

`root` is the directory that the engine's file names are relative to. What is timed is the call that an app makes, host
to host: `SequenceEngine.run`, or one push of a stream engine's chunk into a stream that goes on. The exit status is 0
after `done`, and the error's exit code after `error`.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnxruntime

from essm_deploy import __version__
from essm_deploy.errors import EssmError, WorkerError
from essm_deploy.runtime import host
from essm_deploy.runtime.contention import Contention
from essm_deploy.runtime.manifest import Engine
from essm_deploy.runtime.memory import MemoryReading, read_memory
from essm_deploy.runtime.sequence import SequenceEngine
from essm_deploy.runtime.stream_outputs import StreamEngine
from essm_deploy.runtime.strict import Fields, JsonObject, parse_json
from essm_deploy.runtime.timing import SamplingPlan, random_inputs, rotating, sample, warm_up

PROTOCOL = 1
MAX_LINE = 1 << 20


class Channel:
    """The two ends of the conversation; `send` writes a line at once."""

    def __init__(self, reader: BinaryIO, writer: BinaryIO) -> None:
        self._reader = reader
        self._writer = writer

    def receive(self) -> JsonObject | None:
        """The next message; None at the end of the stream. Raises WorkerError or BundleError for one that is not an object."""
        line = self._reader.readline(MAX_LINE + 1)
        if not line:
            return None
        if len(line) > MAX_LINE:
            raise WorkerError(f"the request is longer than {MAX_LINE} bytes")
        value = parse_json(line.decode("utf-8", errors="replace"), "the request")
        if not isinstance(value, dict):
            raise WorkerError("the request is not a JSON object")
        return value

    def send(self, event: str, **values: Any) -> None:
        """Write one message."""
        line = json.dumps({"event": event, **values}, allow_nan=False)
        self._writer.write(line.encode("utf-8") + b"\n")
        self._writer.flush()


def main() -> int:
    """Answer one request and return the exit status."""
    channel = _claim_stdout()
    baseline = read_memory()
    try:
        channel.send("hello", **_hello(baseline))
        request = channel.receive()
        if request is not None:
            _measure(channel, request, baseline)
        return 0
    except (BrokenPipeError, KeyboardInterrupt):
        return 130  # whoever asked is gone, or does not want the answer any more
    except Exception as error:
        return _report(channel, error)


def _measure(channel: Channel, request: JsonObject, baseline: MemoryReading) -> None:
    fields = Fields(request, "the request")
    fields.text("op", ("measure",))
    root, engine = Path(fields.text("root")), Engine.from_json(fields.take("engine"))
    threads, batch = fields.integer("threads", 1, optional=True), fields.integer("batch", 1)
    length, seed = fields.integer("length", 1, optional=True), fields.integer("seed", 0)
    warmup = Fields(fields.take("warmup"), "warmup")
    plan = _sampling_plan(fields)
    fields.finish()

    start = time.perf_counter()
    runner = (StreamEngine if engine.kind == "stream" else SequenceEngine)(root, engine, threads)
    load_ms = (time.perf_counter() - start) * 1e3
    channel.send("loaded", load_ms=load_ms, provider=runner.session.provider, threads=runner.session.threads)

    inputs = random_inputs(runner.inputs, batch=batch or 1, length=length, seed=seed or 0)
    call = rotating(runner.run, inputs)
    channel.send("warm", **asdict(warm_up(call, **_warmup_options(warmup))))
    total, contention = 0, Contention()
    for block in sample(call, plan):
        total += len(block)
        channel.send("samples", ms=block)
    waited_share = contention.share(runner.session.threads)
    channel.send("memory", **_memory(baseline, getattr(runner.session, "device_bytes", None)))
    channel.send("done", samples=total, waited_share=waited_share)


def _sampling_plan(fields: Fields) -> SamplingPlan:
    pace = fields.take("pace_ms", optional=True)
    return SamplingPlan(
        min_samples=fields.integer("min_samples", 1) or 1,
        min_seconds=_number(fields, "min_seconds"),
        max_seconds=_number(fields, "max_seconds"),
        pace_ms=None if pace is None else _positive(fields, "pace_ms", pace),
    )


def _warmup_options(fields: Fields) -> dict[str, Any]:
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


def _memory(baseline: MemoryReading, device_bytes: int | None) -> JsonObject:
    reasons = {} if device_bytes else {"device_bytes": "the engine runs on the host: it has no device memory"}
    if baseline.peak_bytes is None:
        reasons["baseline_bytes"] = baseline.reasons["peak_bytes"]
    reading = asdict(read_memory())
    reasons.update(reading.pop("reasons"))
    return {**reading, "device_bytes": device_bytes, "baseline_bytes": baseline.peak_bytes, "reasons": reasons}


def _hello(baseline: MemoryReading) -> JsonObject:
    versions = {
        "essm_deploy": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "onnxruntime": onnxruntime.__version__,
    }
    return {
        "protocol": PROTOCOL,
        "pid": os.getpid(),
        "versions": versions,
        "machine": host.describe(),
        "baseline_bytes": baseline.peak_bytes,
    }


def _report(channel: Channel, error: Exception) -> int:
    known = isinstance(error, EssmError)
    code = error.exit_code if isinstance(error, EssmError) else WorkerError.exit_code
    message = str(error) if known else f"{type(error).__name__}: {error}"
    name = type(error).__name__ if known else WorkerError.__name__
    with contextlib.suppress(BrokenPipeError):
        channel.send("error", type=name, message=" ".join(message.split())[:2000], exit_code=code)
    return code


def _claim_stdout() -> Channel:
    """Keep the real stdout for the protocol and point file descriptor 1 at stderr, for Python and C libraries alike."""
    sys.stdout.flush()
    writer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return Channel(sys.stdin.buffer, writer)


if __name__ == "__main__":
    sys.exit(main())
