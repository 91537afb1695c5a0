"""How long this process was ready to run and had to wait for a processor: what other processes do to a measurement.

Two figures: what the kernel's run queues show (processes of this system), and what a hypervisor took (those of other systems on
the same hardware), which no run queue shows.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

_TASKS = Path("/proc/self/task")
_STAT = Path("/proc/stat")
_STEAL, _FIELDS = 7, 8  # of the line "cpu" in proc(5); guest time, behind them, is counted as user time already


def waited_ns(tasks: Path | None = None) -> int | None:
    """Nanoseconds that all threads spent on the run queue so far (schedstat, second field); None where nothing counts them.

    `tasks` is /proc/PID/task of the process; its own by default.
    """
    total = 0
    try:
        for task in (tasks or _TASKS).iterdir():
            total += int((task / "schedstat").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return total


def stolen_ticks() -> tuple[int, int] | None:
    """Clock ticks that a hypervisor took from all processors so far, and all ticks; None where nothing counts them."""
    try:
        ticks = [int(text) for text in _STAT.read_text().splitlines()[0].split()[1 : 1 + _FIELDS]]
    except (OSError, ValueError, IndexError):
        return None
    return (ticks[_STEAL], sum(ticks)) if len(ticks) == _FIELDS else None


@dataclass
class Contention:
    """Watches from its creation on."""

    waited: int | None = field(default_factory=waited_ns)
    stolen: tuple[int, int] | None = field(default_factory=stolen_ticks)
    start: int = field(default_factory=time.perf_counter_ns)

    def share(self, threads: int, busy_ms: float | None = None) -> float | None:
        """Waiting as a share of the time that `threads` threads had: 0 on a quiet machine. None if unknown.

        They had all the time since the start, or `busy_ms` where they slept in between.
        """
        now, elapsed = waited_ns(), time.perf_counter_ns() - self.start
        had = elapsed if busy_ms is None else busy_ms * 1e6
        if now is None or self.waited is None or had <= 0:
            return None
        return max(0.0, (now - self.waited) / (had * threads))

    def stolen_share(self) -> float | None:
        """What a hypervisor took of all processors' time since then. None if unknown."""
        now = stolen_ticks()
        if now is None or self.stolen is None or now[1] <= self.stolen[1]:
            return None
        return max(0.0, (now[0] - self.stolen[0]) / (now[1] - self.stolen[1]))
