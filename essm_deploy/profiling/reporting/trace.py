"""Every call of a budget in the order of time, as a small chart: drift, stretches and outliers show at a glance."""

from __future__ import annotations

from collections.abc import Sequence

from essm_deploy.profiling.reporting.document import Row, Run
from essm_deploy.profiling.reporting.markup import Markup, element
from essm_deploy.units import format_ms

_WIDTH, _HEIGHT = 300.0, 64.0
_COLUMNS = 150
_HEADROOM = 1.25


def traces(run: Run) -> list[Markup]:
    """One figure a budget that has samples, all to one scale: from zero to a quarter above the largest p99."""
    rows = [row for row in run.candidates if len(row.samples) > 1]
    top = _HEADROOM * max((sorted(row.samples)[(99 * len(row.samples)) // 100] for row in rows), default=1.0)
    return [_figure(row, top or 1.0) for row in rows]


def _figure(row: Row, top: float) -> Markup:
    over = sum(value > top for value in row.samples)
    ends = f"{format_ms(min(row.samples))} to {format_ms(max(row.samples))}"
    said = f"{row.name}: {len(row.samples):,} calls, {ends} (measured)" + (f"; {over:,} beyond the chart" if over else "")
    svg = element(
        "svg",
        element("title", said),
        element("path", class_="envelope", d=_envelope(row.samples, top)),
        element("line", class_="axis", x1=0.0, x2=_WIDTH, y1=_HEIGHT, y2=_HEIGHT),
        viewBox=f"0 0 {_WIDTH:.0f} {_HEIGHT:.0f}",
        role="img",
        preserveAspectRatio="none",
    )
    return element(
        "figure", svg, element("figcaption", element("b", row.name), f" {said.removeprefix(row.name + ': ')}"), class_="trace"
    )


def _envelope(samples: Sequence[float], top: float) -> str:
    """A vertical stroke from the fastest to the slowest call of each of at most 150 stretches; clipped at the top."""
    columns = min(_COLUMNS, len(samples))
    strokes = []
    for column in range(columns):
        part = samples[column * len(samples) // columns : (column + 1) * len(samples) // columns]
        x = (column + 0.5) * _WIDTH / columns
        low, high = _y(min(part), top), _y(max(part), top)
        strokes.append(f"M{x:.1f} {low + 0.7:.1f}V{high - 0.7:.1f}")
    return "".join(strokes)


def _y(value: float, top: float) -> float:
    return _HEIGHT - min(1.0, value / top) * (_HEIGHT - 2.0)
