"""The worker's protocol on stdin and stdout for a worker in JavaScript.

    python -m essm_deploy.targets.web_bridge node|chromium PROGRAM PACKAGE

PROGRAM is Node or Chromium, PACKAGE the folder of onnxruntime-web. The bridge starts the worker, hands the request over,
passes the messages on, and fills in what a worker in JavaScript cannot know: the machine, the physical cores, and memory
and waiting of the process that runs the engine, which the kernel accounts for as it does for every other worker's.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Protocol

from essm_deploy.errors import EssmError, WorkerError
from essm_deploy.runtime import host
from essm_deploy.runtime.channel import Channel, claim_stdout, report
from essm_deploy.runtime.manifest import Engine
from essm_deploy.runtime.strict import Fields, JsonObject
from essm_deploy.targets.node_process import node_worker
from essm_deploy.targets.page_worker import page_worker
from essm_deploy.targets.web_facts import Watch

_POLL_SECONDS = 0.25


class WebWorker(Protocol):
    """A worker in JavaScript."""

    def next(self, timeout: float) -> JsonObject | None: ...
    def send(self, request: JsonObject, root: Path, engine: Engine) -> None: ...
    def proc(self) -> Path | None: ...


_WORKERS: dict[str, Callable[[str, Path], AbstractContextManager[WebWorker]]] = {
    "node": node_worker,
    "chromium": page_worker,
}


@dataclass
class Bridge:
    """One conversation."""

    channel: Channel
    worker: WebWorker
    parent: int = field(default_factory=os.getppid)
    end: queue.Queue[EssmError | None] = field(default_factory=queue.Queue)

    def run(self) -> int:
        """Pass messages on until the last one; returns the exit status."""
        threading.Thread(target=self._hand_over, daemon=True).start()
        watch = Watch(self.worker.proc)
        while (event := self._next()) is not None:
            name = str(event.pop("event", None))
            self.channel.send(name, **watch.completed(name, event))
            if name in ("done", "error"):
                return 0 if name == "done" else _exit_code(event)
        return 0

    def _next(self) -> JsonObject | None:
        """The worker's next message; None if nobody asks anything. Raises what is wrong with the request or the worker."""
        while self.end.empty():
            if (event := self.worker.next(_POLL_SECONDS)) is not None:
                return event
            if os.getppid() != self.parent:
                raise WorkerError("whoever started the bridge is gone")
        error = self.end.get()
        if error is not None:
            raise error
        return None

    def _hand_over(self) -> None:
        """The request, from stdin to the worker, with the number of threads that it may leave open."""
        try:
            request = self.channel.receive()
            if request is None:
                return self.end.put(None)
            fields = Fields(request, "the request")
            root, engine = Path(fields.text("root")), Engine.from_json(fields.take("engine"))
            threads = fields.integer("threads", 1, optional=True) or host.physical_cores()
            self.worker.send({**request, "threads": threads}, root, engine)
        except EssmError as error:
            self.end.put(error)
        return None


def main(via: str, program: str, package: str) -> int:
    """Answer one request and return the exit status."""
    signal.signal(signal.SIGTERM, _terminated)
    channel = claim_stdout()
    try:
        with _WORKERS[via](program, Path(package)) as worker:
            return Bridge(channel, worker).run()
    except (BrokenPipeError, KeyboardInterrupt):
        return 130  # whoever asked is gone, or does not want the answer any more
    except Exception as error:
        return report(channel, error)


def _exit_code(event: JsonObject) -> int:
    code = event.get("exit_code")
    return code if isinstance(code, int) else WorkerError.exit_code


def _terminated(number: int, frame: FrameType | None) -> None:
    """Leave all blocks, which end the browser and remove its files."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
