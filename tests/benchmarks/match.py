"""One comparison from start to end: prepare, open, judge the answers, take turns."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from tests.benchmarks import machine
from tests.benchmarks.contender import Contender, Setting
from tests.benchmarks.engines import RECORD
from tests.benchmarks.report import Comparison, Run
from tests.benchmarks.turns import ROOT, DidNotRun, Pace, Player, environment, keep_best, open_all, play, prepare_all
from tests.benchmarks.workloads import relative_error, write_workload

Groups = Mapping[str, list[Contender]]
"""Candidates by peer: the fastest of each group takes part."""


def setting_of(model: str, budget: int, work: Path, run: Run) -> Setting:
    """The model's checkpoint in `work`, written if it is not there yet."""
    checkpoint = work / model if (work / model).exists() else write_workload(work, model)
    return Setting(checkpoint, budget, run.arguments.threads, work)


def compare(
    run: Run, setting: Setting, groups: Groups, pace: Pace, optional: tuple[str, ...], add_ratios: Callable[[Comparison], None]
) -> Comparison:
    """Everybody who runs, in turns. `optional` are the peers that may sit out when they are far behind."""
    comparison = Comparison(setting.checkpoint.name, setting.budget)
    run.progress(f"{comparison.model}, K={setting.budget}: preparing")
    run.wait()  # our lowerings are planned by measurement
    judging = _start_reference(setting)
    failures = prepare_all([c for group in groups.values() for c in group], setting, run.progress)
    if (setting.ours / RECORD).exists():
        comparison.notes["plans_ms"] = json.loads((setting.ours / RECORD).read_text()).get("plans_ms")
    _open(comparison, setting, groups, failures, run)
    try:
        if judging.wait() == 0:
            _judge(comparison.players, setting)
        failed = _play(comparison, pace, optional, run)
    finally:
        for player in comparison.players:
            player.process.close()
    comparison.players = [player for player in comparison.players if player.name not in failed]
    comparison.absent |= failed
    add_ratios(comparison)
    return comparison


def _open(comparison: Comparison, setting: Setting, groups: Groups, failures: Mapping[str, str], run: Run) -> None:
    opened = open_all([c for group in groups.values() for c in group], setting, failures, run.progress)
    run.wait()
    for title, candidates in groups.items():
        try:
            comparison.players.append(keep_best(candidates, opened, run.progress))
        except DidNotRun as reason:
            comparison.absent[title] = str(reason)


def _play(comparison: Comparison, pace: Pace, optional: tuple[str, ...], run: Run) -> dict[str, str]:
    """The rounds, and how much others worked meanwhile."""
    run.wait()
    run.progress("  taking turns")
    pids = [player.process.pid for player in comparison.players]
    watch = machine.Watch.start(pids)
    failed = play(comparison.players, [p.name for p in comparison.players if p.contender.peer in optional], pace)
    comparison.others = watch.others(pids)
    return failed


def _start_reference(setting: Setting) -> subprocess.Popen[bytes]:
    """The float64 answer, computed by a process of its own while the peers are prepared."""
    command = [sys.executable, "-m", "tests.benchmarks.workloads", str(setting.checkpoint), str(setting.budget)]
    return subprocess.Popen([*command, str(setting.artifact("reference", "npy"))], cwd=ROOT, env=environment())


def _judge(players: list[Player], setting: Setting) -> None:
    """Every answer against the float64 reference."""
    reference, file = np.load(setting.artifact("reference", "npy")), setting.work / "answer.npy"
    for player in players:
        if player.answers:
            player.process.ask({"do": "output", "file": str(file)}, 900.0)
            player.error = relative_error(np.load(file), reference)
