"""The charts as one picture, by matplotlib (the extra `report`)."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from essm_deploy.errors import UnavailableError
from essm_deploy.profiling.reporting import words
from essm_deploy.profiling.reporting.chart import Line, Mark, Panel
from essm_deploy.profiling.reporting.document import Run
from essm_deploy.profiling.reporting.labels import place_labels
from essm_deploy.profiling.reporting.panels import panels_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK, _MUTED, _GRID = "#16191d", "#59616b", "#e6e9ee"
_COLOURS = {"plain": "#1f5fbf", "chosen": "#0b3f8f", "excluded": "#59616b"}
_LINES = {"limit": ("#b3261e", "-"), "sweet": ("#16703a", "--"), "collapse": ("#8a5a00", ":")}
_MOST_RUNS = 6


def require_matplotlib() -> None:
    """UnavailableError with the pip line unless matplotlib is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UnavailableError("a .png report needs matplotlib, not installed here: pip install 'essm-deploy[report]'")


def png(runs: Sequence[Run]) -> bytes:
    """Up to four panels a run, runs one below the other (the first six)."""
    require_matplotlib()
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = list(runs[:_MOST_RUNS])
    # The defaults, whatever the user's matplotlibrc says, and no TeX: labels are text, never markup.
    with mpl.rc_context({**mpl.rcParamsDefault, "text.usetex": False, "text.parse_math": False, "font.size": 9}):
        figure = Figure(figsize=(11, 8.2 * len(shown)), dpi=120, layout="constrained", facecolor="white")
        FigureCanvasAgg(figure)
        parts = figure.subfigures(len(shown), 1, squeeze=False)[:, 0]
        for run, part in zip(shown, parts, strict=True):
            _draw_run(run, part)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _draw_run(run: Run, part: Any) -> None:
    panels = panels_of(run)
    environment = run.environment
    machine = environment.machine.get("cpu", "") if environment and environment.machine else ""
    head = [words.title(run), words.headline(run), "; ".join(part for part in (machine, words.boundary(run)) if part)]
    part.suptitle("\n".join(_short(line) for line in head), fontsize=10, color=_INK, ha="left", x=0.02)
    if not panels:
        part.text(0.5, 0.5, "no budget has a latency or a memory figure", ha="center", color=_MUTED)
        return
    rows = -(-len(panels) // 2)
    axes = part.subplots(rows, 2 if len(panels) > 1 else 1, squeeze=False)
    for place, ax in enumerate(axes.flat):
        if place < len(panels):
            _draw(panels[place], ax)
        else:
            ax.axis("off")


def _draw(panel: Panel, ax: Axes) -> None:
    ax.set(title=panel.title, xlabel=panel.x.label, ylabel=panel.y.label)
    ax.set(xlim=(panel.x.low, panel.x.high), ylim=(panel.y.low, panel.y.high))
    ax.set_xticks([tick for tick, _ in panel.x.ticks], [text for _, text in panel.x.ticks])
    ax.set_yticks([tick for tick, _ in panel.y.ticks], [text for _, text in panel.y.ticks])
    ax.grid(axis="y", color=_GRID)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    for mark in panel.marks:
        (_bar if panel.bars else _point)(panel, mark, ax)
    for value, text in panel.x.notes:
        ax.text(value, -0.11, text, transform=ax.get_xaxis_transform(), ha="center", va="top", fontsize=8, weight="bold")
    for label in place_labels(panel):
        weight = "bold" if label.mark.role == "chosen" else "normal"
        ax.text(label.x, label.y + 0.01, label.text, transform=ax.transAxes, fontsize=8, weight=weight, zorder=6)
    for line in panel.vertical:
        _line(line, ax, upright=True)
    for line in panel.horizontal:
        _line(line, ax, upright=False)
    ax.text(0.0, -0.21, _short(panel.legend, 120), transform=ax.transAxes, fontsize=7, color=_MUTED)


def _bar(panel: Panel, mark: Mark, ax: Axes) -> None:
    colour = "#c9ced6" if mark.minor else "#1f5fbf" if mark.role == "chosen" else "#9dbbe6"
    ax.bar(mark.x, mark.y, width=0.62, color=colour, zorder=3 if mark.minor else 2)


def _point(panel: Panel, mark: Mark, ax: Axes) -> None:
    colour = _COLOURS[mark.role]
    if mark.minor:
        ax.plot(mark.x, mark.y, "_" if mark.minor == "above" else "o", color=_MUTED, mfc="white", ms=5, zorder=3)
        return
    if mark.interval:
        axis = panel.x if panel.along == "x" else panel.y
        at, ends = (mark.x if panel.along == "x" else mark.y), mark.interval
        reach = [[0.0 if ends[0] is None else max(0.0, at - ends[0])], [0.0 if ends[1] is None else max(0.0, ends[1] - at)]]
        for edge, bound in ((axis.low, ends[0]), (axis.high, ends[1])):
            if bound is None:  # a broken line to the edge
                xs, ys = ((at, edge), (mark.y, mark.y)) if panel.along == "x" else ((mark.x, mark.x), (at, edge))
                ax.plot(xs, ys, ":", color=colour, lw=1, zorder=1)
        error: dict[str, Any] = {f"{panel.along}err": reach}
        ax.errorbar(mark.x, mark.y, fmt="none", ecolor=colour, capsize=3, lw=1.3, zorder=4, **error)
    ax.plot(
        mark.x,
        mark.y,
        "o",
        color=colour,
        ms=8 if mark.role == "chosen" else 6,
        mfc="white" if mark.role == "excluded" else colour,
        zorder=5,
    )


def _line(line: Line, ax: Axes, *, upright: bool) -> None:
    colour, style = _LINES[line.role]
    if line.beyond is None:
        (ax.axvline if upright else ax.axhline)(line.value, color=colour, ls=style, lw=1.3, zorder=1)
    arrows = {("high", True): "→", ("low", True): "←", ("high", False): "↑", ("low", False): "↓"}
    text = line.label if line.beyond is None else f"{line.label} {arrows[line.beyond, upright]}"
    place: dict[str, Any] = {"xycoords": "axes fraction", "xy": (0.99, 0.03 if line.beyond == "low" else 0.96), "ha": "right"}
    if line.beyond is None and upright:
        place = {"xycoords": ("data", "axes fraction"), "xy": (line.value, 0.98), "ha": "right", "va": "top"}
    elif line.beyond is None:
        place = {"xycoords": ("axes fraction", "data"), "xy": (0.99, line.value), "ha": "right", "va": "bottom"}
    ax.annotate(text, color=colour, fontsize=8, **place)


def _short(text: str, most: int = 150) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
