"""`essm-deploy compare`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from essm_deploy.cli.guard import require_compiler
from essm_deploy.cli.options import EXISTING, FORMAT
from essm_deploy.cli.output import print_json, print_table
from essm_deploy.units import format_bytes, format_ms


@click.command()
@click.argument("a", type=EXISTING)
@click.argument("b", type=EXISTING)
@FORMAT
def compare(a: Path, b: Path, output_format: str) -> None:
    """Compare two documents of `profile`, A and B, budget by budget: is B slower, and by how much?

    Every ratio is B over A with an interval; all intervals of the comparison hold together at 95%. What differs between the
    two in machine, versions and settings is said first.
    """
    require_compiler()
    from essm_deploy.profiling.reporting.compare import compare_documents
    from essm_deploy.profiling.reporting.reading import load

    document = compare_documents(load(a), load(b), str(a), str(b))
    if output_format == "json":
        print_json(document)
        return
    for line in document["warnings"]:
        click.echo(f"warning: {line}")
    for pair in document["pairs"]:
        _print_pair(pair, several=len(document["pairs"]) > 1)


def _print_pair(pair: dict[str, Any], several: bool) -> None:
    if several:
        click.echo("\n" + " and ".join(dict.fromkeys(pair["target"].values())))
    for difference in pair["differences"]:
        click.echo(f"differs: {difference['name']}: A {difference['a']}, B {difference['b']}")
    budgets = pair["budgets"]
    for name in dict.fromkeys(name for budget in budgets for name in budget["latency_ms"]):
        print_table(
            (name, "A", "B", "B over A", "interval", "verdict"), [_latency(b, name) for b in budgets if name in b["latency_ms"]]
        )
    for line in (*pair["summary"], *_memory(budgets), *_quality(budgets)):
        click.echo(line)


def _memory(budgets: list[dict[str, Any]]) -> Iterator[str]:
    """One line: single readings have no intervals, so that a table would promise too much."""
    changes = [(budget["memory"]["difference_bytes"], budget) for budget in budgets if budget["memory"]]
    if changes:
        (low, least), (high, most) = min(changes, key=_first), max(changes, key=_first)
        figure = least["memory"]["figure"]
        if low == high:
            yield f"{figure} of B less A's: {_change(low)} at all {len(changes)} budgets (one reading each)"
            return
        yield f"{figure} of B less A's: {_change(low)} at {_name(least)} to {_change(high)} at {_name(most)} (one reading each)"


def _quality(budgets: list[dict[str, Any]]) -> Iterator[str]:
    known = [budget for budget in budgets if budget["quality"]]
    changed = [budget for budget in known if budget["quality"]["difference"]]
    if known and not changed:
        yield f"{known[0]['quality']['metric']}: the same at all {len(known)} budgets"
    for budget in changed:
        quality = budget["quality"]
        yield f"{_name(budget)}: {quality['metric']} {quality['a']:.4g} and {quality['b']:.4g}, {quality['verdict']}"


def _first(entry: tuple[int, dict[str, Any]]) -> int:
    return entry[0]


def _change(size: int) -> str:
    return f"{'-' if size < 0 else '+'}{format_bytes(abs(size))}"


def _latency(budget: dict[str, Any], name: str) -> list[str]:
    figure = budget["latency_ms"][name]
    interval = f"{_ratio(figure['lower'])} to {_ratio(figure['upper'])}"
    return [_name(budget), _bounded(figure["a"]), _bounded(figure["b"]), _ratio(figure["ratio"]), interval, figure["verdict"]]


def _bounded(side: dict[str, Any]) -> str:
    bounds = [format_ms(side[name]) if side[name] is not None else "?" for name in ("lower", "upper")]
    return f"{format_ms(side['ms'])} ({bounds[0]} to {bounds[1]})"


def _ratio(value: float | None) -> str:
    return "?" if value is None else f"{value:.3f}"


def _name(budget: dict[str, Any]) -> str:
    return f"K={budget['budget']}" if isinstance(budget["budget"], int) else str(budget["budget"])
