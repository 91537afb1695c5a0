"""The table of a comparison: each slice of one elastic run beside the Transformer++ of its size, and the time of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from essm_deploy.errors import UsageError
from essm_deploy.families import family_of, open_checkpoint
from essm_train.baselines.runs import VARIANT, Comparison, Spec, read_json, seconds_of_steps
from essm_train.job import training_folder
from essm_train.study import cell

SEARCH, TURNS = "learning-rate.json", "turns.json"
HEAD = (
    "| K | ES-SSM parameters | test accuracy, % | training, s | Transformer++ width, FFN | parameters | difference "
    "| test accuracy, % | training, s |"
)
NONE = "–"


@dataclass
class Side:
    """What one family's runs came to: accuracies at each budget, and the seconds of each run (of the elastic one under 0)."""

    accuracy: dict[int, list[float]] = field(default_factory=dict)
    seconds: dict[int, list[float]] = field(default_factory=dict)

    def add(self, budget: int, accuracy: float) -> None:
        self.accuracy.setdefault(budget, []).append(accuracy)

    def spend(self, budget: int, seconds: float) -> None:
        self.seconds.setdefault(budget, []).append(seconds)

    def total(self, budgets: Sequence[int]) -> float | None:
        """The sum of the mean run of each budget; None where one has no run."""
        found = [self.seconds.get(k, []) for k in budgets]
        return float(sum(np.mean(values) for values in found)) if all(found) else None


def table(comparison: Comparison, budgets: Sequence[int], seeds: Sequence[int], elastic: Path | None) -> str:
    """Markdown: the table, and under it what the totals, the search and the turns say. UsageError where nothing is there."""
    search = read_json(comparison.folder / SEARCH) if (comparison.folder / SEARCH).is_file() else None
    if search is None:
        raise UsageError(f"{comparison.folder}: no learning rate was chosen there yet; train first, with --data")
    ours = read_elastic(comparison, budgets, seeds, elastic) if elastic is not None else Side()
    theirs = read_transformers(comparison, budgets, seeds, float(search["chosen"]))
    lines = [HEAD, "|---" + "|---:" * 8 + "|", *(_row(comparison, k, ours, theirs) for k in budgets)]
    once, all_of_them = ours.total([0]), theirs.total(budgets)
    lines.append(f"| all | | | {_seconds(ours.seconds.get(0))} | | | | | {_shown(all_of_them)} |")
    notes = [_seeds(ours, theirs, budgets), _times(once, all_of_them, len(budgets)), *_turns(comparison, budgets)]
    return "\n".join([*lines, "", *(f"- {note}" for note in [*notes, *_search(search)])])


def read_elastic(comparison: Comparison, budgets: Sequence[int], seeds: Sequence[int], folder: Path) -> Side:
    """The elastic study's finished runs. UsageError where there is none, or one of another size or without a budget."""
    side = Side()
    for seed in seeds:
        path = folder / f"{VARIANT}-seed{seed}"
        if not (path / "quality.json").is_file():
            continue
        _check_sizes(comparison, budgets, path)
        values = read_json(path / "quality.json").get("budgets", {})
        missing = [k for k in budgets if str(k) not in values]
        if missing:
            raise UsageError(f"{path / 'quality.json'}: has no value at K={missing[0]}; leave it out of --budgets")
        for k in budgets:
            side.add(k, float(values[str(k)]))
        side.spend(0, _spent(training_folder(path)))
    if not side.seconds:
        raise UsageError(f"{folder}: expected finished runs {VARIANT}-seed<n> of study {comparison.study.name} for --elastic")
    return side


def read_transformers(comparison: Comparison, budgets: Sequence[int], seeds: Sequence[int], lr: float) -> Side:
    """The finished runs with the chosen learning rate."""
    side = Side()
    for budget in budgets:
        for seed in seeds:
            result = comparison.result(Spec(budget, seed, lr))
            if result is not None:
                side.add(budget, float(result["test"]))
                side.spend(budget, float(result["step_seconds"]))
    return side


def _check_sizes(comparison: Comparison, budgets: Sequence[int], path: Path) -> None:
    checkpoint = open_checkpoint(path)
    for k in budgets:
        found, wanted = family_of(checkpoint).parameter_count(checkpoint, k), comparison.match(k).target
        if found != wanted:
            raise UsageError(f"{path}: {found} parameters at K={k}; study {comparison.study.name} has {wanted}")


def _spent(training: Path) -> float:
    """Seconds of an elastic run's epochs."""
    return seconds_of_steps(training / "log.jsonl")


def _row(comparison: Comparison, budget: int, ours: Side, theirs: Side) -> str:
    sizes = comparison.match(budget)
    shape = f"{sizes.width}, {sizes.intermediate_size} | {sizes.parameters:,} | {sizes.percent:+.2f} %"
    left = f"{budget} | {sizes.target:,} | {_accuracy(ours, budget)} | "
    return f"| {left} | {shape} | {_accuracy(theirs, budget)} | {_seconds(theirs.seconds.get(budget))} |"


def _accuracy(side: Side, budget: int) -> str:
    values = side.accuracy.get(budget)
    return cell([100.0 * value for value in values], 100.0) if values else NONE


def _seconds(values: Sequence[float] | None) -> str:
    if not values:
        return NONE
    return f"{np.mean(values):.0f}" + (f" ± {np.std(values, ddof=1):.0f}" if len(values) > 1 else "")


def _shown(value: float | None) -> str:
    return NONE if value is None else f"{value:.0f}"


def _seeds(ours: Side, theirs: Side, budgets: Sequence[int]) -> str:
    counts = ", ".join(f"K={k} {len(theirs.accuracy.get(k, []))}" for k in budgets)
    return f"Runs: ES-SSM {len(ours.seconds.get(0, []))}; Transformer++ {counts}. ± is the standard deviation over seeds."


def _times(once: float | None, all_of_them: float | None, count: int) -> str:
    if once is None or all_of_them is None:
        return "Total training time: not all runs are there."
    ratio = f"{all_of_them / once:.2f} times as long"
    looks = "looks at the validation split, of three budgets and of one, included"
    return f"As run: one ES-SSM took {once:.0f} s, {count} Transformer++ {all_of_them:.0f} s, {ratio} ({looks})."


def read_turns(comparison: Comparison, budgets: Sequence[int]) -> dict[str, Any] | None:
    """The times in turns; None where they were not taken, or not of all these budgets, or of another recipe."""
    path = comparison.folder / TURNS
    document = read_json(path) if path.is_file() else {}
    known = document.get("recipe") == comparison.timed_recipe and all(str(k) in document["transformer"] for k in budgets)
    return document if known else None


def _turns(comparison: Comparison, budgets: Sequence[int]) -> list[str]:
    document = read_turns(comparison, budgets)
    if document is None:
        return ["Times in turns: not taken for these budgets and this recipe; repeat the command with --data."]
    return [_turn(document, budgets, key, words) for key, words in (("seconds", "wall clock"), ("own_seconds", "own time"))]


def _turn(document: Mapping[str, Any], budgets: Sequence[int], key: str, words: str) -> str:
    once = float(document["elastic"][key])
    each = [float(document["transformer"][str(k)][key]) for k in budgets]
    parts = " + ".join(f"{seconds:.0f}" for seconds in each)
    start = f"In turns on one machine, {words}: one ES-SSM {once:.0f} s, {len(each)} Transformer++ {parts} = {sum(each):.0f} s"
    return f"{start}, {sum(each) / once:.2f} times as long ({document['rounds']} rounds, {document['steps']} steps a run)."


def _search(search: Mapping[str, Any]) -> list[str]:
    """What the choice of the learning rate was, and what it took beside the runs of the table."""
    tried, chosen = search["tried"], f"{search['chosen']:g}"
    if len(tried) == 1:
        return [f"Learning rate {chosen}; no other was tried."]
    values = ", ".join(f"{lr} ({100 * run['validation']:.1f} %)" for lr, run in tried.items())
    extra = sum(run["step_seconds"] for lr, run in tried.items() if lr != chosen)
    where = f"by validation accuracy at K={search['budget']}, seed {search['seed']}, of {values}"
    rates = sorted(map(float, tried))
    edge = ["The chosen rate lies at the edge of those tried: a better one may lie beyond."]
    found = [f"Learning rate {chosen}, chosen {where}; the runs that were not taken took {extra:.0f} s, not in the total."]
    return found + (edge if search["chosen"] in (rates[0], rates[-1]) else [])
