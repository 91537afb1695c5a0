"""One line of what `doctor` says about a device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """What was looked at, what was found, and, where that will not do, what to do about it."""

    what: str
    found: str
    fix: str | None = None
