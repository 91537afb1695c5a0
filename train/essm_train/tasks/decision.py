"""A decision transformer with ES-SSM layers: offline reinforcement learning as the next action of a recorded episode.

Twenty steps of return-to-go, observation and action are 60 tokens (decision_model). Data: D4RL's .hdf5, a Minari data set,
or an .npz with D4RL's arrays, which behaviour makes by rolling out trained policies (trajectories). Judged by normalised
return in gymnasium's MuJoCo, or where data.judge is "actions" by the mean square error of the actions of episodes that were
held out.

Run on data rolled out by behaviour, and on a data set that minari wrote. D4RL's own files could not be reached: their
loader was run on made-up files in their layout only. The tasks are gymnasium's -v5, not the -v2 of D4RL's tables: returns
are not comparable to the last digit.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from essm_deploy.errors import InputError, UsageError
from essm_train.model import ModelConfig
from essm_train.settings import CommonSettings
from essm_train.share import ALL, Share
from essm_train.tasks import Batch, Whole
from essm_train.tasks.classification import check_positive, sizes, smaller
from essm_train.tasks.decision_model import TOKENS, Conditioned, Front, actions_of, describe, fit_scaling
from essm_train.tasks.examples import Index
from essm_train.tasks.simulators import make_environments, play, simulator
from essm_train.tasks.trajectories import Trajectories, load_trajectories

JUDGES = ("rollouts", "actions")
HELD_OUT = 0.05  # of the episodes for "val" and for "test" each, where actions are judged
SEEDS = {"val": 10_000, "test": 20_000}  # of the first episode; no two splits begin an episode alike
TOGETHER = 25  # episodes that are played in step
EVAL_BATCH = 256


@dataclass(frozen=True)
class Data:
    task: str
    context: int
    judge: str
    target_return: float
    return_scale: float
    max_timestep: int
    interval: int
    val_episodes: int
    test_episodes: int


@dataclass(frozen=True)
class Recipe(CommonSettings):
    data: Data


class Decision:
    """The Task. An epoch of the trainer is data.interval steps; `samples` are episodes, or steps where actions are judged."""

    name = "decision"
    continuous = True  # outputs are numbers, not logits

    def __init__(self, recipe: Recipe, trajectories: Trajectories, device: torch.device) -> None:
        self.recipe, self.device, data = recipe, device, recipe.data
        self.simulator = simulator(data.task)
        self.parts = split(trajectories, data.judge, recipe.train.seed)
        train = self.parts["train"]
        self.scaling = fit_scaling(train.observations, train.actions.shape[1], data.return_scale, data.max_timestep)
        self.steps_per_epoch = data.interval
        model: dict[str, Any] = {"input_size": recipe.model.hidden_size, "num_labels": self.scaling.outputs, "pooled": False}
        self.model_config = ModelConfig(seq_len=TOKENS * data.context, **model, **sizes(recipe))
        self._windows = {name: Windows(part, self) for name, part in self.parts.items()}

    @property
    def metric(self) -> str:
        return "normalized_return" if self.recipe.data.judge == "rollouts" else "action_mse"

    @property
    def direction(self) -> str:
        return "maximize" if self.recipe.data.judge == "rollouts" else "minimize"

    @property
    def target(self) -> float:
        """The return that the policy is asked for."""
        return self.recipe.data.target_return or self.simulator.target

    def front(self) -> nn.Module:
        """See essm_train.tasks."""
        d = self.recipe.model.hidden_size
        return Front(self.scaling.observations, self.scaling.actions, d, self.scaling.max_timestep)

    def batch(self, step: int, share: Share = ALL) -> Batch:
        """Windows that begin at steps drawn uniformly: a longer episode is drawn as much more often."""
        rng = np.random.default_rng([self.recipe.train.seed, 3, step])
        rows, windows = self.recipe.train.batch_size, self._windows["train"]
        starts = rng.integers(0, len(self.parts["train"].rewards), rows)
        whole = Whole(rows, int(windows.known(starts).sum()))
        return dataclasses.replace(windows(starts[share.rows(rows)]), whole=whole)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean square error of the actions over the steps that are there; targets [B, T, a + 1] end with a mask."""
        wanted, mask = targets[..., :-1], targets[..., -1:]
        squares = (actions_of(outputs.float(), wanted.shape[-1]) - wanted) ** 2 * mask
        return squares.sum() / (mask.sum() * wanted.shape[-1])

    def evaluate(self, model: nn.Module, split: str, budget: int) -> float:
        """Mean normalised return of the split's episodes, or the error of its actions."""
        was_training = model.training
        model.eval()
        value = (
            self._returns(model, split, budget) if self.recipe.data.judge == "rollouts" else self._error(model, split, budget)
        )
        model.train(was_training)
        return value

    def samples(self, split: str) -> int:
        data = self.recipe.data
        if data.judge == "actions":
            return len(self.parts[split].rewards)
        return data.val_episodes if split == "val" else data.test_episodes

    def config_fields(self) -> dict[str, Any]:
        policy = describe(self.scaling, self.simulator.environment, self.recipe.data.context, self.target)
        return {"task": "sequence-regression", "num_outputs": self.scaling.outputs, "policy": policy}

    def source(self) -> str:
        train, normalised = self.parts["train"], self.simulator.normalised
        returns = train.returns()
        spread = f"mean {normalised(returns.mean()):.1f}, best {normalised(returns.max()):.1f}"
        return (
            f"{len(train)} recorded episodes of {self.simulator.environment}, {len(train.rewards)} steps; their normalised "
            f"return: {spread}. Judged by {self.recipe.data.judge}."
        )

    def _returns(self, model: nn.Module, split: str, budget: int) -> float:
        count, totals = self.samples(split), []
        environments = make_environments(self.recipe.data.task, min(count, TOGETHER))
        policy = Conditioned(model, budget, self.scaling, self.recipe.data.context, self.target, self.device)
        for start in range(0, count, TOGETHER):
            seeds = range(SEEDS[split] + start, SEEDS[split] + min(count, start + TOGETHER))
            totals += [episode.total for episode in play(environments[: len(seeds)], policy, seeds)]
        return self.simulator.normalised(float(np.mean(totals)))

    @torch.no_grad()
    def _error(self, model: nn.Module, split: str, budget: int) -> float:
        """Over windows that lie side by side, so that each step counts once."""
        part, context = self.parts[split], self.recipe.data.context
        starts = np.concatenate([np.arange(a, b, context) for a, b in zip(part.edges, part.edges[1:], strict=False)])
        total = count = 0.0
        for first in range(0, len(starts), EVAL_BATCH):
            batch = self._windows[split](starts[first : first + EVAL_BATCH])
            known = float(batch.targets[..., -1].sum())
            total += known * float(self.loss(model(batch.inputs, None, budget), batch.targets))
            count += known
        return total / count


class Windows:
    """Windows of a split's episodes, which end with the episode and are filled up with zeros."""

    def __init__(self, part: Trajectories, task: Decision) -> None:
        self.part, self.scaling, self.device = part, task.scaling, task.device
        self.context = task.recipe.data.context
        self.returns = part.returns_to_go() / np.float32(self.scaling.returns)

    def known(self, starts: Index) -> Index:
        """How many steps [n] of each window its episode has."""
        end = self.part.edges[np.searchsorted(self.part.edges, starts, side="right")]
        steps: Index = np.minimum(self.context, end - starts)
        return steps

    def __call__(self, starts: Index) -> Batch:
        """Inputs [n, context, width], targets [n, context, a + 1], and how many steps of each are there."""
        part, offsets = self.part, np.arange(self.context)
        episode = np.searchsorted(part.edges, starts, side="right") - 1
        rows = starts[:, None] + offsets
        there = rows < part.edges[episode + 1][:, None]
        rows = np.minimum(rows, part.edges[episode + 1][:, None] - 1)
        when = np.minimum(rows - part.edges[episode][:, None], self.scaling.max_timestep - 1)
        observations = self.scaling.scaled(part.observations[rows])
        columns = [self.returns[rows][..., None], observations, part.actions[rows], when[..., None]]
        inputs = np.concatenate(columns, axis=2).astype(np.float32) * there[..., None]
        targets = np.concatenate([part.actions[rows], there[..., None]], axis=2).astype(np.float32)
        tensors = (torch.from_numpy(array).to(self.device) for array in (inputs.astype(np.float32), targets, there.sum(axis=1)))
        windows, wanted, weights = tensors
        return Batch(windows, None, wanted, weights)


def split(trajectories: Trajectories, judge: str, seed: int) -> dict[str, Trajectories]:
    """Whole episodes: all for training where rollouts judge, otherwise a twentieth held out for each of the other splits."""
    if judge == "rollouts":
        return {"train": trajectories}
    order = np.random.default_rng([seed, 9]).permutation(len(trajectories))
    held = max(1, round(HELD_OUT * len(order)))
    if len(order) < 3:
        raise InputError(f"{len(order)} episodes; expected 3 or more, so that each split has one")
    parts = {"train": order[2 * held :], "val": order[:held], "test": order[held : 2 * held]}
    return {name: trajectories.take(np.sort(index)) for name, index in parts.items()}


def build(recipe: Recipe, data: Path, device: torch.device) -> Decision:
    """The task on these episodes. UnavailableError at once, and not after the first epoch, where rollouts cannot be played."""
    if recipe.data.judge == "rollouts":
        size = make_environments(recipe.data.task, 1)[0].observation_space.shape[0]
    trajectories = load_trajectories(data)
    if recipe.data.judge == "rollouts" and trajectories.observations.shape[1] != size:
        found = trajectories.observations.shape[1]
        raise InputError(f"{data}: observations have {found} numbers; expected {size} of {recipe.data.task} (data.task)")
    return Decision(recipe, trajectories, device)


def check(recipe: Recipe) -> None:
    """UsageError where a key of [data] makes no sense."""
    check_positive(recipe, "context", "max_timestep", "interval", "val_episodes", "test_episodes")
    simulator(recipe.data.task)
    if recipe.data.judge not in JUDGES:
        raise UsageError(f"data.judge is {recipe.data.judge!r}; expected {' or '.join(JUDGES)}")
    if recipe.data.return_scale <= 0.0 or recipe.data.target_return < 0.0:
        raise UsageError("data.return_scale must be above 0, and data.target_return 0 (the task's own) or above")


def smoke(recipe: Recipe) -> Recipe:
    """Windows of four steps, judged without a simulator."""
    small: Recipe = smaller(recipe, context=4, judge="actions", interval=2, max_timestep=64)
    return small


def smoke_data(folder: Path) -> Path:
    """Six episodes of a made-up task of Hopper's sizes, in D4RL's arrays."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, steps = np.random.default_rng(0), 6 * 12
    ends = np.arange(1, steps + 1) % 12 == 0
    arrays = {
        "observations": rng.standard_normal((steps, 11)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (steps, 3)).astype(np.float32),
        "rewards": rng.random(steps).astype(np.float32),
        "terminals": ends & (np.arange(steps) < steps // 2),
        "timeouts": ends & (np.arange(steps) >= steps // 2),
    }
    np.savez(folder / "hopper.npz", **arrays)
    return folder / "hopper.npz"
