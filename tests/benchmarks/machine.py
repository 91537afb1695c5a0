"""What a run was made on: the machine, what else it was doing, and the versions of everybody."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from essm_deploy import __version__
from essm_deploy.runtime import host

QUIET = 0.03
"""A run is called disturbed if others took more than this share of all CPU time while it was measured."""

_PACKAGES = ("torch", "onnxruntime", "onnx", "onnxscript", "openvino", "executorch", "numpy", "scipy")
_IDLE = (3, 4)  # the columns idle and iowait of /proc/stat


def versions() -> dict[str, str]:
    """Of this product and of every peer's packages; "not installed" where there is none."""
    found = {"essm-deploy": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def describe() -> dict[str, Any]:
    """The machine."""
    return host.describe()


@dataclass(frozen=True)
class Watch:
    """Clock ticks of all CPUs so far: in all, busy, and busy with our own processes."""

    total: int
    busy: int
    own: int

    @classmethod
    def start(cls, pids: Iterable[int] = ()) -> Watch:
        """Now; `pids` are ours, besides this process."""
        ticks = [int(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        busy = sum(count for column, count in enumerate(ticks) if column not in _IDLE)
        return cls(sum(ticks), busy, sum(_ticks(pid) for pid in (os.getpid(), *pids)))

    def others(self, pids: Iterable[int] = ()) -> float:
        """The share of all CPU time since `start` that went to neither us nor idling; what was stolen counts as theirs."""
        now = Watch.start(pids)
        return max(0.0, (now.busy - self.busy - now.own + self.own) / max(1, now.total - self.total))


def wait_until_quiet(seconds: float) -> bool:
    """Wait until nobody else has worked for three seconds, or `seconds` are over; whether it is quiet."""
    end = time.monotonic() + seconds
    while True:
        watch = Watch.start()
        time.sleep(3.0)
        if watch.others() <= QUIET:
            return True
        if time.monotonic() >= end:
            return False


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])  # utime and stime
