"""Printing: one JSON document or plain text on stdout, progress on stderr."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any

import click

from essm_deploy.cli.live import live_line


def print_json(document: dict[str, Any]) -> None:
    """One document and nothing else on stdout."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Two spaces between columns; a column of figures is aligned on the right, any other on the left."""
    columns = [_aligned(column) for column in zip(header, *rows, strict=True)]
    for row in zip(*columns, strict=True):
        click.echo("  ".join(row).rstrip())


def _aligned(column: Sequence[str]) -> list[str]:
    width = max(map(len, column))
    figures = all(cell == "-" or cell[:1].isdigit() for cell in column[1:])
    return [cell.rjust(width) if figures else cell.ljust(width) for cell in column]


def print_pairs(pairs: Iterable[tuple[str, str]], indent: int = 2) -> None:
    """Names and values, values aligned."""
    listed = list(pairs)
    width = max((len(name) for name, _ in listed), default=0)
    for name, value in listed:
        click.echo(f"{' ' * indent}{name.ljust(width)}  {value}")


class Progress:
    """Stage lines on stderr with the time since the start; silent with -q.

    A line that ends in "..." says what is being done: on a terminal it is drawn live, with its own time, until the next line
    comes; elsewhere it is left out, for the line that says what came of it follows.
    """

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._start = time.monotonic()
        self._live = None if quiet else live_line()
        context = click.get_current_context(silent=True)
        if self._live is not None and context is not None:
            context.call_on_close(self._live.clear)  # before an error is printed, or Ctrl-C leaves it half drawn

    def __call__(self, line: str) -> None:
        """One line: what has just been done, or with "..." at its end what is being done."""
        if self._quiet:
            return
        doing = line.endswith("...")
        stamped = f"[{time.monotonic() - self._start:6.1f}s] {line}"
        if self._live is None:
            if not doing:
                click.echo(stamped, err=True)
        elif doing:
            self._live.show(line)
        else:
            self._live.say(stamped)
