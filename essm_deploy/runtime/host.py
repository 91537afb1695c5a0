"""What the machine under the runtime is: cores for the thread count, and names for the record. Nothing is guessed."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_CPU = Path("/sys/devices/system/cpu")


def available_cpus() -> list[int]:
    """The logical CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def physical_cores() -> int:
    """Physical cores that this process may use: siblings of one core count once, and a container's CPU quota is a ceiling."""
    cores = {_core(cpu) for cpu in available_cpus()}
    quota = _cgroup_quota()
    return max(1, len(cores) if quota is None else min(len(cores), quota))


def cpu_model() -> str:
    """The processor's name, or its architecture where the system does not tell."""
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "Hardware") and value.strip():
            return value.strip()
    return platform.processor() or platform.machine()


def governor() -> str | None:
    """The frequency governor of the first CPU in use; None where the system shows none (virtual machines)."""
    return _read(_CPU / f"cpu{available_cpus()[0]}" / "cpufreq" / "scaling_governor").strip() or None


def memory() -> dict[str, int | None]:
    """Total and available memory in bytes; None where the system does not tell."""
    entries = dict(line.partition(":")[::2] for line in _read(Path("/proc/meminfo")).splitlines())
    return {"total_bytes": _kilobytes(entries.get("MemTotal")), "available_bytes": _kilobytes(entries.get("MemAvailable"))}


def describe() -> dict[str, object]:
    """The facts that a measurement records about the machine."""
    return {
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "cpu": cpu_model(),
        "physical_cores": physical_cores(),
        "logical_cpus": len(available_cpus()),
        "governor": governor(),
    }


def _kilobytes(text: str | None) -> int | None:
    parts = (text or "").split()
    return int(parts[0]) * 1024 if len(parts) == 2 and parts[0].isdigit() and parts[1] == "kB" else None


def _core(cpu: int) -> str:
    topology = _CPU / f"cpu{cpu}" / "topology"
    siblings = _read(topology / "core_cpus_list") or _read(topology / "thread_siblings_list")
    return siblings.strip() or str(cpu)


def _cgroup_quota() -> int | None:
    """Whole CPUs that cgroup v2 grants, rounded up."""
    quota, _, period = _read(Path("/sys/fs/cgroup/cpu.max")).strip().partition(" ")
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return max(1, -(-int(quota) // int(period)))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
