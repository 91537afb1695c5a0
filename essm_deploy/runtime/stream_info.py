"""What the manifest says of a stream engine: how far its filters reach, and what happens beyond."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import cast

from essm_deploy.runtime.strict import Fields

OVERFLOWS = ("window", "restart", "refuse")
RESTARTS = ("swap", "zero")

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class StreamInfo:
    """The `stream` object of an engine of kind "stream". L is `length`, the trained length in tokens.

    overflow      past L: "window" (every filter keeps its length), "restart" (history is cut to L/2), "refuse"
    ring          the engine takes `leaving`, the layer inputs of L tokens ago, and gives `entering`
    state         sha256 of the state's layout: engines with equal `state` continue each other's states
    anchor        the engine that computes the state afresh from the ring every `anchor_every` tokens past L, or None
    restart       "swap": a spare state takes over; "zero": rows of the state are zeroed; None unless overflow is "restart"
    """

    length: int
    overflow: str
    ring: bool
    state: str
    anchor: str | None = None
    anchor_every: int | None = None
    restart: str | None = None

    @classmethod
    def from_json(cls, value: object, where: str, *, strict: bool = True) -> StreamInfo:
        """Read the object; BundleError for anything that does not hold together."""
        fields = Fields(value, where, strict=strict)
        info = cls(
            length=cast(int, fields.integer("length", 1)),
            overflow=fields.text("overflow", OVERFLOWS),
            ring=_flag(fields, "ring"),
            state=fields.text("state"),
            anchor=_optional_text(fields, "anchor"),
            anchor_every=fields.integer("anchor_every", 1, optional=True),
            restart=_optional_text(fields, "restart", RESTARTS),
        )
        fields.finish()
        _check(info, fields)
        return info

    @property
    def cut(self) -> int | None:
        """Tokens between two cuts of the history, L/2; None unless overflow is "restart"."""
        return self.length // 2 if self.restart else None


def _check(info: StreamInfo, fields: Fields) -> None:
    if not _SHA256.fullmatch(info.state):
        raise fields.wrong("state", info.state, "64 lower-case hex digits")
    if info.ring and info.overflow != "window":
        raise fields.wrong("ring", info.ring, "false unless overflow is window")
    if (info.anchor is None) != (info.anchor_every is None) or (info.anchor is not None and not info.ring):
        raise fields.wrong("anchor", info.anchor, "an engine and anchor_every together, and a ring")
    if (info.restart is not None) != (info.overflow == "restart"):
        raise fields.wrong("restart", info.restart, "swap or zero exactly if overflow is restart")
    if info.restart and (info.length % 2 or info.length < 2):
        raise fields.wrong("length", info.length, "an even number: a restart cuts the history at half of it")


def _flag(fields: Fields, name: str) -> bool:
    value = fields.take(name)
    if not isinstance(value, bool):
        raise fields.wrong(name, value, "true or false")
    return value


def _optional_text(fields: Fields, name: str, allowed: tuple[str, ...] = ()) -> str | None:
    value = fields.take(name, optional=True)
    if value is None:
        return None
    if not isinstance(value, str) or not value or not value.isprintable() or (allowed and value not in allowed):
        raise fields.wrong(name, value, "one of " + ", ".join(allowed) if allowed else "a printable string")
    return value
