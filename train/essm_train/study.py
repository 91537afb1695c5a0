"""A named study: the same task trained in variants and seeds, each run resumable, and the table of what came out.

    python -m essm_train.study keywords-dropout --data speech_commands -o FOLDER          trains what is not there yet
    python -m essm_train.study keywords-dropout -o FOLDER --table                         prints the table of what is there

A study is studies/<name>.toml: `task`, `seeds`, a [base] of recipe sections that all its runs share, and [variants.NAME] with
the sections that one of them changes. A run lies in FOLDER/<variant>-seed<n>, a checkpoint like any other; the ones that are
complete are skipped, and a killed one goes on where it was.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from essm_deploy.errors import EssmError, UsageError
from essm_deploy.files import write_json
from essm_train.registry import TASKS
from essm_train.settings import CommonSettings, load_recipe, read_toml, with_keys

SPEND = "spent.json"  # beside a run's log: how long it took


@dataclass(frozen=True)
class Study:
    """What a study's file says."""

    name: str
    task: str
    title: str
    seeds: tuple[int, ...]
    base: Mapping[str, Any]
    variants: Mapping[str, Mapping[str, Any]]

    def runs(self) -> Iterator[tuple[str, int]]:
        """Every variant of a seed before the next seed, so that an unfinished study compares like with like."""
        return ((variant, seed) for seed in self.seeds for variant in self.variants)

    def recipe(self, variant: str, seed: int) -> CommonSettings:
        """The recipe of one run."""
        recipe: CommonSettings = load_recipe(TASKS[self.task].load().Recipe, self.task)
        for changes in (self.base, self.variants[variant]):
            recipe = with_keys(recipe, dict(changes), f"study {self.name}")
        return recipe.with_train(seed=seed)


def load_study(name: str) -> Study:
    """A packaged study, or a file. UsageError where it is none."""
    folder = Path(__file__).parent / "studies"
    known = sorted(path.stem for path in folder.glob("*.toml"))
    path = folder / f"{name}.toml" if name in known else Path(name)
    if not path.is_file():
        raise UsageError(f"study {name}: not a file, and none of {', '.join(known)}")
    document = read_toml(path)
    try:
        study = Study(path.stem, document["task"], document["title"], tuple(document["seeds"]), document.get("base", {}),
                      document["variants"])  # fmt: skip
    except KeyError as error:
        raise UsageError(f"{path}: key {error} is missing") from error
    if study.task not in TASKS:
        raise UsageError(f"{path}: task {study.task!r}; expected one of {', '.join(TASKS)}")
    return study


def run_study(study: Study, data: Path, folder: Path, device: str | None) -> None:
    """Train what is missing, one run after the other."""
    from essm_train.device import choose_device
    from essm_train.job import Request, train_task

    module = TASKS[study.task].load()
    for variant, seed in study.runs():
        output = folder / f"{variant}-seed{seed}"
        if output.exists():
            continue
        print(f"{study.name}: {variant}, seed {seed}", file=sys.stderr, flush=True)
        began = time.monotonic()
        request = Request(output, f"python -m essm_train.study {study.name}", data)
        train_task(module, request, study.recipe(variant, seed), choose_device(device))
        write_json(output.with_name(output.name + ".training") / SPEND, {"hours": (time.monotonic() - began) / 3600})


def table(study: Study, folder: Path) -> str:
    """Markdown: the test metric of every variant at every budget, mean ± standard deviation over the seeds that are there."""
    found = {variant: documents(study, folder, variant) for variant in study.variants}
    there = [d for ds in found.values() for d in ds]
    if not there:
        raise UsageError(f"{folder}: no finished run of study {study.name}; train some first")
    budgets = list(there[0]["budgets"])
    scale = 100.0 if there[0]["metric"] == "accuracy" else 1.0
    lines = [
        "| variant | seeds | hours | " + " | ".join(f"K={k}" for k in budgets) + " |",
        "|---|---:|---:" * 1 + "|---:" * len(budgets) + "|",
    ]
    for variant, runs in found.items():
        if runs:
            cells = [cell([scale * run["budgets"][k] for run in runs], scale) for k in budgets]
            hours = sum(run["hours"] for run in runs)
            lines.append(f"| {variant} | {len(runs)} | {hours:.2f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def documents(study: Study, folder: Path, variant: str) -> list[dict[str, Any]]:
    """quality.json of a variant's finished runs, with the hours that each took where that is known."""
    found = []
    for seed in study.seeds:
        output = folder / f"{variant}-seed{seed}"
        if (output / "quality.json").is_file():
            spent = output.with_name(output.name + ".training") / SPEND
            hours = json.loads(spent.read_text())["hours"] if spent.is_file() else float("nan")
            found.append({**json.loads((output / "quality.json").read_text()), "hours": hours})
    return found


def cell(values: list[float], scale: float) -> str:
    """Mean and, of two or more, the sample's standard deviation."""
    digits = 1 if scale == 100.0 else 3
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {np.std(values, ddof=1):.{digits}f}"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name")
@click.option("--data", type=click.Path(path_type=Path), help="The task's data.")
@click.option("-o", "--output", "folder", type=click.Path(path_type=Path), required=True, help="Where the runs lie.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]))
@click.option("--table", "only_table", is_flag=True, help="Train nothing; print what is there.")
def main(name: str, data: Path | None, folder: Path, device: str | None, only_table: bool) -> None:
    """Run a study and print its table."""
    try:
        study = load_study(name)
        if not only_table:
            if data is None:
                raise UsageError("--data is missing")
            run_study(study, data, folder, device)
        click.echo(f"{study.title}\n\n{table(study, folder)}")
    except EssmError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
