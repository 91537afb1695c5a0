"""One optimiser step: a batch in parts, each with its budget, summed over the ranks to the gradient of the whole batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from essm_deploy.errors import EssmError
from essm_train.budget import BudgetSampler
from essm_train.parallel import World, bare
from essm_train.settings import CommonSettings
from essm_train.tasks import Batch, Task


@dataclass(frozen=True)
class Part:
    """A micro-batch of this rank: its rows, its budget, the seed of its dropout, and its share of the step's loss."""

    batch: Batch
    budget: int
    seed: int | None = None
    share: float = 1.0


@dataclass(frozen=True)
class Method:
    """How a step computes its loss. precision: the dtype outside the spectral branch, or None for float32."""

    clip: float = 1.0
    distill: float = 0.0
    precision: torch.dtype | None = None


def plan_step(batch: Batch, step: int, settings: CommonSettings, sampler: BudgetSampler, world: World) -> list[Part]:
    """This rank's parts of a step: its rows of each of train.accumulate micro-batches. `batch`: its share, or all rows."""
    spans = world.share(settings.train.accumulate).spans(batch.rows)
    budgets = draw_budgets(settings.train.seed, step, len(spans), sampler, settings.budgets.draw_per)
    parts, built = [], 0
    for i, (first, end) in enumerate(spans):
        place, count = first if len(batch.targets) == batch.rows else built, max(1, end - first)
        mine = part_of(batch, place, place + count)
        seed = dropout_seed(settings.train.seed, step, i, world.rank)
        # fewer rows than ranks: take part in the sum with nothing
        parts.append(Part(mine, budgets[i], seed, mine.weight / batch.whole_weight if end > first else 0.0))
        built += count
    return parts


def optimise(
    model: nn.Module,
    task: Task,
    parts: Sequence[Part],
    optimizer: torch.optim.Optimizer,
    method: Method,
    world: World | None = None,
) -> tuple[float, float]:
    """Update the weights -> (loss, gradient norm). EssmError where either is not finite: nothing was updated then."""
    world = world or World()
    optimizer.zero_grad(set_to_none=True)
    total = torch.zeros((), device=parts[0].batch.inputs.device)
    for i, part in enumerate(parts):
        if part.seed is not None:
            torch.manual_seed(part.seed)
        with world.accumulating(model, last=i == len(parts) - 1):
            loss = part_loss(model, task, part, method) * part.share
            torch.autograd.backward(loss * world.size)  # ddp and fsdp take the mean over the ranks
        total += loss.detach()
    value, norm = world.total(total), clip_gradients(model, method.clip)
    if not (math.isfinite(value) and math.isfinite(norm)):
        advice = "lower optimizer.lr and start again with --no-resume"
        raise EssmError(f"training diverged: loss {value}, gradient norm {norm}; {advice}")
    optimizer.step()
    return value, norm


def clip_gradients(model: nn.Module, clip: float) -> float:
    """Scale the gradients down to a global norm of `clip` and return the norm that they had."""
    norm: Any = nn.utils.clip_grad_norm_(model.parameters(), clip)
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


def part_loss(model: nn.Module, task: Task, part: Part, method: Method) -> Tensor:
    """The task's loss of a part; of a sampled budget, mixed with the distance to the full budget's outputs."""
    batch, full = part.batch, task.model_config.k_max
    with autocast(batch.inputs.device, method.precision):
        outputs = model(batch.inputs, batch.lengths, part.budget)
        loss = task.loss(outputs, batch.targets)
        if method.distill == 0.0 or part.budget == full:
            return loss
        goal = teach(bare(model), batch, full)
        apart = distance(outputs, goal, getattr(task, "continuous", False))
        return (1.0 - method.distill) * loss + method.distill * apart


@torch.no_grad()
def teach(model: nn.Module, batch: Batch, budget: int) -> Tensor:
    """The model's own outputs at another budget, without dropout."""
    was_training = model.training
    model.eval()
    outputs: Tensor = model(batch.inputs, batch.lengths, budget)
    model.train(was_training)
    return outputs


def distance(outputs: Tensor, goal: Tensor, continuous: bool) -> Tensor:
    """KL(goal || outputs) of logits, a mean over rows and positions; the mean square of numbers."""
    if continuous:
        return F.mse_loss(outputs.float(), goal.float())
    ours, theirs = (F.log_softmax(x.float(), dim=-1).flatten(0, -2) for x in (outputs, goal))
    return F.kl_div(ours, theirs, reduction="batchmean", log_target=True)


def autocast(device: torch.device, precision: torch.dtype | None) -> AbstractContextManager[Any]:
    return nullcontext() if precision is None else torch.autocast(device.type, dtype=precision)


def precision_of(name: str, device: torch.device) -> torch.dtype | None:
    """What train.precision means on a device."""
    wanted = name == "bfloat16" or (name == "auto" and device.type == "cuda")
    return torch.bfloat16 if wanted else None


def part_of(batch: Batch, a: int, b: int) -> Batch:
    """Targets a to b of a batch; the rows of inputs go with them, two for each target where they are pairs."""
    each = len(batch.inputs) // max(1, len(batch.targets))
    lengths = None if batch.lengths is None else batch.lengths[a * each : b * each]
    weights = None if batch.weights is None else batch.weights[a:b]
    return Batch(batch.inputs[a * each : b * each], lengths, batch.targets[a:b], weights)


def draw_budgets(seed: int, step: int, parts: int, sampler: BudgetSampler, draw_per: str) -> list[int]:
    """The budget of each micro-batch: the same on every rank, and one for all of a step where it is drawn per step."""
    rng = np.random.default_rng([seed, 4, step])
    rng.integers(2**62)  # the dropout seed of the first part
    first = sampler.at(step, float(rng.random()))
    if draw_per == "step":
        return [first] * parts
    others = [sampler.at(step, float(np.random.default_rng([seed, 5, step, i]).random())) for i in range(1, parts)]
    return [first, *others]


def dropout_seed(seed: int, step: int, part: int, rank: int) -> int:
    """Of torch, for dropout and DropPath: another one for every micro-batch and rank."""
    where = [seed, 4, step] if part == rank == 0 else [seed, 4, step, part, rank]
    return int(np.random.default_rng(where).integers(2**62))
