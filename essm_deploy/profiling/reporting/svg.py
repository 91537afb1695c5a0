"""Drawing a panel as inline SVG. Its colours are classes of page.css, so that it follows the reader's colour scheme."""

from __future__ import annotations

from essm_deploy.profiling.reporting.chart import Line, Mark, Panel
from essm_deploy.profiling.reporting.labels import Label, place_labels
from essm_deploy.profiling.reporting.markup import Markup, element, join

WIDTH, HEIGHT = 440.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 50.0, 12.0, 24.0, 46.0
_CHARACTER = 7.0  # mean width of a character of 12 px
_HALF_CAP = 4.0


def draw(panel: Panel, prefix: str) -> Markup:
    """The panel as one <svg> with a title and a description; `prefix` keeps ids apart on a page of several."""
    title, description = f"{prefix}-{panel.name}-t", f"{prefix}-{panel.name}-d"
    return element(
        "svg",
        element("title", panel.title, id=title),
        element("desc", panel.description, id=description),
        _grid(panel),
        *(_bar(panel, mark) for mark in sorted(panel.marks, key=lambda m: m.minor is not None) if panel.bars),
        *(_vertical(panel, line, row) for row, line in enumerate(panel.vertical)),
        *(_horizontal(panel, line) for line in panel.horizontal),
        *(_interval(panel, mark) for mark in panel.marks if mark.interval),
        *(_point(panel, mark) for mark in panel.marks if not panel.bars),
        *(_label(label) for label in place_labels(panel)),
        viewBox=f"0 0 {WIDTH:.0f} {HEIGHT:.0f}",
        role="img",
        aria_labelledby=f"{title} {description}",
    )


def _x(panel: Panel, value: float) -> float:
    return _LEFT + panel.x.at(value) * (WIDTH - _LEFT - _RIGHT)


def _y(panel: Panel, value: float) -> float:
    return HEIGHT - _BOTTOM - panel.y.at(value) * (HEIGHT - _TOP - _BOTTOM)


def _grid(panel: Panel) -> Markup:
    """Lines at the ticks of y, ticks of x, and what the axes are."""
    floor, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    parts = [
        join(
            element("line", class_="grid", x1=_LEFT, x2=right, y1=_y(panel, tick), y2=_y(panel, tick)),
            element("text", text, class_="tick", x=_LEFT - 6, y=_y(panel, tick) + 4, text_anchor="end"),
        )
        for tick, text in panel.y.ticks
    ]
    parts += [
        join(
            element("line", class_="axis", x1=_x(panel, tick), x2=_x(panel, tick), y1=floor, y2=floor + 4),
            element("text", text, class_="tick", x=_x(panel, tick), y=floor + 17, text_anchor="middle"),
        )
        for tick, text in panel.x.ticks
    ]
    axis = element("line", class_="axis", x1=_LEFT, x2=right, y1=floor, y2=floor)
    above = element("text", panel.y.label, class_="label", x=4.0, y=12.0)
    if panel.along == "y":
        below = element("text", panel.x.label, class_="label", x=_LEFT - 6, y=floor + 17, text_anchor="end")
    else:
        below = element("text", panel.x.label, class_="label", x=(_LEFT + right) / 2, y=HEIGHT - 8, text_anchor="middle")
    return element("g", *parts, axis, below, above, *_notes(panel), aria_hidden="true")


def _notes(panel: Panel) -> list[Markup]:
    """What is said of some places, below their ticks; a second row where two would meet."""
    drawn, ends = [], [0.0, 0.0]
    for value, text in panel.x.notes:
        half = _CHARACTER * len(text) / 2
        x = min(_x(panel, value), WIDTH - half)
        row = 0 if x - half >= ends[0] else 1
        ends[row] = x + half + _CHARACTER
        drawn.append(element("text", text, class_="said", x=x, y=HEIGHT - _BOTTOM + 30 + 13 * row, text_anchor="middle"))
    return drawn


def _bar(panel: Panel, mark: Mark) -> Markup:
    """A length from zero; a minor mark is the part of it below."""
    width = 0.62 * (WIDTH - _LEFT - _RIGHT) / (panel.x.high - panel.x.low)
    top, floor = _y(panel, mark.y), HEIGHT - _BOTTOM
    kind = "bar base" if mark.minor else f"bar {mark.role}"
    shape = {"x": _x(panel, mark.x) - width / 2, "y": top, "width": width, "height": max(0.0, floor - top)}
    return element("rect", element("title", mark.detail), class_=kind, **shape)


def _interval(panel: Panel, mark: Mark) -> Markup:
    """A line from bound to bound with caps; where there is no bound, a broken line runs to the edge."""
    low, high = mark.interval or (None, None)
    axis, at = (panel.x, _x) if panel.along == "x" else (panel.y, _y)
    across = _y(panel, mark.y) if panel.along == "x" else _x(panel, mark.x)
    middle = at(panel, mark.x if panel.along == "x" else mark.y)
    parts = []
    for bound, edge in ((low, axis.low), (high, axis.high)):
        end = at(panel, edge if bound is None else bound)
        parts.append(_stroke(panel.along, middle, end, across, across, "open" if bound is None else None))
        if bound is not None:
            parts.append(_stroke("y" if panel.along == "x" else "x", across - _HALF_CAP, across + _HALF_CAP, end, end))
    return element("g", *parts, class_=f"interval {mark.role}", aria_hidden="true")


def _stroke(along: str, a: float, b: float, c: float, d: float, kind: str | None = None) -> Markup:
    ends = {"x1": a, "x2": b, "y1": c, "y2": d} if along == "x" else {"x1": c, "x2": d, "y1": a, "y2": b}
    return element("line", class_=kind, **ends)


def _point(panel: Panel, mark: Mark) -> Markup:
    x, y, detail = _x(panel, mark.x), _y(panel, mark.y), element("title", mark.detail)
    if mark.minor == "above":
        return element("path", detail, class_="minor", d=f"M{x - 5:.1f} {y:.1f}h10")
    if mark.minor == "below":
        return element("circle", detail, class_="minor", cx=x, cy=y, r=3.0)
    return element("circle", detail, class_=f"point {mark.role}", cx=x, cy=y, r=5.5 if mark.role == "chosen" else 4.0)


def _vertical(panel: Panel, line: Line, row: int) -> Markup:
    right, top, floor = WIDTH - _RIGHT, _TOP, HEIGHT - _BOTTOM
    if line.beyond:
        text, anchor, x = (f"{line.label} →", "end", right) if line.beyond == "high" else (f"← {line.label}", "start", _LEFT)
        return element("text", text, class_=f"note {line.role}", x=x, y=top + 10 + 14 * row, text_anchor=anchor)
    x = _x(panel, line.value)
    fits_right = x + 4 + _CHARACTER * len(line.label) < right
    note = {"x": x + 4 if fits_right else x - 4, "y": top + 10 + 14 * row, "text_anchor": "start" if fits_right else "end"}
    return join(
        element("line", class_=f"rule {line.role}", x1=x, x2=x, y1=top, y2=floor),
        element("text", line.label, class_=f"note {line.role}", **note),
    )


def _horizontal(panel: Panel, line: Line) -> Markup:
    right = WIDTH - _RIGHT
    if line.beyond:
        up = line.beyond == "high"
        place = {"x": right, "y": _TOP + 10 if up else HEIGHT - _BOTTOM - 6, "text_anchor": "end"}
        return element("text", f"{line.label} {'↑' if up else '↓'}", class_=f"note {line.role}", **place)
    y = _y(panel, line.value)
    return join(
        element("line", class_=f"rule {line.role}", x1=_LEFT, x2=right, y1=y, y2=y),
        element("text", line.label, class_=f"note {line.role}", x=right, y=y - 4, text_anchor="end"),
    )


def _label(label: Label) -> Markup:
    place = {"x": _LEFT + label.x * (WIDTH - _LEFT - _RIGHT), "y": HEIGHT - _BOTTOM - label.y * (HEIGHT - _TOP - _BOTTOM) - 3}
    return element("text", label.text, class_=f"name {label.mark.role}", aria_hidden="true", **place)
