"""A worker in Node, as the bridge sees it."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from essm_deploy.errors import BundleError, UnavailableError, WorkerError
from essm_deploy.runtime.channel import MAX_RUN_LINE
from essm_deploy.runtime.manifest import Engine
from essm_deploy.runtime.strict import JsonObject, parse_json
from essm_deploy.targets.web_runtime import MODULES


@dataclass
class NodeWorker:
    """`node web/worker.mjs`. Its lines are read in a thread, so that `next` need not wait for ever."""

    process: subprocess.Popen[bytes]
    _lines: queue.Queue[bytes] = field(default_factory=lambda: queue.Queue(maxsize=64))

    def __post_init__(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()

    def next(self, timeout: float) -> JsonObject | None:
        """The next message; None if there is none within `timeout` seconds. WorkerError if there will be none."""
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            return None
        if not line:
            raise WorkerError(f"node ended with status {self.process.wait()}")
        try:
            message = parse_json(line.decode("utf-8", "replace"), "the answer")
        except BundleError:
            message = None
        if not isinstance(message, dict):
            raise WorkerError(f"node answered {line.decode('utf-8', 'replace').strip()[:80]!r}, expected a JSON object")
        return message

    def send(self, request: JsonObject, root: Path, engine: Engine) -> None:
        """Hand the request over; Node reads the files of the engine itself. It ends when its stdin does."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # `next` says what became of it
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()

    def proc(self) -> Path:
        """/proc/PID of the process that runs the engine."""
        return Path("/proc") / str(self.process.pid)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            while line := self.process.stdout.readline(MAX_RUN_LINE + 1):
                self._lines.put(line)
        self._lines.put(b"")


@contextlib.contextmanager
def node_worker(node: str, package: Path) -> Iterator[NodeWorker]:
    """A running worker on the onnxruntime-web in `package`; gone when the block ends."""
    try:
        process = subprocess.Popen(
            [node, str(MODULES / "worker.mjs"), str(package)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=MODULES
        )
    except OSError as error:
        raise UnavailableError(f"the worker cannot be started with {node}: {error.strerror}") from None
    try:
        yield NodeWorker(process)
    finally:
        process.kill()
        process.wait()
