"""Quantities with units, as a person types and reads them.

The reading functions refuse what is ambiguous ("10", "200Mb") instead of guessing: a limit that is off by a thousand
chooses the wrong engine without a word.
"""

from __future__ import annotations

import math
import re

from essm_deploy.errors import UnitError

_MS_PER_UNIT = {"ns": 1e-6, "us": 1e-3, "\u00b5s": 1e-3, "\u03bcs": 1e-3, "ms": 1.0, "s": 1e3}
_BYTES_PER_UNIT = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_LATENCY_SPELLING = "a positive duration such as 10ms, 1.5s, 800us or 250ns"
_SIZE_SPELLING = "a positive size such as 200MiB, 512MB, 1.5GiB or 4096B"
_FRACTION_SPELLING = "a fraction above 0 and at most 1, such as 98% or 0.98"

_MAX_MS = 24 * 3600 * 1e3  # a call that takes a day is a mistyped unit
_MIN_MS = 1e-6  # the clock counts nanoseconds
_MAX_BYTES = 2**50

# ASCII digits only: float() would also take "1_0", "nan" and digits of other scripts.
_QUANTITY = re.compile(r"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*([^\s0-9.+-]*)\s*")
_MAX_TEXT = 64


def parse_latency(text: str) -> float:
    """Read a duration ("10ms", "1.5 s", "800us", "250µs") and return milliseconds.

    Raises UnitError for a missing or unknown unit, and for anything not in (1 ns, 24 h).
    """
    number, unit = _split(text, "a latency", _LATENCY_SPELLING)
    milliseconds = number * _factor(text, unit, _MS_PER_UNIT, "a latency", _LATENCY_SPELLING)
    if not _MIN_MS <= milliseconds <= _MAX_MS:
        raise _refusal("a latency", text, "is outside 1 ns to 24 h", _LATENCY_SPELLING)
    return milliseconds


def parse_size(text: str) -> int:
    """Read a size ("200MiB", "512MB", "4096B") and return bytes, rounded to a whole one.

    MiB is 2**20 bytes and MB is 10**6. Raises UnitError for a missing or unknown unit, and for anything not in [1 B, 1
    PiB].
    """
    number, unit = _split(text, "a size", _SIZE_SPELLING)
    size = number * _factor(text, unit, _BYTES_PER_UNIT, "a size", _SIZE_SPELLING)
    if not 1 <= size <= _MAX_BYTES:
        raise _refusal("a size", text, "is outside 1 B to 1024 TiB", _SIZE_SPELLING)
    return round(size)


def parse_fraction(text: str) -> float:
    """Read a share of a whole ("98%" or "0.98") and return it as a number in (0, 1].

    Raises UnitError outside that range; "98" without a per cent sign is outside it.
    """
    number, unit = _split(text, "a fraction", _FRACTION_SPELLING)
    if unit not in ("", "%"):
        raise _refusal("a fraction", text, f"has the unit {unit!r}", _FRACTION_SPELLING)
    fraction = number / 100 if unit == "%" else number
    if not 0 < fraction <= 1:
        raise _refusal("a fraction", text, "is not above 0 and at most 1", _FRACTION_SPELLING)
    return fraction


def format_ms(milliseconds: float | None) -> str:
    """A duration with three significant digits and the unit that suits it; None is "not available"."""
    if milliseconds is None:
        return "not available"
    size = abs(milliseconds)
    if size >= 999.5:
        return f"{_digits(milliseconds / 1e3)} s"
    if size >= 0.0995 or size == 0:
        return f"{_digits(milliseconds)} ms"
    return f"{_digits(milliseconds * 1e3)} \u00b5s"


def format_bytes(size: float | None) -> str:
    """A size with three significant digits in binary units; None is "not available"."""
    if size is None:
        return "not available"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1023.5:
            return f"{_digits(size)} {unit}"
        size /= 1024
    return f"{_digits(size)} TiB"


def _split(text: str, what: str, spelling: str) -> tuple[float, str]:
    match = _QUANTITY.fullmatch(text) if len(text) <= _MAX_TEXT else None
    if match is None:
        raise _refusal(what, text, "is not a number with a unit", spelling)
    number = float(match[1])
    if not math.isfinite(number):
        raise _refusal(what, text, "is too large", spelling)
    if number <= 0:
        raise _refusal(what, text, "is not positive", spelling)
    return number, match[2]


def _factor(text: str, unit: str, table: dict[str, float] | dict[str, int], what: str, spelling: str) -> float:
    if unit in table:
        return table[unit]
    reason = f"has the unknown unit {unit!r}" if unit else "has no unit"
    raise _refusal(what, text, reason, spelling)


def _refusal(what: str, text: str, reason: str, spelling: str) -> UnitError:
    shown = text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "..."
    return UnitError(f"{what} was read as {shown!r}, which {reason}: write {spelling}")


def _digits(value: float) -> str:
    if value == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
