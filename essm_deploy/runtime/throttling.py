"""What the system shows of clock speeds and heat while something is measured.

    frequency_khz    the fastest of the CPUs in use, {before, after} calls that followed one another (cpufreq)
    ceiling_khz      what governor and cooling allow that CPU, {before, after} (scaling_max_freq)
    temperature_c    the hottest thermal zone, {before, after}
    cooling_steps    how far the cooling devices that slow a processor down are turned up, {before, after}; fans do not count
    throttle_events  how often a core, a package or (Jetson) the module's power supply was throttled meanwhile
    gpu_slowdowns    why the GPU runs below its clock, by NVML: heat, power, or an external brake; for engines on a GPU

A figure that the system does not show is None with a reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from essm_deploy.runtime.host import available_cpus
from essm_deploy.runtime.strict import JsonObject

_SYS = Path("/sys")
_SLOWING = ("processor", "cpufreq", "devfreq", "cpu", "gpu")  # types of cooling devices, as x86, Arm and Jetson call them
_COUNTERS = ("devices/system/cpu/cpu[0-9]*/thermal_throttle/*_throttle_count", "class/hwmon/hwmon*/oc[0-9]*_event_cnt")
_REASONS = {
    "frequency_khz": "the system shows no cpufreq, as is usual in virtual machines",
    "ceiling_khz": "the system shows no cpufreq, as is usual in virtual machines",
    "temperature_c": "the system shows no thermal zone",
    "cooling_steps": "the system shows no cooling device of a processor",
    "throttle_events": "the system counts no throttling",
}
_HOTTEST_C = 150.0  # sensors that are not connected show nonsense


@dataclass(frozen=True)
class Snapshot:
    """The figures at one moment; None where the system does not show one. `throttle_events` counts since the start."""

    frequency_khz: int | None
    ceiling_khz: int | None
    temperature_c: float | None
    cooling_steps: int | None
    throttle_events: int | None


def snapshot(sys: Path = _SYS) -> Snapshot:
    """What the system shows now; takes about a millisecond."""
    cpus = [sys / f"devices/system/cpu/cpu{cpu}/cpufreq" for cpu in available_cpus()]
    zones = [value / 1e3 for value in _numbers(sys.glob("class/thermal/thermal_zone*/temp"))]
    slowing = [d for d in sys.glob("class/thermal/cooling_device*") if _text(d / "type").lower().startswith(_SLOWING)]
    counters = [value for pattern in _COUNTERS for value in _numbers(sys.glob(pattern))]
    return Snapshot(
        frequency_khz=max(_numbers(cpu / "scaling_cur_freq" for cpu in cpus), default=None),
        ceiling_khz=max(_numbers(cpu / "scaling_max_freq" for cpu in cpus), default=None),
        temperature_c=max((zone for zone in zones if 0 < zone < _HOTTEST_C), default=None),
        cooling_steps=sum(steps) if (steps := _numbers(d / "cur_state" for d in slowing)) else None,
        throttle_events=sum(counters) if counters else None,
    )


def throttling(before: Snapshot, loaded: Snapshot, after: Snapshot) -> JsonObject:
    """The figures as JSON. `loaded` is read right after calls that followed one another, `after` at the very end."""
    events = None
    if before.throttle_events is not None and after.throttle_events is not None:
        events = max(0, after.throttle_events - before.throttle_events)
    figures: JsonObject = {
        "frequency_khz": _pair(before.frequency_khz, loaded.frequency_khz),
        "ceiling_khz": _pair(before.ceiling_khz, loaded.ceiling_khz),
        "temperature_c": _pair(before.temperature_c, after.temperature_c),
        "cooling_steps": _pair(before.cooling_steps, loaded.cooling_steps),
        "throttle_events": events,
    }
    return {**figures, "reasons": {name: _REASONS[name] for name, value in figures.items() if value is None}}


def _pair(before: float | None, after: float | None) -> JsonObject | None:
    return None if before is None or after is None else {"before": before, "after": after}


def _numbers(paths: Iterable[Path]) -> list[int]:
    texts = [_text(path) for path in paths]
    return [int(text) for text in texts if text.lstrip("-").isdigit()]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:  # a sensor that is switched off cannot be read
        return ""
