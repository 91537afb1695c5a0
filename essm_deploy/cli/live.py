"""One live line on a terminal, by rich: what is being done, and for how long. Plain lines where rich is not installed."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

# The line is drawn by a thread of this process while an engine is measured: more often would be work beside the measurement.
_PER_SECOND = 1


class Live:
    """Draws on stderr; `say` prints a finished line above it, `show` replaces it, `clear` takes it away."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self._console = console
        self._progress = progress
        self._task: TaskID | None = None

    def say(self, line: str) -> None:
        """A line that stays."""
        self.clear()
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(self, line: str) -> None:
        """A line that says what is being done, with the time since it was first shown."""
        self.clear()
        self._task = self._progress.add_task(line)
        self._progress.start()

    def clear(self) -> None:
        """Nothing is being done that this knows of; the cursor is where a plain print expects it."""
        if self._task is not None:
            self._progress.stop()
            self._progress.remove_task(self._task)
            self._task = None


def live_line() -> Live | None:
    """A live line where stderr is a terminal that can redraw one and rich is installed; else None."""
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return None
    try:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    except ImportError:
        return None
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    return Live(
        console,
        Progress(
            *columns,
            console=console,
            transient=True,
            refresh_per_second=_PER_SECOND,
            redirect_stdout=False,
            redirect_stderr=False,
        ),
    )
