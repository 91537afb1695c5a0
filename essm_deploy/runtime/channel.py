"""The worker's end of the conversation: one JSON object a line on stdin and stdout, and nothing else on stdout."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any, BinaryIO

from essm_deploy.errors import BundleError, EssmError, WorkerError
from essm_deploy.runtime.strict import JsonObject, parse_json

MAX_LINE = 1 << 20
MAX_RUN_LINE = 32 << 20
"""Of `run` and of its outputs: they hold arrays."""


class Channel:
    """The two ends of the conversation; `send` writes a line at once."""

    def __init__(self, reader: BinaryIO, writer: BinaryIO) -> None:
        self._reader = reader
        self._writer = writer

    def receive(self) -> JsonObject | None:
        """The next message; None at the end of the stream. Raises WorkerError or BundleError for one that is not an object."""
        line = self._reader.readline(MAX_RUN_LINE + 1)
        if not line:
            return None
        if len(line) > MAX_RUN_LINE:
            raise WorkerError(f"the request is longer than {MAX_RUN_LINE} bytes")
        return _checked(line)

    def send(self, event: str, **values: Any) -> None:
        """Write one message. Raises WorkerError for one that is too long to be read."""
        line = json.dumps({"event": event, **values}, allow_nan=False).encode("utf-8") + b"\n"
        longest = MAX_RUN_LINE if event == "outputs" else MAX_LINE
        if len(line) > longest:
            raise WorkerError(f"{event} takes {len(line)} bytes, more than the {longest} that a line may have")
        self._writer.write(line)
        self._writer.flush()


def claim_stdout() -> Channel:
    """Keep the real stdout for the protocol and point file descriptor 1 at stderr, for Python and C libraries alike."""
    sys.stdout.flush()
    writer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return Channel(sys.stdin.buffer, writer)


def report(channel: Channel, error: Exception) -> int:
    """Send an error as the protocol has it; returns its exit code."""
    known = isinstance(error, EssmError)
    code = error.exit_code if isinstance(error, EssmError) else WorkerError.exit_code
    message = str(error) if known else f"{type(error).__name__}: {error}"
    name = type(error).__name__ if known else WorkerError.__name__
    with contextlib.suppress(BrokenPipeError):
        channel.send("error", type=name, message=" ".join(message.split())[:2000], exit_code=code)
    return code


def _checked(line: bytes) -> JsonObject:
    """The request on one line; only one that brings arrays may be long."""
    too_long = WorkerError(f"the request is longer than {MAX_LINE} bytes") if len(line) > MAX_LINE else None
    try:
        value = parse_json(line.decode("utf-8", errors="replace"), "the request")
    except BundleError as error:
        raise too_long or error from None
    if too_long and not (isinstance(value, dict) and value.get("op") == "run"):
        raise too_long
    if not isinstance(value, dict):
        raise WorkerError("the request is not a JSON object")
    return value
