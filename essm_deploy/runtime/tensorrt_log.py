"""What TensorRT says while it builds or opens an engine.

A process has one logger: whatever is passed to a second builder is ignored in favour of the first. So there is one for the life
of the process, and what changes is where it writes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_WORST = ("INTERNAL_ERROR", "ERROR")


class TensorRtLog:
    """Lines as they came, each with its severity."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def write(self, path: Path) -> None:
        """One line a message: `[INFO] ...`."""
        path.write_text("".join(f"[{severity}] {message}\n" for severity, message in self.lines), encoding="utf-8")

    def problem(self) -> str:
        """The first error, or the last line: why a build came to nothing."""
        errors = [message for severity, message in self.lines if severity in _WORST]
        last = [message for _, message in self.lines[-1:]]
        return (errors or last or ["TensorRT gave no reason"])[0]

    def number(self, label: str) -> int | None:
        """The bytes after a label such as "Total Activation Memory:"; None if TensorRT did not say."""
        found = [message.partition(label)[2].split() for _, message in self.lines if label in message]
        return int(found[-1][0]) if found and found[-1] and found[-1][0].isdigit() else None

    def line(self, start: str) -> str:
        """The last message that begins so, or nothing."""
        return next((message for _, message in reversed(self.lines) if message.startswith(start)), "")


@contextmanager
def captured(trt: Any) -> Iterator[tuple[Any, TensorRtLog]]:
    """The logger to create builders and parsers with, and what is said until the block ends."""
    logger, log = _logger(trt), TensorRtLog()
    logger.sink = log
    try:
        yield logger, log
    finally:
        logger.sink = None


@functools.cache
def _logger(trt: Any) -> Any:
    class Recorder(trt.ILogger):  # type: ignore[misc]  # the module is only known at run time
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.sink: TensorRtLog | None = None

        def log(self, severity: Any, message: str) -> None:
            if self.sink is not None:
                self.sink.lines.append((severity.name, " ".join(message.split())))

    return Recorder()
