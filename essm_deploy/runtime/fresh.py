"""One question to one worker in a process of its own, for an app that waits for the whole answer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from essm_deploy import errors
from essm_deploy.errors import BundleError, EssmError, UnavailableError, WorkerError
from essm_deploy.runtime.strict import JsonObject, parse_json

_PACKAGES = Path(__file__).resolve().parents[2]
_MOST_BYTES = 64 << 20


def ask_worker(request: JsonObject, timeout: float) -> list[JsonObject]:
    """All messages of a worker that was asked `request`, from `hello` to `done`; `timeout` in seconds is for the whole.

    Raises what the worker reports, WorkerError if it dies, hangs or answers garbage, and UnavailableError where none starts.
    """
    if not sys.executable:
        raise UnavailableError("calibrating starts a Python process, and this interpreter does not know its own executable")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "essm_deploy.runtime.worker"],
            input=json.dumps(request, allow_nan=False).encode() + b"\n",
            capture_output=True,
            timeout=timeout,
            check=False,
            cwd=_PACKAGES,  # `-m` looks there first: it holds the package
        )
    except OSError as error:
        raise UnavailableError(f"a worker cannot be started with {sys.executable}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise WorkerError(f"the worker took longer than {timeout:g} s") from None
    messages = _messages(done.stdout)
    if messages and messages[-1]["event"] == "error":
        raise reported_error(messages[-1])
    if done.returncode != 0 or not messages or messages[-1]["event"] != "done":
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise WorkerError(f"the worker ended with status {done.returncode}" + (f": {said[0][:300]}" if said else ""))
    return messages


def _messages(output: bytes) -> list[JsonObject]:
    if len(output) > _MOST_BYTES:
        raise WorkerError(f"the worker answered {len(output)} bytes, expected at most {_MOST_BYTES}")
    try:
        messages = [parse_json(line, "the answer") for line in output.decode("utf-8", "replace").splitlines()]
    except BundleError as error:
        raise WorkerError(f"the worker answered something else than JSON ({error})") from None
    if not all(isinstance(message, dict) and isinstance(message.get("event"), str) for message in messages):
        raise WorkerError("the worker answered something else than objects with an event")
    return messages


def reported_error(message: JsonObject) -> EssmError:
    """The exception that the worker met, of the same class, so that it keeps its exit code."""
    name, text = message.get("type"), message.get("message")
    kind: Any = getattr(errors, name, None) if isinstance(name, str) else None
    if not isinstance(text, str) or not (isinstance(kind, type) and issubclass(kind, EssmError)):
        return WorkerError(f"the worker reported an error of an unknown kind: {json.dumps(message)[:200]}")
    return kind(" ".join(text.split())[:2000])
