"""Memory of this process, as the kernel accounts for it.

    peak_bytes        VmHWM    the largest resident set since the process began: interpreter, libraries, engine, buffers
    anonymous_bytes   RssAnon  what the process allocated and holds now; it cannot be given back without swapping
    file_bytes        RssFile  pages of mapped files (weights, libraries) that the kernel may drop and read again

getrusage's ru_maxrss is not used: it survives exec and so reports the parent's peak. A quantity that cannot be read is
None with a reason, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

_STATUS = Path("/proc/self/status")
_NAMES = {"peak_bytes": "VmHWM", "anonymous_bytes": "RssAnon", "file_bytes": "RssFile"}


@dataclass(frozen=True)
class MemoryReading:
    """Bytes, or None where `reasons` says why."""

    peak_bytes: int | None
    anonymous_bytes: int | None
    file_bytes: int | None
    reasons: dict[str, str] = field(default_factory=dict)


def read_memory(status: Path = _STATUS) -> MemoryReading:
    """The three figures for this process; see the module's docstring."""
    try:
        text = status.read_text(encoding="ascii", errors="replace")
    except OSError:
        reasons = dict.fromkeys(_NAMES, f"this system has no {status}")
        return MemoryReading(None, None, None, reasons)
    values = {name: _bytes(text, key) for name, key in _NAMES.items()}
    reasons = {name: f"{status} has no {_NAMES[name]}" for name, value in values.items() if value is None}
    return MemoryReading(**values, reasons=reasons)


def _bytes(text: str, key: str) -> int | None:
    for line in text.splitlines():
        name, _, value = line.partition(":")
        parts = value.split()
        if name == key and len(parts) == 2 and parts[1] == "kB" and parts[0].isdigit():
            return int(parts[0]) * 1024
    return None
