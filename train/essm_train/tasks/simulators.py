"""The MuJoCo tasks of D4RL: how returns are normalised, and episodes played in gymnasium by a policy, several at a time.

    normalised return = 100 (return - random) / (expert - random)

with the references of D4RL (Fu et al. 2020), which were measured in older versions of the tasks: returns depend on the
version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from essm_deploy.errors import UnavailableError, UsageError

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Simulator:
    """A task. target: the return that the Decision Transformer is asked for (Chen et al. 2021, the higher of its two)."""

    environment: str
    random: float
    expert: float
    target: float

    def normalised(self, value: float) -> float:
        """A return in per cent of the way from the random policy to the expert."""
        return 100.0 * (value - self.random) / (self.expert - self.random)


SIMULATORS = {
    "halfcheetah": Simulator("HalfCheetah-v5", -280.178953, 12135.0, 12000.0),
    "hopper": Simulator("Hopper-v5", -20.272305, 3234.3, 3600.0),
    "walker2d": Simulator("Walker2d-v5", 1.629008, 4592.3, 5000.0),
}


class Policy(Protocol):
    """Plays some episodes in step."""

    def reset(self, count: int) -> None:
        """Begin `count` episodes."""

    def act(self, observations: Floats, rewards: Floats, playing: npt.NDArray[np.int64]) -> Floats:
        """Actions [n, a] for the episodes `playing` [n], which have just seen observations [n, s] and earned rewards [n]."""


@dataclass
class Episode:
    """What happened, step by step. ended: by the task itself, not by its time limit."""

    observations: list[Any]
    actions: list[Any]
    rewards: list[float]
    ended: bool = False

    @property
    def total(self) -> float:
        """The return."""
        return float(sum(self.rewards))


def simulator(name: str) -> Simulator:
    """The task of that name; UsageError for an unknown one."""
    if name not in SIMULATORS:
        raise UsageError(f"no task {name!r}; expected {', '.join(SIMULATORS)}")
    return SIMULATORS[name]


def make_environments(name: str, count: int) -> list[Any]:
    """That many simulators of the same task. UnavailableError where gymnasium or MuJoCo is missing."""
    try:
        import gymnasium
        import mujoco  # noqa: F401  # gymnasium's own error would name another package

        return [gymnasium.make(simulator(name).environment) for _ in range(count)]
    except ModuleNotFoundError as error:
        raise UnavailableError(f"rollouts need {error.name}: pip install 'essm-deploy[rollout]'") from error


def play(environments: Sequence[Any], policy: Policy, seeds: Sequence[int], keep: bool = False) -> list[Episode]:
    """One episode in each environment, each begun with its seed; all steps are kept where asked, otherwise only the rewards."""
    episodes = [Episode([], [], []) for _ in seeds]
    latest = [environment.reset(seed=seed)[0] for environment, seed in zip(environments, seeds, strict=True)]
    policy.reset(len(seeds))
    playing, rewards = np.arange(len(seeds)), np.zeros(len(seeds), np.float32)
    while len(playing):
        observations = np.stack([latest[i] for i in playing]).astype(np.float32)
        actions = policy.act(observations, rewards[playing], playing)
        over = []
        for row, i in enumerate(playing.tolist()):
            if keep:
                episodes[i].observations.append(observations[row])
                episodes[i].actions.append(actions[row])
            latest[i], reward, ended, cut, _ = environments[i].step(actions[row])
            rewards[i], episodes[i].ended = reward, bool(ended)
            episodes[i].rewards.append(float(reward))
            over.append(ended or cut)
        playing = playing[~np.array(over)]
    return episodes
