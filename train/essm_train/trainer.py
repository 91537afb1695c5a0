"""The training loop: budget dropout over one model, from seed to averaged weights.

    essm-train keywords --data-dir DIR -o CHECKPOINT

Every random draw (data order, augmentation, budget, dropout) is a function of the seed and the step, so on a CPU a run that
was killed and resumed ends with the same weights, to the bit, as one that was not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import nn

from essm_train.average import Average
from essm_train.budget import BudgetSampler
from essm_train.optim import learning_rate, make_optimizer, set_learning_rate
from essm_train.parallel import World, bare, gather_model, gather_optimizer, scatter_model, scatter_optimizer
from essm_train.progress import Progress, Silent
from essm_train.settings import CommonSettings
from essm_train.state import load_state, save_state
from essm_train.step import Method, Part, optimise, plan_step, precision_of
from essm_train.tasks import Task
from essm_train.throughput import peak_flops, step_flops


@dataclass(frozen=True)
class Run:
    """Where a run keeps its state, whether it may pick an older one up, and whether it writes TensorBoard events.

    init: the content hash of the checkpoint that the model began with, None for random weights.
    """

    folder: Path
    resume: bool = True
    tensorboard: bool = False
    init: str | None = None

    @property
    def state(self) -> Path:
        return self.folder / "state.pt"

    @property
    def log(self) -> Path:
        return self.folder / "log.jsonl"


@dataclass
class Training:
    """All that changes while training, and therefore all that a resumed run must get back."""

    model: nn.Module
    average: Average
    optimizer: torch.optim.Optimizer
    step: int = 0

    def save(self, path: Path, recipe: dict[str, Any], world: World | None = None) -> None:
        """Write everything to `path`, atomically; every rank must call it, and rank 0 writes."""
        parts = {
            "model": gather_model(self.model),
            "average": gather_model(self.average.model),
            "optimizer": gather_optimizer(self.optimizer),
        }
        if world is None or world.main:
            save_state(path, {"recipe": recipe, "step": self.step, **parts})

    def restore(self, run: Run, recipe: dict[str, Any], world: World) -> None:
        """Go on from the saved state, where there is one and it may be used; otherwise clear what an older run left."""
        state = load_state(run.state, recipe) if run.resume else None
        world.wait()
        if state is None:
            if world.main:
                run.state.unlink(missing_ok=True)
                run.log.unlink(missing_ok=True)
            return
        scatter_model(self.model, state["model"])
        scatter_model(self.average.model, state["average"])
        scatter_optimizer(self.optimizer, state["optimizer"])
        self.step = int(state["step"])


Trained = TypeVar("Trained", bound=nn.Module)


def train(model: Trained, task: Task, settings: CommonSettings, run: Run, world: World | None = None) -> Trained:
    """Train `model` in place and return the one to export: the average of its weights, where the recipe asks for one.

    It is called as model(inputs, lengths, budget). One that is no ES-SSM says what a step costs: step_flops(tokens).
    """
    world = world or World()
    steps = settings.train.epochs * task.steps_per_epoch
    recipe = settings.to_dict() | ({} if run.init is None else {"init": run.init})
    average = Average(model, settings.train.ema)
    called = compiled(world.wrap(model), settings)
    if world.size > 1 and world.strategy == "fsdp" and average.model is not model:
        world.wrap(average.model)
    training = Training(model, average, make_optimizer(model, settings.optimizer.lr, settings.optimizer.weight_decay))
    training.restore(run, recipe, world)
    progress = make_progress(run, training.step, steps, task.steps_per_epoch, world)
    loop = _Loop(called, task, settings, progress, world)
    model.train()
    for step in range(training.step, steps):
        loop.step(step, steps, training.optimizer)
        average.update(model)
        training.step = step + 1
        epoch, rest = divmod(training.step, task.steps_per_epoch)
        if rest == 0:
            progress.epoch(training.step, loop.peak)
        if rest == 0 and is_due(epoch, settings.train.eval_every, settings):
            progress.evaluated(epoch, task.metric, validate(average.model, task, settings.budgets.trained))
        if rest == 0 and is_due(epoch, settings.train.save_every, settings):
            training.save(run.state, recipe, world)
    progress.close()
    return cast(Trained, average.model)


class _Loop:
    """What every step of a run shares."""

    def __init__(self, model: nn.Module, task: Task, settings: CommonSettings, progress: Progress, world: World) -> None:
        self.model, self.task, self.settings, self.progress, self.world = model, task, settings, progress, world
        self.sampler = make_sampler(settings, task.steps_per_epoch)
        device = next(model.parameters()).device
        peak = peak_flops(device)
        self.peak = None if peak is None else peak * world.size
        precision = precision_of(settings.train.precision, device)
        self.method = Method(settings.optimizer.clip, settings.budgets.distill, precision)

    def step(self, step: int, steps: int, optimizer: torch.optim.Optimizer) -> None:
        lr = scheduled(self.settings, step, steps)
        set_learning_rate(optimizer, lr)
        batch = self.task.batch(step, self.world.share(self.settings.train.accumulate))
        parts = plan_step(batch, step, self.settings, self.sampler, self.world)
        loss, norm = optimise(self.model, self.task, parts, optimizer, self.method, self.world)
        flops = self.flops(parts, batch.tokens)
        self.progress.step(step, loss, norm, [part.budget for part in parts], batch.tokens, flops, lr)

    def flops(self, parts: Sequence[Part], tokens: int) -> float:
        own = getattr(bare(self.model), "step_flops", None)
        if own is not None:
            return float(own(tokens))
        return sum(step_flops(self.task.model_config, part.budget, tokens) for part in parts) / len(parts)


def compiled(model: nn.Module, settings: CommonSettings) -> nn.Module:
    """The model through torch.compile where the recipe asks for it: one graph for each budget, which is a constant in it."""
    if not settings.train.compile:
        return model
    import torch._dynamo

    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 4 * len(settings.budgets.trained))
    model.compile(dynamic=False)
    return model


def make_progress(run: Run, first: int, steps: int, steps_per_epoch: int, world: World) -> Progress:
    if not world.main:
        return Silent()
    return Progress(run.log, first, steps, steps_per_epoch, run.folder / "tensorboard" if run.tensorboard else None)


def is_due(epoch: int, every: int, settings: CommonSettings) -> bool:
    """Whether something that happens every so many epochs, and after the last one, happens now."""
    return epoch % every == 0 or epoch == settings.train.epochs


def validate(model: nn.Module, task: Task, budgets: tuple[int, ...]) -> dict[int, float]:
    """The metric on the validation split at the smallest, a middle and the full budget."""
    return {k: task.evaluate(model, "val", k) for k in sorted({budgets[0], budgets[len(budgets) // 2], budgets[-1]})}


def scheduled(settings: CommonSettings, step: int, steps: int) -> float:
    """The learning rate of a step of this recipe."""
    o = settings.optimizer
    return learning_rate(step, steps, round(o.warmup_fraction * steps), o.lr, o.floor)


def make_sampler(settings: CommonSettings, steps_per_epoch: int) -> BudgetSampler:
    b = settings.budgets
    return BudgetSampler(b.trained, b.warmup_epochs * steps_per_epoch, b.n_full, b.sampled)
