"""The shipped policy, compiled: the example walks with it as far as its card says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from essm_deploy import compile, runtime
from essm_deploy.checkpoint import Checkpoint
from essm_deploy.compile import Request
from essm_deploy.families import open_checkpoint
from essm_deploy.profiling.measure import Settings
from essm_train.settings import load_recipe
from essm_train.tasks.decision import Recipe
from essm_train.tasks.simulators import SIMULATORS

ROOT = Path(__file__).parents[2]
HOPPER = ROOT / "examples" / "checkpoints" / "hopper"
QUICK = Settings(min_samples=60, min_seconds=0.05, warmup_seconds=0.2)
EPISODES = 3


@pytest.fixture(scope="module")
def policy() -> Checkpoint:
    return open_checkpoint(HOPPER)


def test_it_has_the_size_and_the_budgets_of_the_recipe(policy: Checkpoint) -> None:
    recipe = load_recipe(Recipe, "decision", "study")
    c = policy.config
    assert (c["hidden_size"], c["num_hidden_layers"], c["k_max"]) == (72, 3, 32)
    assert c["budgets"] == list(recipe.budgets.trained)
    assert c["policy"]["environment"] == SIMULATORS["hopper"].environment
    assert sum(file.stat().st_size for file in HOPPER.iterdir()) < 4e6


def test_its_card_gives_the_command_the_data_and_every_measured_budget(policy: Checkpoint) -> None:
    assert policy.quality is not None
    assert "essm-train decision" in policy.card
    assert "rl-trained-agents" in policy.card
    for k, value in policy.quality["budgets"].items():
        assert f"| {k} | {value:.4f} |" in policy.card


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("policy_app", ROOT / "examples" / "policy_app" / "app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("budget", [2, 8, 32], ids="K={}".format)
def test_the_example_walks_with_the_engine(budget: int, policy: Checkpoint, example: ModuleType, tmp_path: Path) -> None:
    """Episodes of one policy differ widely: the mean of a few is only held to half of what the card says of many."""
    pytest.importorskip("mujoco", reason="rollouts need gymnasium[mujoco]")
    compile.build(Request(HOPPER, "cpu", budgets=(budget,), settings=QUICK), tmp_path / "out", lambda line: None)
    model = runtime.load(tmp_path / "out", threads=1)
    returns = [SIMULATORS["hopper"].normalised(example.walk(HOPPER, model, seed)) for seed in range(EPISODES)]
    assert policy.quality is not None
    assert np.mean(returns) >= 0.5 * policy.quality["budgets"][str(budget)]
