"""The process that measures one engine: `python -m essm_deploy.runtime.worker`, JSON Lines on stdin and stdout.

One process answers one request and ends, so that its peak memory is the engine's own. Every message is one JSON object on
one line of at most 1 MiB (32 MiB for `run` and `outputs`, which hold arrays), UTF-8. Stdout carries nothing else: whatever a
library prints goes to stderr.

    <- hello    {event, protocol: 1, pid, versions {essm_deploy, python, numpy, onnxruntime}, machine {...},
                 baseline_bytes}                      VmHWM after the imports and before anything is loaded

    -> measure  {op, root, engine {an entry of the manifest's engines}, threads|null, batch, length|null, seed,
                 warmup {max_seconds, window, tolerance}, min_samples, min_seconds, max_seconds,
                 support {percentile, samples}|null, pace_ms|null, paced_samples|null, paced_seconds|null}
    <- loaded   {event, load_ms, provider, threads, affinity: [CPUs that the process may use]|null}
    <- warm     {event, iterations, settled, first_ms, median_ms, seconds}
    <- samples  {event, mode: "back_to_back"|"paced", ms: [...]}     as they come, several times a second
    <- memory   {event, peak_bytes, anonymous_bytes, file_bytes, pss_bytes, device_bytes, nvml_bytes, baseline_bytes,
                 bounded_by: what a memory limit bounds here, reasons {name: why null}}
    <- done     {event, samples: how many there were in all, waited_share: of the last mode's calls' time, for a processor;
                 stolen_share: of the machine's time, by a hypervisor; null if unknown; throttling {see throttling.py};
                 execution {cuda_graph, io_binding, transfers, state_on_device: whether}, how the calls were made; device_ms
                 {upload_ms, compute_ms, download_ms: medians by events}|null on the host;
                 and, from workers with a worse clock than this one's, warnings [what makes samples less exact]}

    -> run      {op, root, engine, threads|null, inputs {name: {dtype, shape, data: base64, little-endian}}}
    <- loaded
    <- outputs  {event, outputs {as inputs}}          see replay.py
    <- done     {event}

    <- error    {event, type, message, exit_code}     instead of the rest

`root` is the directory that the engine's file names are relative to. What is timed is the call that an app makes, host to
host: `SequenceEngine.run`, or one push of a stream engine's chunk into a stream that goes on. Calls are first made one after
the other, until there are `min_samples`, `min_seconds` and, of independent samples, those that `support` names, or for
`max_seconds`; then, with `pace_ms`, one in that time, until there are `paced_samples` or for `paced_seconds`. The exit status
is 0 after `done`, and the error's exit code after `error`.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime

from essm_deploy import __version__
from essm_deploy.runtime import host
from essm_deploy.runtime.channel import Channel, claim_stdout, report
from essm_deploy.runtime.manifest import Engine
from essm_deploy.runtime.measuring import Request, measure, send_loaded
from essm_deploy.runtime.memory import MemoryReading, read_memory
from essm_deploy.runtime.replay import Replay
from essm_deploy.runtime.strict import Fields, JsonObject
from essm_deploy.runtime.wire import decode_arrays, encode_arrays

PROTOCOL = 1


def main() -> int:
    """Answer one request and return the exit status."""
    channel = claim_stdout()
    baseline = read_memory()
    try:
        channel.send("hello", **_hello(baseline))
        request = channel.receive()
        if request is not None:
            _answer(channel, request, baseline)
        return 0
    except (BrokenPipeError, KeyboardInterrupt):
        return 130  # whoever asked is gone, or does not want the answer any more
    except Exception as error:
        return report(channel, error)


def _answer(channel: Channel, request: JsonObject, baseline: MemoryReading) -> None:
    fields = Fields(request, "the request")
    if fields.text("op", ("measure", "run")) == "run":
        _run(channel, fields)
    else:
        measure(channel, Request.from_fields(fields), baseline)


def _run(channel: Channel, fields: Fields) -> None:
    root, engine = Path(fields.text("root")), Engine.from_json(fields.take("engine"))
    threads, inputs = fields.integer("threads", 1, optional=True), decode_arrays(fields.take("inputs"), "inputs")
    fields.finish()
    start = time.perf_counter()
    replay = Replay(root, engine, threads)
    send_loaded(channel, start, replay.session)
    channel.send("outputs", outputs=encode_arrays(replay.run(inputs)))
    channel.send("done")


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


if __name__ == "__main__":
    sys.exit(main())
