"""How long this process was ready to run and had to wait for a processor: what other processes do to a measurement."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

_TASKS = Path("/proc/self/task")


def waited_ns() -> int | None:
    """Nanoseconds that all threads spent on the run queue so far (schedstat, second field); None where nothing counts them."""
    total = 0
    try:
        for task in _TASKS.iterdir():
            total += int((task / "schedstat").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return total


@dataclass
class Contention:
    """Watches from its creation on."""

    waited: int | None = field(default_factory=waited_ns)
    start: int = field(default_factory=time.perf_counter_ns)

    def share(self, threads: int) -> float | None:
        """Waiting as a share of the time that `threads` threads had since then: 0 on a quiet machine. None if unknown."""
        now, elapsed = waited_ns(), time.perf_counter_ns() - self.start
        if now is None or self.waited is None or elapsed <= 0:
            return None
        return max(0.0, (now - self.waited) / (elapsed * threads))
