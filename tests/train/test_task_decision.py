"""The decision transformer: recorded episodes, windows, the policy, and data rolled out by actor networks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from essm_deploy.errors import InputError, UnavailableError, UsageError
from essm_train.model import EsSsm
from essm_train.tasks import behaviour
from essm_train.tasks.decision import Decision, build, check, smoke_data, split
from essm_train.tasks.decision_model import Conditioned, Front, actions_of, fit_scaling
from essm_train.tasks.simulators import SIMULATORS, make_environments, play
from essm_train.tasks.trajectories import Trajectories, load_trajectories
from tests.train.recipes import smoke_recipe

CPU = torch.device("cpu")


def flat(lengths: tuple[int, ...], timeouts: bool = True) -> dict[str, np.ndarray]:
    """D4RL's arrays; each number says in which step it was."""
    count = sum(lengths)
    ends = np.zeros(count, bool)
    ends[np.cumsum(lengths) - 1] = True
    rows = np.arange(count, dtype=np.float32)
    arrays = {
        "observations": np.stack([rows, rows + 0.5], axis=1),
        "actions": rows[:, None] / count,
        "rewards": rows,
        "terminals": ends if not timeouts else np.zeros(count, bool),
    }
    return {**arrays, "timeouts": ends} if timeouts else arrays


def save(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


# Files


def test_episodes_end_at_terminals_and_timeouts_and_an_unfinished_one_is_left_out(tmp_path: Path) -> None:
    arrays = flat((3, 4, 2))
    arrays["terminals"][2], arrays["timeouts"][2], arrays["timeouts"][8] = True, False, False
    found = load_trajectories(save(tmp_path / "a.npz", arrays))
    assert found.edges.tolist() == [0, 3, 7]
    assert found.returns().tolist() == [0 + 1 + 2, 3 + 4 + 5 + 6]
    assert found.returns_to_go().tolist() == [3, 3, 2, 18, 15, 11, 6]
    assert found.take(np.array([1])).rewards.tolist() == [3, 4, 5, 6]


def test_a_file_of_the_first_version_has_no_timeouts_and_episodes_of_1000(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for name, array in flat((2500, 700), timeouts=False).items():
            file[name] = array
    assert load_trajectories(tmp_path / "a.hdf5").lengths.tolist() == [1000, 1000, 500, 700]


def test_minari_has_one_observation_more_than_actions(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    folder = tmp_path / "mujoco" / "hopper" / "medium-v0"
    (folder / "data").mkdir(parents=True)
    with h5py.File(folder / "data" / "main_data.hdf5", "w") as file:
        for i, steps in enumerate((2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)):
            group = file.create_group(f"episode_{i}")
            group["observations"] = np.full((steps + 1, 2), i, np.float64)
            group["actions"], group["rewards"] = np.zeros((steps, 1)), np.full(steps, i)
    found = load_trajectories(folder)
    assert found.lengths.tolist() == list(range(2, 13))  # in the order of their numbers: 10 comes after 9
    assert found.observations[found.edges[:-1], 0].tolist() == list(range(11))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"actions": np.zeros((3, 1))}, "actions has 3 rows and terminals 7; is the download complete"),
        ({"observations": np.full((7, 2), np.nan)}, "observations holds NaN or infinity"),
        ({"observations": np.zeros((7, 8, 8))}, "expected vectors at each step"),
        ({"timeouts": np.zeros(7, bool)}, "no episode ends in it"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load_trajectories(save(tmp_path / "a.npz", flat((3, 4)) | change))
    assert "\n" not in str(caught.value)


def test_other_kinds_of_files_say_what_was_expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"no such file, and no Minari data set; expected D4RL's"):
        load_trajectories(tmp_path)
    (tmp_path / "a.pkl").write_bytes(b"\x80\x04.")
    with pytest.raises(UsageError, match=r"ends in '.pkl'"):
        load_trajectories(tmp_path / "a.pkl")
    np.savez(tmp_path / "b.npz", observations=np.zeros((3, 2)))
    with pytest.raises(InputError, match=r"and no 'actions'"):
        load_trajectories(tmp_path / "b.npz")
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    (tmp_path / "c.hdf5").write_bytes(b"\x89HDF")
    with pytest.raises(UnavailableError, match=r"reading HDF5 needs h5py: pip install 'essm-deploy\[rollout\]'"):
        load_trajectories(tmp_path / "c.hdf5")


def test_half_an_hdf5_file_is_one_line(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for name, array in flat((30, 40)).items():
            file[name] = array
    (tmp_path / "a.hdf5").write_bytes((tmp_path / "a.hdf5").read_bytes()[:1000])
    with pytest.raises(InputError, match=r"not a whole HDF5 file .*is the download complete"):
        load_trajectories(tmp_path / "a.hdf5")


# Windows


@pytest.fixture
def task(tmp_path: Path) -> Decision:
    return build(smoke_recipe("decision"), smoke_data(tmp_path), CPU)


def test_a_window_is_the_steps_of_one_episode_and_nothing_after_its_end(task: Decision) -> None:
    part, s = task.parts["train"], task.scaling.observations
    start = int(part.edges[2]) - 2  # two steps before the second episode ends
    batch = task._windows["train"](np.array([start]))
    window, target = batch.inputs[0].numpy(), batch.targets[0].numpy()
    togo = part.returns_to_go()[start : start + 2] / 1000
    np.testing.assert_allclose(window[:2, 0], togo, rtol=1e-6)
    np.testing.assert_allclose(window[:2, 1 : 1 + s], task.scaling.scaled(part.observations[start : start + 2]))
    np.testing.assert_array_equal(window[:2, -1], [10, 11])
    np.testing.assert_array_equal(target[:2, :-1], part.actions[start : start + 2])
    assert target[:, -1].tolist() == [1, 1, 0, 0]
    assert not window[2:].any()
    assert batch.weights is not None
    assert batch.weights.tolist() == [2]


def test_a_batch_is_a_function_of_the_step(task: Decision) -> None:
    assert torch.equal(task.batch(5).inputs, task.batch(5).inputs)
    assert not torch.equal(task.batch(5).inputs, task.batch(6).inputs)


def test_what_is_behind_the_end_of_an_episode_does_not_count(task: Decision) -> None:
    outputs = torch.randn(1, 12, task.scaling.outputs)
    targets = torch.rand(1, 4, 4)
    targets[..., -1] = torch.tensor([1.0, 1.0, 0.0, 0.0])
    expected = (torch.tanh(outputs[:, [1, 4], :3]) - targets[:, :2, :3]).square().mean()
    torch.testing.assert_close(task.loss(outputs, targets), expected)


def test_no_episode_is_in_two_splits(tmp_path: Path) -> None:
    whole = load_trajectories(smoke_data(tmp_path))
    parts = split(whole, "actions", 0)
    firsts = [tuple(part.observations[edge]) for part in parts.values() for edge in part.edges[:-1]]
    assert len(set(firsts)) == len(firsts) == len(whole)
    assert split(whole, "rollouts", 0)["train"] is whole


def test_each_held_out_step_is_judged_once(task: Decision) -> None:
    class Still(torch.nn.Module):
        def forward(self, inputs: torch.Tensor, lengths: None, budget: int) -> torch.Tensor:
            return torch.zeros(len(inputs), 12, task.scaling.outputs)

    expected = float(np.mean(task.parts["test"].actions ** 2))
    assert task.evaluate(Still(), "test", 4) == pytest.approx(expected, rel=1e-5)
    assert task.samples("test") == 12


# The policy


class Recorder(torch.nn.Module):
    """Always answers the same, and keeps what it was shown."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.seen: list[np.ndarray] = []

    def forward(self, windows: torch.Tensor, lengths: None, budget: int) -> torch.Tensor:
        self.seen.append(windows.numpy().copy())
        return torch.full((len(windows), 3 * windows.shape[1], self.outputs), 0.5)


def test_the_policy_sees_what_training_saw(task: Decision) -> None:
    model = Recorder(task.scaling.outputs)
    policy = Conditioned(model, 4, task.scaling, 4, 2000.0, CPU)
    policy.reset(2)
    rng, actions = np.random.default_rng(0), np.tanh(np.float32(0.5))
    observations = [rng.standard_normal((2, 11)).astype(np.float32) for _ in range(6)]
    for step, seen in enumerate(observations):
        acted = policy.act(seen, np.full(2, 100.0 if step else 0.0, np.float32), np.arange(2))
        np.testing.assert_allclose(acted, np.full((2, 3), actions), rtol=1e-6)
    first, last = model.seen[0][1], model.seen[5][1]
    assert first[0, 0] == pytest.approx(2.0)
    assert not first[1:].any()
    np.testing.assert_allclose(last[:, 0], [2.0 - 0.1 * step for step in (2, 3, 4, 5)], rtol=1e-6)
    np.testing.assert_array_equal(last[:, -1], [2, 3, 4, 5])
    np.testing.assert_allclose(last[:, 1:12], [task.scaling.scaled(o[1]) for o in observations[2:]], rtol=1e-6)
    np.testing.assert_allclose(last[:3, 12:15], np.full((3, 3), actions), rtol=1e-6)
    assert not last[3, 12:15].any()  # the action that is asked for is not known yet


def test_an_action_does_not_depend_on_what_comes_after(task: Decision) -> None:
    torch.manual_seed(0)
    bank = np.random.default_rng(0).standard_normal((4, 12))
    model = EsSsm(task.model_config, bank, np.ones(4), task.front()).eval()
    windows = task.batch(0).inputs
    changed = windows.clone()
    changed[:, 2, 12:] = 7.0  # the third step's action and timestep
    changed[:, 3] = 7.0
    changed[:, 2, -1] = windows[:, 2, -1]
    changed[:, 3, -1] = 3.0
    with torch.no_grad():
        before, after = (actions_of(model(x, None, 4), 3)[:, :3] for x in (windows, changed))
    torch.testing.assert_close(before, after)


def test_the_front_gives_each_step_three_tokens_of_unit_size() -> None:
    front = Front(11, 3, 16, 64)
    windows = torch.randn(2, 4, 16)
    windows[..., -1] = torch.arange(4)
    tokens = front(windows)
    assert tokens.shape == (2, 12, 16)
    torch.testing.assert_close(tokens.std(dim=-1, unbiased=False), torch.ones(2, 12), rtol=1e-3, atol=1e-3)
    moved = windows.clone()
    moved[:, 1, 0] += 1.0  # the second step's return
    assert (front(moved) != tokens).any(dim=-1)[0].nonzero().flatten().tolist() == [3]


def test_scaling_is_that_of_the_training_data() -> None:
    observations = np.random.default_rng(0).normal(5, 2, (1000, 3)).astype(np.float32)
    observations[:, 2] = 1.0
    scaled = fit_scaling(observations, 1, 1000.0, 10).scaled(observations)
    np.testing.assert_allclose(scaled.mean(axis=0), 0.0, atol=1e-5)
    np.testing.assert_allclose(scaled.std(axis=0), [1, 1, 0], atol=1e-5)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"judge": "people"}, "data.judge is 'people'; expected rollouts or actions"),
        ({"task": "ant"}, "no task 'ant'; expected halfcheetah, hopper, walker2d"),
        ({"context": 0}, "data.context is 0"),
        ({"return_scale": 0.0}, "data.return_scale must be above 0"),
    ],
)
def test_a_key_that_makes_no_sense_is_one_line(data: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check(smoke_recipe("decision", **data))


# Rollouts


class Counter:
    """A simulator of episodes of `steps` steps: the observation is the step, the reward 1 where the action is what it was."""

    def __init__(self, steps: int) -> None:
        self.steps, self.now = steps, 0

    def reset(self, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
        self.now = seed
        return np.array([seed], np.float64), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        right, self.now = float(action[0] == self.now), self.now + 1
        return np.array([self.now], np.float64), right, self.now >= self.steps, False, {}


class Echo:
    """Acts as it sees; asserts that it is asked for the episodes that still run, with their last rewards."""

    def reset(self, count: int) -> None:
        self.calls: list[int] = []

    def act(self, observations: np.ndarray, rewards: np.ndarray, playing: np.ndarray) -> np.ndarray:
        assert len(observations) == len(rewards) == len(playing)
        assert (rewards == (1.0 if self.calls else 0.0)).all()
        self.calls.append(len(playing))
        return observations


def test_episodes_are_played_in_step_until_each_ends() -> None:
    policy = Echo()
    episodes = play([Counter(3), Counter(5), Counter(4)], policy, [0, 0, 2], keep=True)
    assert [episode.total for episode in episodes] == [3.0, 5.0, 2.0]
    assert [len(episode.observations) for episode in episodes] == [3, 5, 2]
    assert policy.calls == [3, 3, 2, 1, 1]
    assert all(episode.ended for episode in episodes)


def test_rolled_out_episodes_are_read_back_as_they_were(tmp_path: Path) -> None:
    episodes = play([Counter(3), Counter(5)], Echo(), [0, 1], keep=True)
    found = load_trajectories(save(tmp_path / "a.npz", behaviour.as_arrays(episodes)))
    assert found.lengths.tolist() == [3, 4]
    assert found.observations[:, 0].tolist() == found.actions[:, 0].tolist() == [0, 1, 2, 1, 2, 3, 4]


def test_returns_are_normalised_as_d4rl_does() -> None:
    hopper = SIMULATORS["hopper"]
    assert (hopper.normalised(-20.272305), hopper.normalised(3234.3)) == (0.0, 100.0)


def actors(folder: Path, **options: Any) -> Path:
    rng = np.random.default_rng(0)
    layers = {"w0": (8, 11), "b0": (8,), "w1": (8, 8), "b1": (8,), "w2": (3, 8), "b2": (3,)}
    arrays = {f"ppo-Hopper/{name}": 0.2 * rng.standard_normal(shape).astype(np.float32) for name, shape in layers.items()}
    arrays |= {"ppo-Hopper/obs_mean": np.full(11, 2.0), "ppo-Hopper/obs_var": np.full(11, 4.0)}
    save(folder / "policies.npz", arrays)
    described = {"hidden": "relu", "out": "clip[-1,1]", "clip_obs": 10.0} | options
    (folder / "policies.json").write_text(json.dumps({"ppo-Hopper": described}))
    return folder / "policies.npz"


def test_an_actor_computes_what_its_description_says(tmp_path: Path) -> None:
    actor = behaviour.load_actors(actors(tmp_path), "hopper", np.random.default_rng(0))["ppo"]
    observations = np.random.default_rng(1).standard_normal((5, 11)).astype(np.float32) * 30
    w = actor.layers
    x = np.clip((observations - 2.0) / 2.0, -10.0, 10.0)
    x = np.maximum(x @ w["w0"].T + w["b0"], 0)
    x = np.maximum(x @ w["w1"].T + w["b1"], 0)
    expected = np.clip(x @ w["w2"].T + w["b2"], -1, 1)
    assert 0 < (np.abs(expected) < 1).mean() < 1  # some actions are clipped, and not all
    np.testing.assert_allclose(actor.mean(observations), expected, rtol=1e-5, atol=1e-5)
    assert np.abs(replace(actor, noise=0.5).act(observations, np.zeros(5), np.arange(5))).max() <= 1.0


@pytest.mark.parametrize(
    ("options", "task", "message"),
    [
        ({"hidden": "gelu"}, "hopper", "expected hidden relu or tanh"),
        ({}, "walker2d", "holds no policy of 'walker2d'; there are ppo-Hopper"),
        ({"clip_obs": "ten"}, "hopper", "not a description of policies"),
    ],
)
def test_other_policies_are_one_line(tmp_path: Path, options: dict[str, Any], task: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        behaviour.load_actors(actors(tmp_path, **options), task, np.random.default_rng(0))


def test_without_a_simulator_rollouts_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gymnasium", None)
    with pytest.raises(UnavailableError, match=r"rollouts need gymnasium: pip install 'essm-deploy\[rollout\]'"):
        build(smoke_recipe("decision", judge="rollouts"), smoke_data(tmp_path), CPU)


@pytest.mark.needs_data
def test_the_policies_walk_in_the_simulator(data_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    policies = behaviour.load_actors(data_dir / "mujoco_policies_sb3.npz", "hopper", np.random.default_rng(0))
    (episode,) = play(make_environments("hopper", 1), policies["tqc"], [0])
    # three episodes of this policy gave 102 % with another version of MuJoCo; falling over gives less than 40 %
    assert SIMULATORS["hopper"].normalised(episode.total) > 80.0


@pytest.mark.needs_data
def test_rolled_out_data_trains_and_is_judged_in_the_simulator(data_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    output = tmp_path / "hopper.npz"
    command = [str(data_dir / "mujoco_policies_sb3.npz"), "hopper", "random", str(output), "--steps", "300"]
    assert behaviour.main(command) == 0
    recipe = smoke_recipe("decision", judge="rollouts", val_episodes=2, test_episodes=2)
    task = build(recipe, output, CPU)
    assert isinstance(task.parts["train"], Trajectories)
    assert (task.metric, task.direction, task.samples("val")) == ("normalized_return", "maximize", 2)
    value = task.evaluate(Recorder(task.scaling.outputs), "val", 4)
    assert -5.0 < value < 40.0  # constant actions stand for a moment and fall
    assert value == task.evaluate(Recorder(task.scaling.outputs), "val", 4)
    with pytest.raises(InputError, match=r"observations have 11 numbers; expected 17 of walker2d"):
        build(smoke_recipe("decision", judge="rollouts", task="walker2d"), output, CPU)
