"""The two marks of the paper on a quality curve: the sweet spot and the collapse boundary (arXiv 2601.22488, appendix)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from essm_deploy.profiling.reporting.document import Quality, Row, Run

SWEET_SPOT = 0.98
COLLAPSE = 0.90
_LEAST = 1e-6  # nothing can be concluded about the full budget from one that retains next to nothing


@dataclass(frozen=True)
class Marks:
    """`sweet`: the smallest budget that retains 98% of the full one's quality; `collapsed`: those that retain less than 90%.

    `known` says whether any budget has a retention; `best` has the best quality, which need not be the largest budget.
    """

    sweet: Row | None
    collapsed: tuple[Row, ...]
    best: Row | None
    known: bool


def marks_of(rows: Sequence[Row]) -> Marks:
    """Marks of rows in ascending order of budget."""
    retained = [(row, retention(row)) for row in rows]
    known = [(row, share) for row, share in retained if share is not None]
    return Marks(
        sweet=next((row for row, share in known if share >= SWEET_SPOT), None),
        collapsed=tuple(row for row, share in known if share < COLLAPSE),
        best=_best(rows),
        known=bool(known),
    )


def retention(row: Row) -> float | None:
    """The share of the full budget's quality, 1 = all."""
    return None if row.quality is None else row.quality.retention


def at_retention(rows: Sequence[Row], share: float) -> float | None:
    """The value of the metric that retains `share`, from any row that states both; None where none does.

    Higher is better: value = share * full. Lower is better: value = full / share, as retention is full / value.
    """
    quality = next((row.quality for row in reversed(rows) if row.quality and (row.quality.retention or 0) > _LEAST), None)
    if quality is None or quality.retention is None:
        return None
    rising = quality.direction == "higher"
    return quality.value * share / quality.retention if rising else quality.value * quality.retention / share


def named(run: Run) -> list[list[str]]:
    """For each row what is to be said of it: chosen, sweet spot, best quality, below 90%, warnings."""
    marks = marks_of(run.candidates)
    collapsed = {row.budget for row in marks.collapsed}
    names = []
    for row in run.candidates:
        said = (
            ("chosen", row.budget == run.budget),
            ("sweet spot", row is marks.sweet),
            ("best quality", row is marks.best and len(run.candidates) > 1),
            ("below 90%", row.budget in collapsed),
            ("warnings", bool(row.warnings)),
        )
        names.append([name for name, true in said if true])
    return names


def _best(rows: Sequence[Row]) -> Row | None:
    rated = [(row, row.quality) for row in rows if row.quality is not None]
    if not rated or len({(quality.metric, quality.direction) for _, quality in rated}) > 1:
        return None

    def worth(entry: tuple[Row, Quality]) -> float:
        return entry[1].value if entry[1].direction == "higher" else -entry[1].value

    return max(rated, key=worth)[0]
