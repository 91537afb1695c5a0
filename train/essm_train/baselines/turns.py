"""What the training runs of a comparison take when the models take turns, step by step, on one machine.

The runs themselves were made one after the other, beside whatever else the machine did, so that their times compare badly. Here
every model makes a step, then every model makes the next, and a step is the median of the rounds: a machine that slows down
slows all of them. The elastic model's run is the sum over the budgets that its recipe draws.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from essm_deploy.spectral.bank import hankel_bank
from essm_train.average import Average
from essm_train.baselines.matching import Match
from essm_train.baselines.runs import Comparison, make_transformer
from essm_train.device import setup_device
from essm_train.job import make_model
from essm_train.optim import make_optimizer
from essm_train.settings import Settings
from essm_train.step import Method, Part, draw_budgets, optimise, precision_of
from essm_train.tasks import Task, keywords
from essm_train.trainer import make_sampler


def measure(comparison: Comparison, budgets: Sequence[int], data: Path, rounds: int, device: torch.device) -> dict[str, Any]:
    """Seconds of a whole run of steps, by the wall clock and by the process's own time: `elastic`, and each `transformer`."""
    recipe = comparison.elastic_recipe(comparison.study.seeds[0])
    setup_device(device, recipe.train.threads)
    task = keywords.build(recipe, data, device)
    steps = recipe.train.epochs * task.steps_per_epoch
    elastic = _elastic(task, recipe, device)
    fixed = {k: _transformer(task, comparison.match(k), recipe, device) for k in budgets}
    draws = drawn(recipe, steps, task.steps_per_epoch)
    turns = {**{("elastic", k): (elastic, k) for k in draws}, **{("transformer", k): (fixed[k], k) for k in budgets}}
    medians = take_turns(turns, task, rounds)
    return {
        "schema_version": "1.0",
        "rounds": rounds,
        "steps": steps,
        "threads": recipe.train.threads,
        "recipe": comparison.timed_recipe,
        "elastic": _total({k: medians["elastic", k] for k in draws}, draws),
        "transformer": {str(k): _total({k: medians["transformer", k]}, {k: steps}) for k in budgets},
    }


@dataclass(frozen=True)
class Stepper:
    """A model with all that one step of its training does."""

    model: nn.Module
    average: Average
    optimizer: torch.optim.Optimizer
    method: Method

    def step(self, task: Task, step: int, budget: int) -> tuple[float, float]:
        """Make a batch, train on it -> (wall-clock seconds, seconds of this process)."""
        start, used = time.perf_counter(), time.process_time()
        optimise(self.model, task, [Part(task.batch(step), budget)], self.optimizer, self.method)
        self.average.update(self.model)
        return time.perf_counter() - start, time.process_time() - used


def take_turns(
    turns: Mapping[tuple[str, int], tuple[Stepper, int]], task: Task, rounds: int
) -> dict[tuple[str, int], tuple[float, float]]:
    """Median seconds of each one's step, by the wall clock and of the process. A first round allocates and is not counted."""
    times: dict[tuple[str, int], list[tuple[float, float]]] = {name: [] for name in turns}
    for index in range(rounds + 1):
        for name, (stepper, budget) in turns.items():
            times[name].append(stepper.step(task, index, budget))
    columns = {name: list(zip(*found[1:], strict=True)) for name, found in times.items()}
    return {name: (statistics.median(wall), statistics.median(own)) for name, (wall, own) in columns.items()}


def drawn(recipe: Settings, steps: int, steps_per_epoch: int) -> Counter[int]:
    """How many of a run's steps train each budget."""
    sampler, seed = make_sampler(recipe, steps_per_epoch), recipe.train.seed
    return Counter(draw_budgets(seed, step, 1, sampler, recipe.budgets.draw_per)[0] for step in range(steps))


def _elastic(task: Task, recipe: Settings, device: torch.device) -> Stepper:
    bank = hankel_bank(task.model_config.seq_len, task.model_config.k_max, method="exact")
    return _stepper(make_model(task, bank, recipe, device), recipe, device)


def _transformer(task: Task, sizes: Match, recipe: Settings, device: torch.device) -> Stepper:
    return _stepper(make_transformer(sizes.config(task.model_config), sizes, recipe.train.seed).to(device), recipe, device)


def _stepper(model: nn.Module, recipe: Settings, device: torch.device) -> Stepper:
    """The rate is too small to move the weights: what is timed is the same in every round."""
    optimizer = make_optimizer(model.train(), 1e-6, recipe.optimizer.weight_decay)
    method = Method(recipe.optimizer.clip, 0.0, precision_of(recipe.train.precision, device))
    return Stepper(model, Average(model, recipe.train.ema), optimizer, method)


def _total(medians: Mapping[int, tuple[float, float]], counts: Mapping[int, int]) -> dict[str, Any]:
    """Seconds of a run whose steps with each budget are counted."""
    wall, own = (sum(counts[k] * medians[k][clock] for k in counts) for clock in (0, 1))
    steps = {str(k): [round(1000 * seconds, 3) for seconds in medians[k]] for k in sorted(counts)}
    return {"seconds": round(wall, 2), "own_seconds": round(own, 2), "step_ms": steps}
