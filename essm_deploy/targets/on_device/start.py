"""Starts a worker on a device, hands it what comes on stdin, and ends it when stdin ends: with the connection, the worker goes.

The first line of stdin is {"runner", "lock", "wait_s", "keep"}: the directory with our package, a file that two workers cannot
hold at once and how long it is waited for, and the names of the environment that the worker gets. Stdout and stderr are the
worker's own, and so is the status.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from io import BufferedReader
from typing import Any, cast

_GRACE_SECONDS = 2.0


def main() -> int:
    """Start the worker and stay until it ends, or until nobody listens."""
    wanted: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    if not _held(os.open(wanted["lock"], os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600), wanted["wait_s"]):
        _refuse("another essm-deploy is measuring on this device: wait for it to end and run the same command again")
        return 3
    worker = _start(wanted)
    threading.Thread(target=_follow, args=(worker,), daemon=True).start()
    _hand_on(worker)
    _end(worker)
    threading.Event().wait()  # _follow ends us
    return 0


def _held(lock: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)


def _refuse(message: str) -> None:
    print(json.dumps({"event": "error", "type": "UnavailableError", "message": message, "exit_code": 3}), flush=True)


def _start(wanted: dict[str, Any]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "essm_deploy.runtime.worker"],
        stdin=subprocess.PIPE,
        env={name: os.environ[name] for name in wanted["keep"] if name in os.environ},
        cwd=wanted["runner"],
        start_new_session=True,
    )


def _hand_on(worker: subprocess.Popen[bytes]) -> None:
    assert worker.stdin is not None
    reader = cast(BufferedReader, sys.stdin.buffer)
    with contextlib.suppress(OSError):
        while block := reader.read1(1 << 16):
            worker.stdin.write(block)
            worker.stdin.flush()


def _end(worker: subprocess.Popen[bytes]) -> None:
    assert worker.stdin is not None
    with contextlib.suppress(OSError):
        worker.stdin.close()
    time.sleep(_GRACE_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)


def _follow(worker: subprocess.Popen[bytes]) -> None:
    status = worker.wait()
    if status < 0:
        memory = ", perhaps for want of memory" if status == -signal.SIGKILL else ""
        with contextlib.suppress(OSError):  # nobody may be listening any more
            print(f"killed by signal {-status} on the device{memory}", file=sys.stderr, flush=True)
    os._exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    sys.exit(main())
