"""The training loop: budget dropout over one model, from seed to averaged weights.

    essm-train keywords --data-dir DIR -o CHECKPOINT

Every random draw (data order, augmentation, budget, dropout) is a function of the seed and the step, so on a CPU a run that
was killed and resumed ends with the same weights, to the bit, as one that was not.
"""

from __future__ import annotations

import copy
import ctypes
import json
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from essm_deploy.errors import EssmError
from essm_train.budget import BudgetSampler
from essm_train.model import EsSsm
from essm_train.optim import learning_rate, make_optimizer, set_learning_rate
from essm_train.settings import CommonSettings
from essm_train.state import load_state, save_state
from essm_train.tasks import Batch, Task


@dataclass(frozen=True)
class Run:
    """Where a run keeps its state, and whether it may pick an older one up."""

    folder: Path
    resume: bool = True

    @property
    def state(self) -> Path:
        return self.folder / "state.pt"

    @property
    def log(self) -> Path:
        return self.folder / "log.jsonl"


class Average:
    """Exponential average of the weights, which starts as a copy of them. Decay 0: the model itself."""

    def __init__(self, model: EsSsm, decay: float) -> None:
        self.decay = decay
        self.model = model
        if decay > 0.0:
            self.model = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model: EsSsm) -> None:
        """Move towards the model's weights by 1 - decay."""
        if self.model is not model:
            torch._foreach_lerp_(list(self.model.parameters()), list(model.parameters()), 1.0 - self.decay)

    def state_dict(self) -> dict[str, Any]:
        return self.model.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state)


@dataclass
class Training:
    """All that changes while training, and therefore all that a resumed run must get back."""

    model: EsSsm
    average: Average
    optimizer: torch.optim.Optimizer
    step: int = 0

    def save(self, path: Path, recipe: dict[str, Any]) -> None:
        """Write everything to `path`, atomically."""
        parts = {name: getattr(self, name).state_dict() for name in ("model", "average", "optimizer")}
        save_state(path, {"recipe": recipe, "step": self.step, **parts})

    def restore(self, run: Run, recipe: dict[str, Any]) -> None:
        """Go on from the saved state, where there is one and it may be used; otherwise clear what an older run left."""
        state = load_state(run.state, recipe) if run.resume else None
        if state is None:
            run.state.unlink(missing_ok=True)
            run.log.unlink(missing_ok=True)
            return
        for name in ("model", "average", "optimizer"):
            getattr(self, name).load_state_dict(state[name])
        self.step = int(state["step"])


def train(model: EsSsm, task: Task, settings: CommonSettings, run: Run) -> EsSsm:
    """Train `model` in place and return the one to export: the average of its weights, where the recipe asks for one."""
    steps, recipe = settings.train.epochs * task.steps_per_epoch, settings.to_dict()
    optimizer = make_optimizer(model, settings.optimizer.lr, settings.optimizer.weight_decay)
    training = Training(model, Average(model, settings.train.ema), optimizer)
    training.restore(run, recipe)
    sampler = make_sampler(settings, task.steps_per_epoch)
    progress = Progress(run.log, training.step, steps, task.steps_per_epoch)
    model.train()
    for step in range(training.step, steps):
        budget = seed_step(settings.train.seed, step, sampler)
        set_learning_rate(optimizer, scheduled(settings, step, steps))
        loss, norm = optimise(model, task, task.batch(step), budget, optimizer, settings.optimizer.clip)
        training.average.update(model)
        training.step = step + 1
        progress.step(step, loss, norm, budget)
        epoch, rest = divmod(training.step, task.steps_per_epoch)
        if rest == 0 and is_due(epoch, settings.train.eval_every, settings):
            progress.evaluated(epoch, task.metric, validate(training.average.model, task, settings.budgets.trained))
        if rest == 0 and is_due(epoch, settings.train.save_every, settings):
            training.save(run.state, recipe)
    return training.average.model


def is_due(epoch: int, every: int, settings: CommonSettings) -> bool:
    """Whether something that happens every so many epochs, and after the last one, happens now."""
    return epoch % every == 0 or epoch == settings.train.epochs


def validate(model: EsSsm, task: Task, budgets: tuple[int, ...]) -> dict[int, float]:
    """The metric on the validation split at the smallest, a middle and the full budget."""
    return {k: task.evaluate(model, "val", k) for k in sorted({budgets[0], budgets[len(budgets) // 2], budgets[-1]})}


def optimise(
    model: EsSsm, task: Task, batch: Batch, budget: int, optimizer: torch.optim.Optimizer, clip: float
) -> tuple[float, float]:
    """One optimiser step -> (loss, gradient norm). EssmError where either is not finite: nothing was updated then."""
    device = batch.inputs.device
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
        logits = model(batch.inputs, batch.lengths, budget)
        loss = task.loss(logits, batch.targets)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    norm = float(nn.utils.clip_grad_norm_(model.parameters(), clip))
    value = float(loss.detach())
    if not (math.isfinite(value) and math.isfinite(norm)):
        advice = "lower optimizer.lr and start again with --no-resume"
        raise EssmError(f"training diverged: loss {value}, gradient norm {norm}; {advice}")
    optimizer.step()
    return value, norm


def seed_step(seed: int, step: int, sampler: BudgetSampler) -> int:
    """Seed torch (dropout, DropPath) for this step, and draw its budget."""
    rng = np.random.default_rng([seed, 4, step])
    torch.manual_seed(int(rng.integers(2**62)))
    return sampler.at(step, float(rng.random()))


def scheduled(settings: CommonSettings, step: int, steps: int) -> float:
    """The learning rate of a step of this recipe."""
    o = settings.optimizer
    return learning_rate(step, steps, round(o.warmup_fraction * steps), o.lr, o.floor)


def make_sampler(settings: CommonSettings, steps_per_epoch: int) -> BudgetSampler:
    b = settings.budgets
    return BudgetSampler(b.trained, b.warmup_epochs * steps_per_epoch, b.n_full)


class Progress:
    """Lines on stderr for a person, JSON Lines in the log for a program."""

    def __init__(self, log: Path, first: int, steps: int, steps_per_epoch: int) -> None:
        self.log, self.first, self.steps, self.per_epoch = log, first, steps, steps_per_epoch
        self.start = time.monotonic()
        self.losses: list[float] = []
        log.parent.mkdir(parents=True, exist_ok=True)
        if first:
            self.say(f"resuming after step {first} of {steps}")

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def record(self, **entry: Any) -> None:
        with self.log.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(entry) + "\n")

    def step(self, step: int, loss: float, norm: float, budget: int) -> None:
        self.losses.append(loss)
        self.record(step=step, loss=round(loss, 5), gradient_norm=round(norm, 4), budget=budget)
        if (step + 1) % self.per_epoch == 0:
            spent = time.monotonic() - self.start
            left = spent / (step + 1 - self.first) * (self.steps - step - 1)
            mean = sum(self.losses) / len(self.losses)
            epochs = f"epoch {(step + 1) // self.per_epoch}/{self.steps // self.per_epoch}"
            self.say(f"{epochs}  loss {mean:.4f}  {spent:.0f} s, about {left:.0f} s left")
            self.losses = []

    def evaluated(self, epoch: int, metric: str, values: dict[int, float]) -> None:
        self.record(epoch=epoch, metric=metric, split="val", values={str(k): round(v, 5) for k, v in values.items()})
        shown = "  ".join(f"K={k} {value:.4f}" for k, value in values.items())
        self.say(f"epoch {epoch}  validation {metric}  {shown}")


def setup_device(settings: CommonSettings, device: torch.device) -> None:
    """Threads and memory of a CPU run; on a GPU, float32 stays float32."""
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        return
    torch.set_num_threads(settings.train.threads)
    keep_freed_memory()


def keep_freed_memory() -> None:
    """Tell glibc to keep large freed blocks: mapping activations anew in every step costs a third of the time."""
    m_mmap_max, m_trim_threshold, m_top_pad = -4, -1, -2
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # another C library: slower, not wrong
    mallopt(m_mmap_max, 0)
    mallopt(m_trim_threshold, 2**31 - 1)
    mallopt(m_top_pad, 1 << 26)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """The model's state dict on the CPU."""
    return {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
