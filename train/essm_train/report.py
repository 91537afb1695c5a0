"""essm-train evaluate: a checkpoint's quality at every budget, as a document, as a table, and as a picture."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from essm_deploy.checkpoint import Checkpoint
from essm_deploy.errors import UnavailableError, UsageError
from essm_deploy.files import disk_errors, write_json
from essm_train.device import setup_device
from essm_train.evaluate import (
    COLLAPSE,
    SWEET_SPOT,
    calibration_error,
    channel_importance,
    measure_quality,
    retention,
    smallest_keeping,
)
from essm_train.loading import Engines, load_model, open_engines
from essm_train.registry import TASKS
from essm_train.settings import load_recipe
from essm_train.tasks import Classifier, Task


@dataclass(frozen=True)
class Wanted:
    """What the command was asked for."""

    checkpoint: Path
    data: Path
    name: str | None = None
    config: str | None = None
    budgets: str = "trained"
    split: str = "test"
    engine: Path | None = None
    channels: bool = False


def evaluate_checkpoint(wanted: Wanted, device: torch.device) -> dict[str, Any]:
    """The document of quality.json, with what is derived from the metric beside it."""
    task = _task(wanted, device)
    model, checkpoint = load_model(wanted.checkpoint, task)
    _check_fit(task, checkpoint)
    judged: nn.Module = open_engines(wanted.engine, task, model) if wanted.engine is not None else model.to(device)
    budgets = parse_budgets(wanted.budgets, checkpoint, judged)
    document = measure_quality(task, judged, budgets, wanted.split)
    values, direction = document["budgets"], document["direction"]
    document["engine"] = None if wanted.engine is None else wanted.engine.name
    document["retention"] = {k: round(share, 4) for k, share in retention(values, direction).items() if share == share}
    document["sweet_spot"] = smallest_keeping(values, direction, SWEET_SPOT)
    document["collapse_boundary"] = smallest_keeping(values, direction, COLLAPSE)
    if isinstance(task, Classifier):
        scores = {k: task.scores(judged, wanted.split, k) for k in budgets}
        document["calibration_error"] = {str(k): round(calibration_error(*pair), 4) for k, pair in scores.items()}
    if wanted.channels:
        document["channels"] = channel_importance(task, _weights(judged), checkpoint.config["k_max"], wanted.split)
    return document


def parse_budgets(text: str, checkpoint: Checkpoint, judged: nn.Module) -> list[int]:
    """trained, all, or a list; of a bundle: those that it holds. UsageError for anything else."""
    held = judged.budgets() if isinstance(judged, Engines) else list(range(1, checkpoint.config["k_max"] + 1))
    if text == "all" or (text == "trained" and isinstance(judged, Engines)):
        return held
    if text == "trained":
        return [int(k) for k in checkpoint.config["budgets"]]
    words = text.split(",")
    wrong = [word for word in words if not word.strip().isdigit() or int(word) not in held]
    if wrong:
        raise UsageError(f"--budgets {text}: {wrong[0]!r} is none of {', '.join(map(str, held))}")
    return sorted({int(word) for word in words})


def write_report(folder: Path, document: dict[str, Any]) -> None:
    """quality.json, and quality.png where matplotlib is installed."""
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "quality.json", document)
    try:
        plot(folder / "quality.png", document)
    except UnavailableError as error:
        print(error)


def plot(path: Path, document: dict[str, Any]) -> None:
    """The metric over the budget, with the two thresholds. UnavailableError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UnavailableError("the plot needs matplotlib: pip install 'essm-deploy[report]'") from error
    budgets = sorted(map(int, document["budgets"]))
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(budgets, [document["budgets"][str(k)] for k in budgets], marker="o")
    full = document["budgets"][str(budgets[-1])]
    for share, style in ((SWEET_SPOT, "--"), (COLLAPSE, ":")):
        level = full * share if document["direction"] == "maximize" else full / share
        axes.axhline(level, linestyle=style, color="grey", label=f"{share:.0%} of K = {budgets[-1]}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(budgets, [str(k) for k in budgets])
    axes.set(xlabel="budget K", ylabel=f"{document['metric']} ({document['split']}, n = {document['samples']})")
    axes.legend()
    figure.savefig(path, dpi=150)


def to_text(document: dict[str, Any]) -> str:
    """A table for a terminal."""
    errors = document.get("calibration_error", {})
    lines = [f"{document['metric']} on {document['samples']} samples of {document['split']}"]
    for k, value in document["budgets"].items():
        kept = document["retention"].get(k)
        line = f"K = {k:>3}  {value:.4f}" + (f"  {kept:7.1%}" if kept is not None else "")
        lines.append(line + (f"  calibration error {errors[k]:.3f}" if k in errors else ""))
    lines.append(f"sweet spot (98 %): {_budget(document['sweet_spot'])}")
    lines.append(f"collapse boundary (90 %): {_budget(document['collapse_boundary'])}")
    if "channels" in document:
        share = document["channels"]["first_8_share"]
        lines.append(f"first 8 channels: {'no channel matters' if share is None else f'{share:.1%} of all importance'}")
    return "\n".join(lines)


def _budget(k: int | None) -> str:
    return "none" if k is None else f"K = {k}"


def _task(wanted: Wanted, device: torch.device) -> Task:
    name = wanted.name or _named_in_card(wanted.checkpoint)
    if name not in TASKS:
        raise UsageError(f"--task {name}: expected one of {', '.join(TASKS)}")
    module = TASKS[name].load()
    recipe = load_recipe(module.Recipe, name, wanted.config)
    setup_device(device, recipe.train.threads)
    task: Task = module.build(recipe, wanted.data, device)
    return task


def _named_in_card(path: Path) -> str:
    card = path / "README.md"
    found = re.search(r"essm-train ([\w-]+) ", card.read_text("utf-8")) if card.is_file() else None
    if found is None:
        raise UsageError(f"{card}: names no command that made it; say which task with --task")
    return found[1]


def _check_fit(task: Task, checkpoint: Checkpoint) -> None:
    """UsageError where the task's recipe and the checkpoint cannot belong together; the checkpoint's front end is used."""
    ours, theirs = task.model_config.seq_len, checkpoint.config["seq_len"]
    if ours != theirs:
        raise UsageError(f"the recipe's sequences have {ours} steps, the checkpoint's {theirs}; name its recipe with --config")
    adopt = getattr(task, "adopt", None)
    if adopt is not None:
        adopt(checkpoint.config)


def _weights(judged: nn.Module) -> nn.Module:
    if isinstance(judged, Engines):
        raise UsageError("--channels changes weights, and an engine's are fixed; drop --engine or --channels")
    return judged
