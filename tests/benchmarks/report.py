"""The results of a benchmark as JSON (every sample) and as Markdown (ratios first)."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.benchmarks import machine
from tests.benchmarks.ratios import Ratio, ratio, summary
from tests.benchmarks.turns import Player

SCHEMA_VERSION = "1.0"


@dataclass
class Comparison:
    """One model at one budget: ratios in print order, who played, and who did not run.

    `others` is the share of all CPU time that other processes took during the rounds.
    """

    model: str
    budget: int
    ratios: dict[str, Ratio] = field(default_factory=dict)
    players: list[Player] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    others: float = 0.0
    notes: dict[str, Any] = field(default_factory=dict)

    def add(self, title: str, above: str | None, below: str | None) -> None:
        """The ratio of two contenders' times, if both ran."""
        rounds = {player.name: player.rounds for player in self.players}
        if above in rounds and below in rounds:
            self.ratios[title] = ratio(rounds[above], rounds[below])

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "budget": self.budget,
            "ratios": {name: value.to_json() for name, value in self.ratios.items()},
            "contenders": [_player_json(player) for player in self.players],
            "did_not_run": self.absent,
            "others_cpu_share": self.others,
            **self.notes,
        }


@dataclass
class Run:
    """A benchmark's run, from its arguments to its files."""

    name: str
    arguments: argparse.Namespace
    started: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%S%z"))

    def progress(self, text: str) -> None:
        """Say on stderr what is going on."""
        print(text, file=sys.stderr, flush=True)

    def wait(self) -> None:
        """Wait for a quiet machine, as long as `--wait` says."""
        if self.arguments.wait and not machine.wait_until_quiet(self.arguments.wait):
            self.progress("  the machine is busy with other work")

    def finish(self, content: dict[str, Any], tables: Sequence[str]) -> None:
        """Write both files where `-o` says, and print the tables."""
        self.save(content, tables)
        print(self._markdown(tables))

    def save(self, content: dict[str, Any], tables: Sequence[str]) -> None:
        """Write both files where `-o` says: also what there is so far, since a run takes minutes."""
        if self.arguments.output:
            directory = Path(self.arguments.output)
            directory.mkdir(parents=True, exist_ok=True)
            document = {"schema_version": SCHEMA_VERSION, "benchmark": self.name, **self._facts(), **content}
            (directory / f"{self.name}.json").write_text(json.dumps(document, indent=1) + "\n")
            (directory / f"{self.name}.md").write_text(self._markdown(tables))

    def _markdown(self, tables: Sequence[str]) -> str:
        return "\n\n".join([f"# {self.name}", self._header(), *tables]) + "\n"

    def _facts(self) -> dict[str, Any]:
        return {
            "command": " ".join(["python", "-m", f"tests.benchmarks.{self.name}", *sys.argv[1:]]),
            "started": self.started,
            "quick": self.arguments.quick,
            "threads": self.arguments.threads,
            "machine": machine.describe(),
            "versions": machine.versions(),
        }

    def _header(self) -> str:
        facts = self._facts()
        cpu, versions = facts["machine"], ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
        return (
            f"{cpu['cpu']}, {cpu['physical_cores']} cores, {cpu['system']}; {facts['threads']} threads each, fp32, batch 1; "
            f"{facts['started']}. {versions}."
        )


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that all benchmarks have."""
    options = argparse.ArgumentParser(description=(description or "").strip().splitlines()[0])
    options.add_argument("-o", "--output", metavar="DIR", help="write NAME.json and NAME.md there")
    options.add_argument("--quick", action="store_true", help="few rounds: a first look, not a result")
    options.add_argument("--threads", type=int, default=2, help="threads and CPUs of every contender (2)")
    options.add_argument("--budgets", type=int, nargs="+", default=[2, 8, 32], metavar="K")
    options.add_argument("--wait", type=float, default=0.0, metavar="S", help="wait up to S seconds for a quiet machine")
    options.add_argument("--work", metavar="DIR", help="keep the peers' exports there, and use those that are")
    return options


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], text: Sequence[int] = (0,)) -> str:
    """A Markdown table; the columns `text` are aligned to the left, the others are figures."""
    marks = "|".join(":--" if i in text else "--:" for i in range(len(columns)))
    return "\n".join([_row(columns), f"|{marks}|", *(_row(row) for row in rows)])


def ratio_table(comparisons: Sequence[Comparison]) -> str:
    """Ratios, one column a budget."""
    names = list(dict.fromkeys(name for c in comparisons for name in c.ratios))
    rows = [[name, *(str(c.ratios[name]) if name in c.ratios else "" for c in comparisons)] for name in names]
    rows.append(["CPU time taken by others meanwhile", *(_share(c.others) for c in comparisons)])
    return table(
        ["ratio: median of the rounds (quartiles; of the fastest rounds)", *(f"K={c.budget}" for c in comparisons)], rows
    )


def time_table(comparison: Comparison) -> str:
    """Every contender's time, error and settings, and who did not run and why."""
    rows: list[list[object]] = []
    for player in comparison.players:
        stats = summary(player.rounds)
        settings = ", ".join(f"{name} {value}" for name, value in player.settings.items())
        error = "" if player.error is None else f"{player.error:.1e}"
        spread = f"{stats.p10:.2f} to {stats.p90:.2f}"
        rows.append([player.name, f"{stats.median:.2f}", spread, stats.count, error, settings])
    rows += [[name, "", "", "", "", f"did not run: {reason}"] for name, reason in comparison.absent.items()]
    columns = ["contender", "median ms", "p10 to p90", "rounds", "error against float64", "settings"]
    return f"## {comparison.model}, K={comparison.budget}\n\n" + table(columns, rows, text=(0, 5))


def tried_table(comparison: Comparison) -> str:
    """What every spelling took before the rounds; the fastest of a peer went in."""
    rows = [[name, _figure(value)] for player in comparison.players for name, value in player.tried.items()]
    return table([f"{comparison.model}, K={comparison.budget}: spellings tried", "ms, best of a few calls"], rows)


def _share(others: float) -> str:
    return f"{others:.0%}" if others <= machine.QUIET else f"**{others:.0%}: disturbed**"


def _figure(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.2f}"


def _row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _player_json(player: Player) -> dict[str, Any]:
    return {
        "name": player.name,
        **asdict(player.contender),
        "settings": player.settings,
        "open_seconds": player.seconds,
        "ms": asdict(summary(player.rounds)),
        "error": player.error,
        "tried": player.tried,
        "rounds_ms": player.rounds,
        "samples_ms": player.samples,
    }
