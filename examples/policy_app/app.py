"""Walk with a policy's engines in gymnasium's MuJoCo, at every budget of a bundle: budget, mean return, engine.

python examples/policy_app/app.py CHECKPOINT out/hopper 5

The engine takes tokens. What makes them of a window of steps is in the checkpoint: `policy` in config.json, and the few tensors
of front.safetensors. Needs gymnasium[mujoco] and safetensors beside the runtime.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from essm_deploy import runtime
from essm_deploy.errors import EssmError


class Policy:
    """Twenty steps of return-to-go, observation and action become 60 tokens; the action is read at the last observation."""

    def __init__(self, checkpoint: Path, model: runtime.Model) -> None:
        self.model, self.front = model, load_file(checkpoint / "front.safetensors")
        self.policy: dict[str, Any] = json.loads((checkpoint / "config.json").read_text())["policy"]
        self.mean, self.std = (np.array(self.policy[f"observation_{name}"], np.float32) for name in ("mean", "std"))
        self.steps: list[list[np.ndarray]] = []
        self.wanted = self.policy["target_return"] / self.policy["return_scale"]

    def act(self, observation: np.ndarray, reward: float) -> np.ndarray:
        """The next action, after an observation and the reward that led to it (0 at first)."""
        self.wanted -= reward / self.policy["return_scale"]
        seen = ((observation - self.mean) / self.std).astype(np.float32)
        self.steps.append([np.array([self.wanted], np.float32), seen, np.zeros(self.policy["action_size"], np.float32)])
        window = self.steps[-self.policy["context"] :]
        outputs = self.model.run(features=self.tokens(window)[None])["logits"][0]
        self.steps[-1][2] = np.tanh(outputs[3 * len(window) - 2, : self.policy["action_size"]])
        return self.steps[-1][2]

    def tokens(self, window: list[list[np.ndarray]]) -> np.ndarray:
        """[3 steps, d]: each step's three parts through a Linear of their own, plus the timestep, normalised."""
        first = len(self.steps) - len(window)
        when = self.front["timestep.weight"][np.minimum(first + np.arange(len(window)), self.policy["max_timestep"] - 1)]
        parts = [
            np.stack([step[i] for step in window]) @ self.front[f"{name}.weight"].T + self.front[f"{name}.bias"] + when
            for i, name in enumerate(("returns", "observations", "actions"))
        ]
        x = np.stack(parts, axis=1).reshape(3 * len(window), -1)
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return (x * self.front["norm.weight"] + self.front["norm.bias"]).astype(np.float32)


def walk(checkpoint: Path, model: runtime.Model, seed: int) -> float:
    """The return of one episode."""
    import gymnasium

    policy, total, over = Policy(checkpoint, model), 0.0, False
    environment = gymnasium.make(policy.policy["environment"])
    observation, reward = environment.reset(seed=seed)[0], 0.0
    while not over:
        observation, reward, ended, cut, _ = environment.step(policy.act(observation, float(reward)))
        total, over = total + float(reward), bool(ended or cut)
    return total


def main(checkpoint: str, bundle: str, episodes: str = "1") -> int:
    for budget in runtime.load(bundle).manifest.budgets:
        model = runtime.load(bundle, budget=budget.id, threads=1, verify=False)
        returns = [walk(Path(checkpoint), model, seed) for seed in range(int(episodes))]
        print(f"{budget.id}\t{np.mean(returns):.0f}\t{model.engine.id}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except EssmError as error:
        sys.exit(f"error: {error}")
