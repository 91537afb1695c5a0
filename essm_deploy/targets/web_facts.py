"""What a worker in JavaScript cannot know of itself, filled into its messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from essm_deploy import __version__
from essm_deploy.runtime import host
from essm_deploy.runtime.contention import Contention, waited_ns
from essm_deploy.runtime.memory import MemoryReading, read_memory
from essm_deploy.runtime.strict import JsonObject
from essm_deploy.runtime.throttling import Snapshot, snapshot, throttling

FindProcess = Callable[[], Path | None]

_NO_PROCESS = "the system does not show which process runs the page"
_ON_HOST = {"gpu_slowdowns": "the engine runs on the host: no GPU takes part"}


@dataclass
class Period:
    """The calls of one mode, from its first block of samples on."""

    mode: Any
    waited: int | None
    busy_ms: float = 0.0

    def share(self, waited: int | None, threads: int) -> float | None:
        """Waiting since then as a share of the time that the threads had for the calls; None if unknown."""
        if waited is None or self.waited is None or self.busy_ms <= 0:
            return None
        return max(0.0, (waited - self.waited) / (self.busy_ms * 1e6 * threads))


@dataclass
class Watch:
    """Follows one conversation. `find` gives /proc/PID of the process that runs the engine, None where none is shown."""

    find: FindProcess
    baseline: int | None = None
    threads: int = 1
    period: Period | None = None
    contention: Contention = field(default_factory=Contention)
    snapshots: list[Snapshot] = field(default_factory=list)
    done: JsonObject = field(default_factory=dict)

    def completed(self, name: str, event: JsonObject) -> JsonObject:
        """The message `name` with what was missing; a figure of the worker's own stays where the system shows none."""
        known: dict[str, Callable[[JsonObject], JsonObject]] = {
            "hello": self._hello,
            "loaded": self._loaded,
            "warm": self._warm,
            "samples": self._samples,
            "memory": self._memory,
        }
        if name == "done":
            return {**event, **self.done}
        return known[name](event) if name in known else event

    def _hello(self, event: JsonObject) -> JsonObject:
        process, reading = self._read()
        self.baseline = reading.peak_bytes
        versions = {"essm_deploy": __version__, **event.get("versions", {})}
        pid = int(process.name) if process else event.get("pid")
        return {**event, "pid": pid, "versions": versions, "machine": host.describe(), "baseline_bytes": self.baseline}

    def _loaded(self, event: JsonObject) -> JsonObject:
        self.threads = event.get("threads") or 1
        return {**event, "affinity": host.available_cpus()}

    def _warm(self, event: JsonObject) -> JsonObject:
        self.snapshots, self.contention = [snapshot()], Contention()
        self.period = Period("back_to_back", self._waited())
        return event

    def _samples(self, event: JsonObject) -> JsonObject:
        if self.period and event.get("mode") != self.period.mode:
            self.snapshots.append(snapshot())
            self.period = Period(event.get("mode"), self._waited())
        if self.period:
            self.period.busy_ms += sum(event.get("ms", []))
        return event

    def _memory(self, event: JsonObject) -> JsonObject:
        """The process still stands as it was when its last call ended; so whatever is to be seen of it is looked at now."""
        self.done = self._conditions()
        _, reading = self._read()
        figures = {name: value for name, value in asdict(reading).items() if name != "reasons"}
        own, why = event.get("reasons", {}), reading.reasons
        merged = {**event, **{name: event.get(name) if value is None else value for name, value in figures.items()}}
        merged["baseline_bytes"] = self.baseline
        reasons = {name: own.get(name) or why.get(name, _NO_PROCESS) for name, value in merged.items() if value is None}
        return {**merged, "reasons": reasons}

    def _conditions(self) -> JsonObject:
        """What `done` says of the machine, as runtime/measuring.py has it."""
        now = snapshot()
        before, loaded = [*self.snapshots, now, now][:2]
        figures = throttling(before, loaded, now)
        reasons = {**figures["reasons"], **_ON_HOST}
        return {
            "waited_share": self.period.share(self._waited(), self.threads) if self.period else None,
            "stolen_share": self.contention.stolen_share(),
            "throttling": {**figures, "gpu_slowdowns": None, "reasons": reasons},
        }

    def _read(self) -> tuple[Path | None, MemoryReading]:
        process = self.find()
        if process is None:
            return None, MemoryReading(None, None, None, None)
        return process, read_memory(process / "status", process / "smaps_rollup")

    def _waited(self) -> int | None:
        process = self.find()
        return waited_ns(process / "task") if process else None
