"""Memory of this process, as the kernel accounts for it.

    peak_bytes        VmHWM    the largest resident set since the process began: interpreter, libraries, engine, buffers
    anonymous_bytes   RssAnon  what the process allocated and holds now; it cannot be given back without swapping
    file_bytes        RssFile  pages of mapped files (weights, libraries) that the kernel may drop and read again
    pss_bytes         Pss      the resident set now, a page that n processes map counted as an n-th: what one more process of
                               an app that shares its weights costs

getrusage's ru_maxrss is not used: it survives exec and so reports the parent's peak. A quantity that cannot be read is
None with a reason, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

_STATUS = Path("/proc/self/status")
_ROLLUP = Path("/proc/self/smaps_rollup")
_NAMES = {"peak_bytes": "VmHWM", "anonymous_bytes": "RssAnon", "file_bytes": "RssFile"}


@dataclass(frozen=True)
class MemoryReading:
    """Bytes, or None where `reasons` says why."""

    peak_bytes: int | None
    anonymous_bytes: int | None
    file_bytes: int | None
    pss_bytes: int | None
    reasons: dict[str, str] = field(default_factory=dict)


def read_memory(status: Path = _STATUS, rollup: Path = _ROLLUP) -> MemoryReading:
    """The figures for this process; see the module's docstring."""
    values: dict[str, int | None] = {}
    reasons: dict[str, str] = {}
    for path, names in ((status, _NAMES), (rollup, {"pss_bytes": "Pss"})):
        text = _text(path)
        for name, key in names.items():
            values[name] = None if text is None else _bytes(text, key)
            if values[name] is None:
                reasons[name] = f"this system has no {path}" if text is None else f"{path} has no {key}"
    return MemoryReading(**values, reasons=reasons)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None


def _bytes(text: str, key: str) -> int | None:
    for line in text.splitlines():
        name, _, value = line.partition(":")
        parts = value.split()
        if name == key and len(parts) == 2 and parts[1] == "kB" and parts[0].isdigit():
            return int(parts[0]) * 1024
    return None
