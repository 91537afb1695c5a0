"""The decision transformer's two ends (Chen et al. 2021): a window of steps becomes tokens, and outputs become actions.

A window is [B, context, 1 + s + a + 1]: return-to-go, observation (both scaled), action, timestep. Each step gives three
tokens:

    return, observation, action  ->  Linear + timestep embedding, then one LayerNorm over all        [B, 3 context, d]

The action is read at the observation's token, before the action itself is seen. Windows that are not full are filled up
behind, and causality keeps what is there out of what came before: there is no mask, and a device may run a shorter
sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from essm_train.tasks.simulators import Floats

TOKENS = 3  # a step


@dataclass(frozen=True)
class Scaling:
    """What puts a task's numbers near to 1, and where each lies in a window."""

    mean: Floats
    std: Floats
    actions: int
    returns: float
    max_timestep: int

    @property
    def observations(self) -> int:
        return len(self.mean)

    @property
    def width(self) -> int:
        """Numbers a step."""
        return self.observations + self.actions + 2

    @property
    def outputs(self) -> int:
        """Of the head: an action, then the next observation and return, which the original has but does not train."""
        return self.actions + self.observations + 1

    def scaled(self, observations: Floats) -> Floats:
        """Observations with mean 0 and standard deviation 1 over the training data."""
        return ((observations - self.mean) / self.std).astype(np.float32)

    def action_columns(self) -> slice:
        """Where a window holds the action."""
        return slice(1 + self.observations, 1 + self.observations + self.actions)


def fit_scaling(observations: Floats, actions: int, returns: float, max_timestep: int) -> Scaling:
    """From the training data; a component that never changes keeps a small deviation, as in the original."""
    mean, std = observations.mean(axis=0, dtype=np.float64), observations.std(axis=0, dtype=np.float64) + 1e-6
    return Scaling(mean.astype(np.float32), std.astype(np.float32), actions, returns, max_timestep)


class Front(nn.Module):
    """Windows [B, T, width] -> tokens [B, 3 T, d]."""

    def __init__(self, observations: int, actions: int, hidden_size: int, max_timestep: int) -> None:
        super().__init__()
        self.split = [1, observations, actions, 1]
        self.returns = nn.Linear(1, hidden_size)
        self.observations = nn.Linear(observations, hidden_size)
        self.actions = nn.Linear(actions, hidden_size)
        self.timestep = nn.Embedding(max_timestep, hidden_size)
        self.norm = nn.LayerNorm(hidden_size)

    def forward(self, windows: Tensor) -> Tensor:
        returns, observations, actions, timestep = torch.split(windows, self.split, dim=-1)
        when = self.timestep(timestep[..., 0].long())
        embedded = (self.returns(returns), self.observations(observations), self.actions(actions))
        tokens: Tensor = self.norm(torch.stack([part + when for part in embedded], dim=2).flatten(1, 2))
        return tokens


def actions_of(outputs: Tensor, actions: int) -> Tensor:
    """Actions [B, T, a] in (-1, 1) from the outputs [B, 3 T, outputs], which are read at the observations' tokens."""
    return torch.tanh(outputs[:, 1::TOKENS, :actions])


class Conditioned:
    """The policy that a model is, asked for a return. See simulators.Policy; all episodes begin together."""

    def __init__(
        self, model: nn.Module, budget: int, scaling: Scaling, context: int, target: float, device: torch.device
    ) -> None:
        self.model, self.budget, self.scaling, self.device = model, budget, scaling, device
        self.context, self.target, self.step = context, target, 0
        self.windows = np.zeros((0, context, scaling.width), np.float32)
        self.wanted = np.zeros(0, np.float32)

    def reset(self, count: int) -> None:
        """Empty windows, and the whole return still to come."""
        self.step = 0
        self.windows = np.zeros((count, self.context, self.scaling.width), np.float32)
        self.wanted = np.full(count, self.target / self.scaling.returns, np.float32)

    @torch.no_grad()
    def act(self, observations: Floats, rewards: Floats, playing: npt.NDArray[np.int64]) -> Floats:
        """What the model would do now, to come to the rest of the return."""
        place = min(self.step, self.context - 1)
        if self.step >= self.context:
            self.windows[playing] = np.roll(self.windows[playing], -1, axis=1)
        self.wanted[playing] -= rewards / np.float32(self.scaling.returns)
        self.windows[playing, place] = self._seen(observations, self.wanted[playing])
        outputs = self.model(torch.from_numpy(self.windows[playing]).to(self.device), None, self.budget)
        actions: Floats = actions_of(outputs.float(), self.scaling.actions)[:, place].cpu().numpy()
        self.windows[playing, place, self.scaling.action_columns()] = actions
        self.step += 1
        return actions

    def _seen(self, observations: Floats, wanted: Floats) -> Floats:
        """A step whose action is not known yet."""
        row = np.zeros((len(observations), self.scaling.width), np.float32)
        row[:, 0], row[:, -1] = wanted, min(self.step, self.scaling.max_timestep - 1)
        row[:, 1 : 1 + self.scaling.observations] = self.scaling.scaled(observations)
        return row


def describe(scaling: Scaling, environment: str, context: int, target: float) -> dict[str, Any]:
    """What an app needs beside front.safetensors to run the policy, for config.json."""
    return {
        "kind": "decision-transformer",
        "environment": environment,
        "context": context,
        "observation_size": scaling.observations,
        "action_size": scaling.actions,
        "observation_mean": [float(x) for x in scaling.mean],
        "observation_std": [float(x) for x in scaling.std],
        "return_scale": scaling.returns,
        "target_return": target,
        "max_timestep": scaling.max_timestep,
        "output": "tanh of the first action_size outputs at token 3 t + 1 is the action of step t",
    }
