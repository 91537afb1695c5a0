"""Printing: one JSON document or plain text on stdout, progress on stderr."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any

import click


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
    """Stage lines on stderr with the time since the start; silent with -q."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._start = time.monotonic()

    def __call__(self, line: str) -> None:
        """One line: what has just been done or is being done."""
        if not self._quiet:
            click.echo(f"[{time.monotonic() - self._start:6.1f}s] {line}", err=True)
