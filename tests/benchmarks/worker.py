"""One contender in a process of its own: JSON Lines on stdin and stdout.

    open    {setting, contender}    -> {seconds, settings, answers}
    turn    {warmup, calls}         -> {ms: [...]}     the calls after the warm-up
    output  {file}                  -> {}              the first answer as .npy
    memory  {}                      -> {peak_bytes, start_bytes, ...}

A request that fails is answered with {error: one line}. Whatever a library prints on stdout goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from typing import Any

import numpy as np

from essm_deploy.runtime.memory import read_memory
from tests.benchmarks.contender import FLOOR, OURS, Contender, Opened, Setting


class Worker:
    """Answers requests; there is nothing to call before `open`."""

    opened: Opened

    def __init__(self) -> None:
        self._start = read_memory()

    def open(self, setting: dict[str, Any], contender: dict[str, str]) -> dict[str, Any]:
        """Open the contender and call it once: a compiler compiles at the first call."""
        start = time.perf_counter()
        self.opened = open_contender(Contender(**contender), Setting.from_json(setting))
        self._answer = self.opened.output() if self.opened.output else self.opened.call()
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "settings": self.opened.settings, "answers": self.opened.output is not None}

    def turn(self, warmup: int, calls: int) -> dict[str, Any]:
        """Milliseconds of `calls` calls, one by one."""
        if self.opened.before_turn:
            self.opened.before_turn()
        call, clock = self.opened.call, time.perf_counter_ns
        for _ in range(warmup):
            call()
        times = []
        for _ in range(calls):
            start = clock()
            call()
            times.append((clock() - start) / 1e6)
        return {"ms": times}

    def output(self, file: str) -> dict[str, Any]:
        """Write the first answer to the benchmark's input."""
        np.save(file, self._answer)
        return {}

    def memory(self) -> dict[str, Any]:
        """Of this process, as the kernel accounts for it."""
        now = asdict(read_memory()) | {"start_bytes": self._start.peak_bytes}
        return {name: value for name, value in now.items() if name.endswith("_bytes")}


def open_contender(contender: Contender, setting: Setting) -> Opened:
    """Ours, a floor, or a peer. Nobody's packages are imported before: memory is measured in this process."""
    if contender.peer in (OURS, FLOOR):
        from tests.benchmarks.own import OWN

        return OWN[contender.peer, contender.spelling](contender, setting)
    from tests.benchmarks.peers.runtimes import PEERS

    return PEERS[contender.peer](contender, setting)


def main() -> None:
    """Serve until stdin ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = getattr(worker, request.pop("do"))(**request)
        except Exception as error:  # a peer may raise anything, and that is a result
            reply = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
