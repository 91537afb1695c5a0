"""The panels of one run: latency and memory by budget, and quality against each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from essm_deploy.profiling.reporting.chart import Axis, Line, Mark, Panel, Role, category_axis, linear_axis, lines_within
from essm_deploy.profiling.reporting.document import Row, Run
from essm_deploy.profiling.reporting.marks import COLLAPSE, SWEET_SPOT, at_retention, named
from essm_deploy.profiling.reporting.words import (
    basis_of,
    latency_words,
    memory_name,
    memory_words,
    quality_words,
    statistic_of,
)
from essm_deploy.units import format_bytes, format_ms

Interval = tuple[float | None, float | None] | None


def panels_of(run: Run) -> list[Panel]:
    """Those of the four charts that the document has figures for."""
    panels = (_latency(run), _memory(run), _quality(run, "latency"), _quality(run, "memory"))
    return [panel for panel in panels if panel is not None]


def _latency(run: Run) -> Panel | None:
    rows = [row for row in run.candidates if row.milliseconds is not None]
    if not rows:
        return None
    marks: list[Mark] = []
    for place, row in enumerate(run.candidates):
        latency, value = row.latency_ms, row.milliseconds
        if latency is None or value is None:
            continue
        words = latency_words(row)
        for percentile, side in (("p50", "below"), ("p99", "above")):
            minor = getattr(latency, percentile)
            if minor is not None and percentile != latency.statistic and latency.basis == "measured":
                detail = f"{row.name}: {percentile} {format_ms(minor)} ({latency.basis})"
                marks.append(Mark(place, minor, "", detail, _role(run, row), minor=side))  # type: ignore[arg-type]  # two literals
        marks.append(Mark(place, value, "", f"{row.name}: {words}", _role(run, row), _bounds(row)))
    lines = _latency_limit(run)
    placed, values = lines_within(lines, [*(mark.y for mark in marks), *_reach(marks)])
    name = statistic_of(run)
    return Panel(
        name="latency",
        title="Latency of one call, by budget",
        description=_told(rows, name, lambda row: format_ms(row.milliseconds), lines),
        x=_budgets(run),
        y=_milliseconds(f"{name} of one call, {basis_of(rows, 'latency')}", values, zero=True),
        marks=tuple(marks),
        along="y",
        horizontal=placed,
        legend=_latency_legend(rows),
    )


def _memory(run: Run) -> Panel | None:
    rows = [row for row in run.candidates if _held(row) is not None]
    if not rows:
        return None
    marks = []
    for place, row in enumerate(run.candidates):
        held = _held(row)
        if held is None or row.memory is None:
            continue
        base = row.memory.baseline_bytes
        if base is not None and row.memory.bounded_by == "peak_bytes":
            detail = f"{row.name}: {format_bytes(base)} of it the interpreter before anything is loaded ({row.memory.basis})"
            marks.append(Mark(place, base, "", detail, _role(run, row), minor="below"))
        detail = f"{row.name}: {memory_words(row.memory, memory_name(rows))}"
        marks.append(Mark(place, held, "", detail, _role(run, row)))
    lines = _memory_limit(run)
    placed, values = lines_within(lines, [*(mark.y for mark in marks), *_reach(marks)])
    return Panel(
        name="memory",
        title="Memory of the whole process, by budget",
        description=_told(rows, memory_name(rows), lambda row: format_bytes(_held(row)), lines),
        x=_budgets(run),
        y=_mebibytes(f"{memory_name(rows)}, {basis_of(rows, 'memory')}", values, zero=True),
        marks=tuple(marks),
        along="y",
        horizontal=placed,
        bars=True,
        legend="Grey: the interpreter, before anything is loaded." if any(m.minor for m in marks) else "",
    )


def _quality(run: Run, cost: str) -> Panel | None:
    of = (lambda row: row.milliseconds) if cost == "latency" else _held
    rows = [row for row in run.candidates if row.quality is not None and of(row) is not None]
    if not rows:
        return None
    titles = {row.budget: title for row, title in zip(run.candidates, _titles(run), strict=True)}
    marks = tuple(_trade(run, row, float(of(row) or 0), titles[row.budget], cost) for row in rows)
    vertical, xs = lines_within(
        _latency_limit(run) if cost == "latency" else _memory_limit(run), [*(m.x for m in marks), *_reach(marks)]
    )
    horizontal, ys = lines_within(_shares(run), [mark.y for mark in marks])
    quality = rows[-1].quality
    assert quality is not None
    better = "higher is better" if quality.direction == "higher" else "lower is better"
    what = f"{statistic_of(run)} of one call" if cost == "latency" else memory_name(rows)
    axis = _milliseconds if cost == "latency" else _mebibytes
    return Panel(
        name=f"quality-{cost}",
        title=f"Quality against {cost}",
        description=_told(rows, quality.name, quality_words, (*vertical, *horizontal)),
        x=axis(f"{what}, {basis_of(rows, cost)}", xs),
        y=linear_axis(f"{quality.name} ({better}), measured in training", ys, "{:.4g}".format),
        marks=marks,
        along="x",
        vertical=vertical,
        horizontal=horizontal,
        legend="Broken line: the sweet spot's 98%. Dotted: the collapse boundary's 90%." if horizontal else "",
    )


def _latency_legend(rows: Sequence[Row]) -> str:
    latency = next((row.latency_ms for row in rows if row.latency_ms and row.latency_ms.basis == "measured"), None)
    if latency is None:
        return ""
    bounds = "" if latency.confidence is None else f" with bounds at {100 * latency.confidence:.4g}% confidence"
    others = [text for name, text in (("p50", "Hollow: p50."), ("p99", "Dash: p99.")) if name != latency.statistic]
    unbounded = [row for row in rows if (found := _bounds(row)) and None in found]
    return " ".join(
        [f"Filled: {latency.statistic}{bounds}.", *others, *(["Dotted to the edge: no bound."] if unbounded else [])]
    )


def _titles(run: Run) -> list[str]:
    """What a chart says of a budget beside its point."""
    return [", ".join(name for name in names if name in ("chosen", "sweet spot")) for names in named(run)]


def _trade(run: Run, row: Row, cost: float, title: str, kind: str) -> Mark:
    assert row.quality is not None
    words = latency_words(row) if kind == "latency" else memory_words(row.memory, memory_name([row]))
    return Mark(
        x=cost,
        y=row.quality.value,
        label=f"{row.name} {title}".strip(),
        short=row.name,
        detail=f"{row.name}: {words}; {quality_words(row)}",
        role=_role(run, row),
        interval=_bounds(row) if kind == "latency" else None,
    )


def _role(run: Run, row: Row) -> Role:
    if row.budget == run.budget:
        return "chosen"
    return "plain" if row.verdict in ("valid", "estimated") else "excluded"


def _bounds(row: Row) -> Interval:
    latency = row.latency_ms
    if latency is None or (latency.lower is None and latency.upper is None) or latency.basis == "estimated":
        return None
    return latency.lower, latency.upper


def _held(row: Row) -> int | None:
    return None if row.memory is None else row.memory.bounded


def _latency_limit(run: Run) -> tuple[Line, ...]:
    limit = run.limits.max_latency_ms
    return () if limit is None else (Line("limit", limit, f"limit {format_ms(limit)}"),)


def _memory_limit(run: Run) -> tuple[Line, ...]:
    limit = run.limits.max_memory_bytes
    return () if limit is None else (Line("limit", limit, f"limit {format_bytes(limit)}"),)


def _shares(run: Run) -> tuple[Line, ...]:
    """The lines that the sweet spot and the collapse boundary are read from, and the quality that was asked for."""
    lines = []
    sweet, collapse = at_retention(run.candidates, SWEET_SPOT), at_retention(run.candidates, COLLAPSE)
    if sweet is not None and collapse is not None:
        lines = [Line("sweet", sweet, "98% of full"), Line("collapse", collapse, "90% of full")]
    if run.limits.min_quality is not None:
        lines.append(Line("limit", run.limits.min_quality, f"limit {run.limits.min_quality:.4g}"))
    return tuple(lines)


def _reach(marks: Sequence[Mark]) -> list[float]:
    """The ends of the intervals."""
    return [bound for mark in marks for bound in mark.interval or () if bound is not None]


def _budgets(run: Run) -> Axis:
    numbers = all(isinstance(row.budget, int) for row in run.candidates)
    return category_axis("K" if numbers else "", [str(row.budget) for row in run.candidates], _titles(run))


def _milliseconds(label: str, values: Sequence[float], *, zero: bool = False) -> Axis:
    unit, factor = ("s", 1e-3) if max(values) >= 2000 else ("ms", 1.0) if max(values) >= 0.2 else ("µs", 1e3)
    return _scaled(f"{label}, {unit}", values, factor, zero)


def _mebibytes(label: str, values: Sequence[float], *, zero: bool = False) -> Axis:
    unit, size = (
        ("GiB", 2.0**30) if max(values) >= 4 * 2**30 else ("MiB", 2.0**20) if max(values) >= 2**20 else ("KiB", 2.0**10)
    )
    return _scaled(f"{label}, {unit}", values, 1 / size, zero)


def _scaled(label: str, values: Sequence[float], factor: float, zero: bool) -> Axis:
    """Ticks that are round in the unit that is shown."""
    axis = linear_axis(label, [value * factor for value in values], "{:.4g}".format, zero=zero)
    return Axis(label, axis.low / factor, axis.high / factor, tuple((tick / factor, text) for tick, text in axis.ticks))


def _told(rows: Sequence[Row], what: str, shown: Callable[[Row], str], lines: Sequence[Line]) -> str:
    """The chart for those who cannot see it."""
    points = ", ".join(f"{row.name} {shown(row)}" for row in rows[:40])
    more = f", and {len(rows) - 40} more" if len(rows) > 40 else ""
    drawn = f" Lines: {', '.join(line.label for line in lines)}." if lines else ""
    return f"{what[:1].upper()}{what[1:]} at each budget: {points}{more}.{drawn} The table below has every figure."
