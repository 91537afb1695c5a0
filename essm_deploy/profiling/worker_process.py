"""The other end of the worker's protocol: bounded lines, deadlines, and a process that is gone when we are."""

from __future__ import annotations

import contextlib
import functools
import json
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, ParamSpec, Protocol, TypeVar, runtime_checkable

from essm_deploy.errors import BundleError, ConnectionLost, EssmError, WorkerError
from essm_deploy.runtime.channel import MAX_LINE
from essm_deploy.runtime.channel import MAX_RUN_LINE as MAX_RUN_LINE
from essm_deploy.runtime.fresh import reported_error
from essm_deploy.runtime.manifest import Engine
from essm_deploy.runtime.strict import JsonObject, parse_json

_BUFFERED = 1 << 30
_STDERR_KEPT = 4096
_GRACE_SECONDS = 5.0
_SEND_SECONDS = 120.0
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class WorkerProcess(Protocol):
    """The part of subprocess.Popen[str] that a worker must offer, wherever it runs."""

    @property
    def stdin(self) -> IO[str] | None: ...
    @property
    def stdout(self) -> IO[str] | None: ...
    @property
    def stderr(self) -> IO[str] | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...


@runtime_checkable
class Explained(Protocol):
    """A process that may know better than its status why it is gone, such as an `ssh` whose connection was lost."""

    def cause(self) -> EssmError | None: ...


class Launcher(Protocol):
    """How a target starts a fresh worker. `remote`: it runs on another machine, or in another runtime than this process's."""

    @property
    def remote(self) -> bool: ...

    def place(self, root: Path, engine: Engine) -> str:
        """Make the engine's files, below `root` here, readable where the worker runs; returns their root as it sees it."""

    def start(self) -> WorkerProcess:
        """A new process that speaks the worker's protocol on its pipes."""


def reconnecting(run: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """`run`, once more if its connection is lost on the way: the launcher connects again, and says so."""

    @functools.wraps(run)
    def once_more(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        try:
            return run(*args, **kwargs)
        except ConnectionLost:
            return run(*args, **kwargs)

    return once_more


@contextmanager
def conversation(launcher: Launcher, longest: int = MAX_LINE) -> Iterator[Conversation]:
    """A fresh worker, whose lines may have `longest` characters; when the block ends, for whatever reason, it is gone."""
    process = launcher.start()
    talk = Conversation(process, longest)
    try:
        yield talk
    except BaseException:
        process.kill()
        raise
    finally:
        talk.close()


class Conversation:
    """Requests to one worker and its answers, read in threads so that a silent worker cannot hang us."""

    def __init__(self, process: WorkerProcess, longest: int = MAX_LINE) -> None:
        self.process = process
        self._longest = longest
        self._lines: queue.Queue[str | None] = queue.Queue(maxsize=max(1, _BUFFERED // longest))
        self._stderr = ""
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=self._read_lines, daemon=True)]
        self._threads.append(threading.Thread(target=self._read_stderr, daemon=True))
        for thread in self._threads:
            thread.start()

    def send(self, request: JsonObject, timeout: float = _SEND_SECONDS) -> None:
        """Write one request. Raises WorkerError if the worker is gone, or does not read it within `timeout` seconds."""
        line = json.dumps(request, allow_nan=False) + "\n"
        if len(line) > self._longest:
            raise WorkerError(f"the request takes {len(line)} bytes, more than the {self._longest} that a line may have")
        failures: list[Exception] = []
        writer = threading.Thread(target=self._write, args=(line, failures), daemon=True)
        writer.start()
        writer.join(timeout)
        if writer.is_alive():
            raise WorkerError(f"the worker did not read its request within {timeout:g} s")
        if failures:
            raise self._death("before it took the request")

    def receive(self, event: str | tuple[str, ...], timeout: float) -> JsonObject:
        """The next message, which must be one of `event`.

        Raises the worker's own error if it reports one, and WorkerError for silence, garbage or a dead process.
        """
        expected = (event,) if isinstance(event, str) else event
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise WorkerError(f"the worker was silent for {timeout:g} s, expected {' or '.join(expected)}") from None
        if line is None:
            raise self._death(f"where {' or '.join(expected)} was expected")
        message = _decode(line, self._longest)
        if message["event"] == "error":
            raise reported_error(message)
        if message["event"] not in expected:
            raise WorkerError(f"the worker answered {message['event']!r}, expected {' or '.join(expected)}")
        return message

    def close(self) -> None:
        """End the process and the readers."""
        self._closed.set()
        with contextlib.suppress(OSError):
            if self.process.stdin is not None:
                self.process.stdin.close()
        try:
            self.process.wait(timeout=_GRACE_SECONDS)
        except BaseException:
            self.process.kill()
            self.process.wait()
        for thread in self._threads:
            thread.join(timeout=_GRACE_SECONDS)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def _write(self, line: str, failures: list[Exception]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line)
            self.process.stdin.flush()
        except (OSError, ValueError) as error:  # ValueError: closed meanwhile
            failures.append(error)

    def _read_lines(self) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            while line := self.process.stdout.readline(self._longest + 1):
                self._put(line)
        self._put(None)

    def _put(self, line: str | None) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                return self._lines.put(line, timeout=0.2)

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        with contextlib.suppress(OSError, ValueError):
            while line := self.process.stderr.readline(_STDERR_KEPT):
                self._stderr = (self._stderr + line)[-_STDERR_KEPT:]

    def _death(self, where: str) -> EssmError:
        with contextlib.suppress(Exception):
            self.process.wait(timeout=_GRACE_SECONDS)
        self._threads[1].join(timeout=1.0)
        cause = self.process.cause() if isinstance(self.process, Explained) else None
        if cause is not None:
            return cause
        status = self.process.poll()
        how = "closed its output" if status is None else f"ended with status {status}"
        if status is not None and status < 0:
            how = f"was killed by signal {-status}" + (", perhaps for want of memory" if status == -9 else "")
        said = self._stderr.strip().splitlines()
        return WorkerError(f"the worker {how} {where}" + (f": {said[-1][:300]}" if said else ""))


def _decode(line: str, longest: int) -> JsonObject:
    if len(line) > longest or not line.endswith("\n"):
        raise WorkerError(f"the worker answered a line that is cut or longer than {longest} characters")
    try:
        message = parse_json(line, "the answer")
    except BundleError:
        message = None
    if not isinstance(message, dict) or not isinstance(message.get("event"), str):
        raise WorkerError(f"the worker answered {line.strip()[:80]!r}, expected a JSON object with an event")
    return message
