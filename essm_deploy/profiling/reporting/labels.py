"""Where the names of marks find room on a panel, in fractions of its plot: svg.py and png.py write them at the same places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from essm_deploy.profiling.reporting.chart import Line, Mark, Panel

_WIDE, _HIGH = 378, 230
"""The plot as svg.py draws it, with letters of 12 units; png.py's proportions are near enough."""
_CHARACTER, _LETTERS = 7.0 / _WIDE, 14 / _HIGH
_MARK = (6 / _WIDE, 6 / _HIGH)
_AROUND = ((1, 1), (-1, 1), (1, -1), (-1, -1), (0, 2), (0, -2), (2, 2), (-2, 2), (2, -2), (-2, -2))


@dataclass(frozen=True)
class Box:
    """A rectangle in fractions of the plot, from its lower left corner."""

    left: float
    bottom: float
    width: float
    height: float

    def overlaps(self, other: Box) -> bool:
        """Whether the two share any area."""
        across = self.left < other.left + other.width and other.left < self.left + self.width
        return across and self.bottom < other.bottom + other.height and other.bottom < self.bottom + self.height

    @property
    def inside(self) -> bool:
        """Whether it lies within the plot."""
        return self.left >= 0 and self.bottom >= 0 and self.left + self.width <= 1 and self.bottom + self.height <= 1


@dataclass(frozen=True)
class Label:
    """A mark's text, and the lower left corner of where it goes."""

    mark: Mark
    text: str
    x: float
    y: float


def place_labels(panel: Panel) -> list[Label]:
    """Labels that lie on no mark, line or other label; what was marked comes first. One that finds no room is left out.

    One that is too long for any place is tried in its short form.
    """
    taken = [_around(panel, mark) for mark in panel.marks]
    taken += [_written(panel, line, row, upright=True) for row, line in enumerate(panel.vertical)]
    taken += [_written(panel, line, 0, upright=False) for line in panel.horizontal]
    placed = []
    for mark in sorted(panel.marks, key=lambda m: (m.role != "chosen", -len(m.label))):
        for text in (mark.label, mark.short):
            box = _free(panel, mark, text, taken) if text else None
            if box is not None:
                taken.append(box)
                placed.append(Label(mark, text, box.left, box.bottom))
                break
    return placed


def _free(panel: Panel, mark: Mark, text: str, taken: Sequence[Box]) -> Box | None:
    x, y, width = panel.x.at(mark.x), panel.y.at(mark.y), _CHARACTER * len(text)
    for right, up in _AROUND:
        left = x - width / 2 if right == 0 else x + 8 / _WIDE * right if right > 0 else x - width + 8 / _WIDE * right
        bottom = y + (2 + 10 * (up - 1)) / _HIGH if up > 0 else y - (16 - 10 * (up + 1)) / _HIGH
        box = Box(left, bottom, width, _LETTERS)
        if box.inside and not any(box.overlaps(other) for other in taken) and _nearest(panel, box) is mark:
            return box
    return None


def _nearest(panel: Panel, box: Box) -> Mark:
    """The mark that a reader would take a label for the name of."""

    def distance(mark: Mark) -> float:
        x, y = panel.x.at(mark.x), panel.y.at(mark.y)
        across = max(box.left - x, 0.0, x - box.left - box.width) * _WIDE
        return math.hypot(across, max(box.bottom - y, 0.0, y - box.bottom - box.height) * _HIGH)

    return min(panel.marks, key=distance)


def _around(panel: Panel, mark: Mark) -> Box:
    return Box(panel.x.at(mark.x) - _MARK[0], panel.y.at(mark.y) - _MARK[1], 2 * _MARK[0], 2 * _MARK[1])


def _written(panel: Panel, line: Line, row: int, *, upright: bool) -> Box:
    """What the name of a line takes: at the top beside an upright one, at the right end on a level one."""
    width = _CHARACTER * (len(line.label) + 3)
    if not upright:
        return Box(
            1 - width, 0.93 if line.beyond == "high" else 0 if line.beyond else panel.y.at(line.value), width, 16 / _HIGH
        )
    top = 1 - (row + 1) * 16 / _HIGH
    at = {"high": 1 - width, "low": 0.0, None: panel.x.at(line.value) - width}[line.beyond]
    return Box(at, top, width if line.beyond else 2 * width, 16 / _HIGH)
