"""What a worker answers, checked value by value: a device that answers garbage is one clear line, and never a number."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from essm_deploy.errors import WorkerError
from essm_deploy.profiling.verdict import Memory
from essm_deploy.runtime.device_memory import BOUNDS
from essm_deploy.runtime.strict import JsonObject
from essm_deploy.runtime.timing import BACK_TO_BACK, PACED

MOST_SAMPLES = 1_000_000
"""Of one mode."""

_BYTES = ("peak_bytes", "anonymous_bytes", "file_bytes", "device_bytes", "baseline_bytes", "pss_bytes", "nvml_bytes")
_PAIRS = ("frequency_khz", "ceiling_khz", "temperature_c", "cooling_steps")
_MOST_WARNINGS = 16
_CLOCK_SLACK_SECONDS = 0.5
"""Two clocks run at slightly different rates, and fakes of workers in tests are quick; jumps that matter are longer."""


@dataclass
class Samples:
    """The samples of each mode, as they come."""

    modes: dict[str, list[float]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """In all modes."""
        return sum(map(len, self.modes.values()))

    def add(self, message: JsonObject) -> None:
        """Take one message. WorkerError for what cannot be a duration, and for a clock that stands still."""
        mode, values = message.get("mode", BACK_TO_BACK), message.get("ms")
        if mode not in (BACK_TO_BACK, PACED):
            raise WorkerError(f"the worker sent samples of the mode {str(mode)[:40]!r}, expected {BACK_TO_BACK} or {PACED}")
        if not isinstance(values, list) or not all(is_number(value) for value in values):
            raise WorkerError("the worker sent samples that are not a list of durations in milliseconds")
        if values and not any(values):
            raise WorkerError(f"the worker sent {len(values)} calls of 0 ms in a row: its clock stands still or is too coarse")
        kept = self.modes.setdefault(mode, [])
        kept += [float(value) for value in values]
        if len(kept) > MOST_SAMPLES:
            raise WorkerError(f"the worker sent more than {MOST_SAMPLES} samples")

    def check(self, reported: Any, elapsed_seconds: float) -> None:
        """WorkerError unless all have arrived, and they can have been taken within the time that passed here."""
        if not self.count or reported != self.count:
            raise WorkerError(f"the worker took {str(reported)[:20]} samples and {self.count} arrived")
        claimed = sum(map(sum, self.modes.values())) / 1e3
        if claimed > elapsed_seconds + _CLOCK_SLACK_SECONDS:
            raise WorkerError(
                f"the worker's calls add up to {claimed:.1f} s, and only {elapsed_seconds:.1f} s passed here meanwhile: "
                "its clock jumps or runs too fast"
            )


def memory_of(message: JsonObject) -> Memory:
    """The event `memory`."""
    values = {name: message.get(name) for name in _BYTES}
    reasons, bounded_by = message.get("reasons", {}), message.get("bounded_by", BOUNDS[0])
    for name, value in values.items():
        whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
        if value is not None and not whole:
            raise WorkerError(f"the worker sent {name} = {str(value)[:40]}, expected a positive number of bytes or null")
    if not isinstance(reasons, dict) or not all(isinstance(reason, str) for reason in reasons.values()):
        raise WorkerError("the worker sent reasons that are not sentences by name")
    if bounded_by not in BOUNDS:
        raise WorkerError(f"the worker sent bounded_by = {str(bounded_by)[:40]}, expected one of {', '.join(BOUNDS)}")
    return Memory(**values, bounded_by=bounded_by, reasons=reasons)


def throttling_of(message: JsonObject) -> dict[str, Any]:
    """The object `throttling` of the event `done`, its known keys; empty if there is none."""
    found = message.get("throttling")
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise WorkerError("the worker sent throttling that is not an object")
    known = {name: found.get(name) for name in (*_PAIRS, "throttle_events", "gpu_slowdowns", "reasons")}
    pairs = all(known[name] is None or _is_pair(known[name]) for name in _PAIRS)
    events, slowdowns, reasons = known["throttle_events"], known["gpu_slowdowns"], known["reasons"]
    texts = slowdowns is None or (isinstance(slowdowns, list) and all(isinstance(text, str) for text in slowdowns))
    if not (pairs and texts and (events is None or is_number(events)) and isinstance(reasons, (dict, type(None)))):
        raise WorkerError("the worker sent throttling whose figures are not numbers before and after")
    return known


def warnings_of(message: JsonObject) -> list[str]:
    """What the worker itself says against its samples, in the event `done`."""
    found = message.get("warnings", [])
    if not isinstance(found, list) or len(found) > _MOST_WARNINGS or not all(isinstance(text, str) for text in found):
        raise WorkerError("the worker sent warnings that are not a few sentences")
    return [" ".join(text.split())[:400] for text in found]


def execution_of(message: JsonObject) -> dict[str, Any]:
    """How the calls were made, and what their time on a GPU went into, of the event `done`; the keys that it has."""
    how, split = message.get("execution"), message.get("device_ms")
    if not _holds(how, lambda value: isinstance(value, bool)) or not _holds(split, is_number):
        raise WorkerError("the worker sent an execution that does not say yes or no, or device_ms that are no durations")
    found = {"execution": how, "device_ms": split}
    return {name: value for name, value in found.items() if value is not None}


def affinity_of(message: JsonObject) -> list[int] | None:
    """The CPUs of the event `loaded`; None if it does not say."""
    found = message.get("affinity")
    if found is None:
        return None
    if not isinstance(found, list) or not all(isinstance(cpu, int) and 0 <= cpu < 2**16 for cpu in found):
        raise WorkerError("the worker sent an affinity that is not a list of CPUs")
    return found


def number_of(message: JsonObject, name: str) -> float:
    """A number of at least 0."""
    value = message.get(name)
    if not is_number(value):
        raise WorkerError(f"the worker sent {name} = {str(value)[:40]}, expected a number of at least 0")
    return float(value)  # type: ignore[arg-type]  # is_number has looked


def optional_number(message: JsonObject, name: str) -> float | None:
    """A number of at least 0, or None."""
    return None if message.get(name) is None else number_of(message, name)


def is_number(value: object) -> bool:
    """Finite and not negative."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf


def _holds(value: object, fits: Callable[[object], bool]) -> bool:
    """Whether `value` is a small object whose values fit, or None."""
    return value is None or (isinstance(value, dict) and len(value) <= 16 and all(fits(entry) for entry in value.values()))


def _is_pair(value: object) -> bool:
    return isinstance(value, dict) and all(is_number(value.get(name)) for name in ("before", "after"))
