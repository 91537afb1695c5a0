"""Offline data by rolling out trained policies: D4RL's tiers from an npz file of actor networks.

    python -m essm_train.tasks.behaviour POLICIES.npz hopper medium-expert DATA.npz --steps 200000

    expert          the policy of the highest return
    medium          one of about a third of it
    medium-expert   half the steps each
    replay          every policy of the task in turn, with more or less noise: stands in for a replay buffer
    random          actions drawn uniformly

The npz file holds <algorithm>-<Task>/{w0, b0, w1, b1, w2, b2} (and obs_mean, obs_var where observations are normalised);
beside it lies a .json of the same name with hidden (relu or tanh), out (tanh or clip[-1,1]) and clip_obs. Noise on the
actions keeps the data from being one path over and over. The output has D4RL's arrays, which trajectories.load_trajectories
reads.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from essm_deploy.errors import EssmError, InputError, UsageError
from essm_train.tasks.reading import load_arrays, read_text_file
from essm_train.tasks.simulators import SIMULATORS, Episode, make_environments, play, simulator

Floats = npt.NDArray[np.float32]
TASKS = {"HalfCheetah": "halfcheetah", "Hopper": "hopper", "Walker2d": "walker2d"}
TIERS = ("expert", "medium", "medium-expert", "replay", "random")
MEDIUM = 100.0 / 3.0  # per cent: what "medium" should come near to
NOISE = 0.1  # standard deviation on actions in [-1, 1]
REPLAY_NOISE = 0.5  # at most
TOGETHER = 8  # episodes that are played in step
LAYERS = ("w0", "b0", "w1", "b1", "w2", "b2")


@dataclass
class Actor:
    """A network of two hidden layers: observations [n, s] -> actions [n, a] in [-1, 1], with noise of std `noise`."""

    layers: dict[str, npt.NDArray[Any]]
    hidden: str
    out: str
    clip_obs: float | None
    rng: np.random.Generator
    noise: float = 0.0

    def reset(self, count: int) -> None:
        """Nothing to forget: the network has no memory."""

    def act(self, observations: Floats, rewards: Floats, playing: npt.NDArray[np.int64]) -> Floats:
        """See simulators.Policy."""
        del rewards, playing
        actions = self.mean(observations)
        return np.clip(actions + self.noise * self.rng.standard_normal(actions.shape), -1.0, 1.0).astype(np.float32)

    def mean(self, observations: Floats) -> Floats:
        """The actions without noise."""
        w, x = self.layers, observations.astype(np.float32)
        if "obs_mean" in w:
            scaled = (x - w["obs_mean"]) / np.sqrt(w["obs_var"] + 1e-8)
            x = np.clip(scaled, -(self.clip_obs or np.inf), self.clip_obs or np.inf).astype(np.float32)
        for i in (0, 1):
            x = x @ w[f"w{i}"].T + w[f"b{i}"]
            x = np.maximum(x, 0.0) if self.hidden == "relu" else np.tanh(x)
        x = x @ w["w2"].T + w["b2"]
        actions: Floats = np.tanh(x) if self.out == "tanh" else np.clip(x, -1.0, 1.0)
        return actions


@dataclass
class Chance:
    """Actions drawn uniformly on [-1, 1]."""

    size: int
    rng: np.random.Generator

    def reset(self, count: int) -> None:
        """Nothing to forget."""

    def act(self, observations: Floats, rewards: Floats, playing: npt.NDArray[np.int64]) -> Floats:
        """See simulators.Policy."""
        return self.rng.uniform(-1.0, 1.0, (len(playing), self.size)).astype(np.float32)


def load_actors(path: Path, task: str, rng: np.random.Generator) -> dict[str, Actor]:
    """The actors of a task by algorithm. InputError or UsageError for files of another layout."""
    described = _description(path.with_suffix(".json"))
    actors = {}
    for name, options in described.items():
        algorithm, _, suffix = name.partition("-")
        if TASKS.get(suffix) == task:
            normalised = options.get("clip_obs") is not None
            wanted = (*LAYERS, "obs_mean", "obs_var") if normalised else LAYERS
            arrays = load_arrays(path, tuple(f"{name}/{part}" for part in wanted), "networks of two hidden layers")
            layers = {key.rsplit("/", 1)[1]: value for key, value in arrays.items()}
            actors[algorithm] = Actor(layers, options["hidden"], options["out"], options["clip_obs"], rng)
    if not actors:
        raise UsageError(f"{path}: holds no policy of {task!r}; there are {', '.join(described)}")
    return actors


def _description(path: Path) -> dict[str, dict[str, Any]]:
    try:
        found = json.loads(read_text_file(path, "a description of each policy", 2**20))
        for options in found.values():
            if options["hidden"] not in ("relu", "tanh") or options["out"] not in ("tanh", "clip[-1,1]"):
                raise InputError(f"{path}: {options}; expected hidden relu or tanh, and out tanh or clip[-1,1]")
            options["clip_obs"] = None if options["clip_obs"] is None else float(options["clip_obs"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not a description of policies ({type(error).__name__}: {error})") from error
    return dict(found)


def collect(path: Path, task: str, tier: str, steps: int, seed: int) -> dict[str, npt.NDArray[Any]]:
    """At least `steps` steps of whole episodes, as D4RL's arrays."""
    if tier not in TIERS:
        raise UsageError(f"no tier {tier!r}; expected {', '.join(TIERS)}")
    rng = np.random.default_rng([seed, 8])
    actors = load_actors(path, task, rng)
    environments = make_environments(task, TOGETHER)
    if tier == "random":
        first = next(iter(actors.values()))
        return as_arrays(_until(environments, Chance(len(first.layers["b2"]), rng), steps, rng))
    if tier == "replay":
        return as_arrays(_replay(environments, actors, steps, rng))
    ranked = rank(environments, actors, task)
    best, middle = max(ranked, key=lambda a: ranked[a]), min(ranked, key=lambda a: abs(ranked[a] - MEDIUM))
    names = {"expert": (best,), "medium": (middle,), "medium-expert": (middle, best)}[tier]
    print(f"{task} {tier}: {', '.join(f'{n} {ranked[n]:.1f}' for n in names)} per cent of the expert", file=sys.stderr)
    episodes: list[Episode] = []
    for name in names:
        actors[name].noise = NOISE
        episodes += _until(environments, actors[name], steps // len(names), rng)
    return as_arrays(episodes)


def rank(environments: list[Any], actors: dict[str, Actor], task: str) -> dict[str, float]:
    """Mean normalised return of a few episodes of each, without noise."""
    seeds = list(range(len(environments)))
    totals = {name: np.mean([e.total for e in play(environments, actor, seeds)]) for name, actor in actors.items()}
    return {name: simulator(task).normalised(float(total)) for name, total in totals.items()}


def _until(environments: list[Any], policy: Any, steps: int, rng: np.random.Generator) -> list[Episode]:
    episodes: list[Episode] = []
    while sum(len(e.rewards) for e in episodes) < steps:
        seeds = [int(s) for s in rng.integers(0, 2**31, len(environments))]
        episodes += play(environments, policy, seeds, keep=True)
    return episodes


def _replay(environments: list[Any], actors: dict[str, Actor], steps: int, rng: np.random.Generator) -> list[Episode]:
    episodes: list[Episode] = []
    while sum(len(e.rewards) for e in episodes) < steps:
        for actor in actors.values():
            actor.noise = float(rng.uniform(0.0, REPLAY_NOISE))
            episodes += _until(environments, actor, 1, rng)
    return episodes


def as_arrays(episodes: list[Episode]) -> dict[str, npt.NDArray[Any]]:
    """The names and types of a D4RL file."""
    ends = np.cumsum([len(e.rewards) for e in episodes]) - 1
    flags = np.zeros((2, int(ends[-1]) + 1), bool)
    for end, episode in zip(ends, episodes, strict=True):
        flags[0 if episode.ended else 1, end] = True
    return {
        "observations": np.concatenate([np.stack(e.observations) for e in episodes]).astype(np.float32),
        "actions": np.concatenate([np.stack(e.actions) for e in episodes]).astype(np.float32),
        "rewards": np.concatenate([np.array(e.rewards, np.float32) for e in episodes]),
        "terminals": flags[0],
        "timeouts": flags[1],
    }


def main(arguments: list[str] | None = None) -> int:
    """The command in the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m essm_train.tasks.behaviour", description="Roll out trained policies.")
    parser.add_argument("policies", type=Path)
    parser.add_argument("task", choices=sorted(SIMULATORS))
    parser.add_argument("tier", choices=TIERS)
    parser.add_argument("output", type=Path)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        arrays = collect(options.policies, options.task, options.tier, options.steps, options.seed)
    except EssmError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    np.savez_compressed(options.output, **arrays)  # type: ignore[arg-type]
    episodes = int(arrays["timeouts"].sum() + arrays["terminals"].sum())
    print(f"{options.output}: {len(arrays['rewards'])} steps, {episodes} episodes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
