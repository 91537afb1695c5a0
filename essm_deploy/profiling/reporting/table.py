"""The table of every budget, as text by column. A column in which nobody has a figure is left out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from essm_deploy.profiling.reporting.document import Memory, Row, Run
from essm_deploy.profiling.reporting.marks import named, retention
from essm_deploy.profiling.reporting.words import basis_of, statistic_of

NONE = "–"


@dataclass(frozen=True)
class Column:
    """`group` heads neighbouring columns and says in which unit they are; figures are aligned on the right."""

    group: str
    name: str
    cells: tuple[str, ...]
    figures: bool = True


def columns_of(run: Run) -> list[Column]:
    """Every column that says something, budgets first."""
    rows = run.candidates
    metric = next((row.quality.name for row in rows if row.quality), "quality")
    quality = "Quality (measured in training)"
    columns = [
        Column("", "budget", tuple(row.name for row in rows), figures=False),
        Column("", "marks", tuple(", ".join(names) or NONE for names in named(run)), figures=False),
        *_latencies(run),
        Column("", "calls", tuple(_whole(row.latency_ms.samples if row.latency_ms else None) for row in rows)),
        *_memories(rows),
        Column(quality, metric, tuple(NONE if row.quality is None else f"{row.quality.value:.4g}" for row in rows)),
        Column(quality, "of full", tuple(_share(retention(row)) for row in rows)),
        Column("", "verdict", tuple(row.verdict for row in rows), figures=False),
        *_mixed(rows),
    ]
    return [column for column in columns if set(column.cells) != {NONE}]


def _latencies(run: Run) -> list[Column]:
    """The percentiles in ascending order, the bounds beside the one that decides; then what no limit bounds."""
    rows, statistic = run.candidates, statistic_of(run)

    def by(key: str) -> list[float | None]:
        return [getattr(row.latency_ms, key, None) for row in rows]

    decided = [row.milliseconds if row.latency_ms and row.latency_ms.basis == "measured" else None for row in rows]
    found = {
        "estimate": by("estimate"),
        **{name: by(name) for name in _PERCENTILES if name < statistic},
        statistic: decided,
        f"{statistic} at least": by("lower"),
        f"{statistic} at most": by("upper"),
        **{name: by(name) for name in _PERCENTILES if name > statistic},
        f"back to back {statistic}": [getattr(row.back_to_back_ms, statistic, None) for row in rows],
    }
    started = {"cold": [row.cold_start_ms.total if row.cold_start_ms else None for row in rows]}
    start = _scaled("Start, {} (measured)", started, _LATENCY_UNITS)  # of its own order of magnitude
    return _scaled(f"Latency, {{}} ({basis_of(rows, 'latency')})", found, _LATENCY_UNITS) + start


def _memories(rows: Sequence[Row]) -> list[Column]:
    found = {name: [getattr(row.memory, key, None) for row in rows] for name, key in _MEMORY}
    found["less interpreter"] = [_own(row.memory) for row in rows]
    return _scaled(f"Memory, {{}} ({basis_of(rows, 'memory')})", found, _MEMORY_UNITS)


_PERCENTILES = ("p50", "p95", "p99")
_LATENCY_UNITS = ((2000.0, "s", 1e3), (0.2, "ms", 1.0), (0.0, "µs", 1e-3))
_MEMORY_UNITS = ((4 * 2.0**30, "GiB", 2.0**30), (2.0**20, "MiB", 2.0**20), (0.0, "KiB", 2.0**10))
_MEMORY = (
    ("peak", "peak_bytes"),
    ("anonymous", "anonymous_bytes"),
    ("file-backed", "file_bytes"),
    ("PSS", "pss_bytes"),
    ("device", "device_bytes"),
    ("device by NVML", "nvml_bytes"),
)

Columns = dict[str, list[float | None]]


def _scaled(group: str, found: Columns, units: Sequence[tuple[float, str, float]]) -> list[Column]:
    """Columns in one unit, that of the largest figure, with three digits for the smallest."""
    values = [value for column in found.values() for value in column if value is not None]
    unit, size = next((name, size) for least, name, size in units if max(values, default=0.0) >= least)
    smallest = min((value / size for value in values if value > 0), default=1.0)
    decimals = min(4, max(0, 2 - math.floor(math.log10(smallest))))
    shown = [
        (name, [None if value is None else f"{value / size:,.{decimals}f}" for value in column])
        for name, column in found.items()
    ]
    return [Column(group.format(unit), name, tuple(cell or NONE for cell in cells)) for name, cells in shown]


def _mixed(rows: Sequence[Row]) -> list[Column]:
    """A basis for each row where the rows differ in it; else the headings say it."""
    kinds = [row.latency_ms.basis if row.latency_ms else row.memory.basis if row.memory else NONE for row in rows]
    return [Column("", "basis", tuple(kinds), figures=False)] if len(set(kinds) - {NONE}) > 1 else []


def _own(memory: Memory | None) -> float | None:
    if memory is None or memory.peak_bytes is None or memory.baseline_bytes is None:
        return None
    return float(max(0, memory.peak_bytes - memory.baseline_bytes))


def _whole(value: int | None) -> str:
    return NONE if value is None else f"{value:,}"


def _share(value: float | None) -> str:
    return NONE if value is None else f"{value:.1%}"
