"""Recorded episodes of a control task: D4RL and Minari files, and npz files with D4RL's names.

    D4RL      one .hdf5: observations [N, s], actions [N, a], rewards [N], terminals [N], and timeouts [N] in later versions
    Minari    <data set>/data/main_data.hdf5 (or the folder, or that of the data set): episode_<n>/{observations [T + 1, s],
              actions [T, a], rewards [T]}
    npz       the arrays of D4RL; it needs no h5py

An episode ends after a terminal or a timeout, and where there are no timeouts after 1,000 steps. Steps of a last episode
that has no end are left out, as the Decision Transformer's own script does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from essm_deploy.errors import InputError, UnavailableError, UsageError
from essm_train.tasks.reading import load_arrays

LAYOUT = "expected D4RL's .hdf5, Minari's in HDF5, or an .npz with observations, actions, rewards, terminals and timeouts"
MAX_VALUES = 2**29  # numbers in the observations: 2 GiB as float32
EPISODE = 1000  # steps of the MuJoCo tasks

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Trajectories:
    """observations [N, s], actions [N, a], rewards [N]; the i-th episode is rows edges[i] to edges[i + 1]."""

    observations: Floats
    actions: Floats
    rewards: Floats
    edges: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.edges) - 1

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Steps of each episode."""
        return np.diff(self.edges)

    def returns(self) -> npt.NDArray[np.float64]:
        """The sum of each episode's rewards."""
        sums = np.concatenate([[0.0], np.cumsum(self.rewards, dtype=np.float64)])
        return np.diff(sums[self.edges])

    def returns_to_go(self) -> Floats:
        """At each step, the sum of the rewards from it to the episode's end."""
        after = np.cumsum(self.rewards[::-1], dtype=np.float64)[::-1]
        beyond = np.concatenate([after, [0.0]])[self.edges[1:]]
        to_go: Floats = (after - np.repeat(beyond, self.lengths)).astype(np.float32)
        return to_go

    def take(self, episodes: npt.NDArray[np.int64]) -> Trajectories:
        """Some of the episodes."""
        rows = np.concatenate([np.arange(self.edges[i], self.edges[i + 1]) for i in episodes] or [np.zeros(0, np.int64)])
        edges = np.concatenate([[0], np.cumsum(self.lengths[episodes])]).astype(np.int64)
        return Trajectories(self.observations[rows], self.actions[rows], self.rewards[rows], edges)


def load_trajectories(path: Path) -> Trajectories:
    """Any of the three layouts, by what is there. UsageError, InputError, or UnavailableError where h5py is missing."""
    found = next((p for p in (path / "data" / "main_data.hdf5", path / "main_data.hdf5", path) if p.is_file()), None)
    if found is None:
        raise UsageError(f"{path}: no such file, and no Minari data set; {LAYOUT}")
    if found.suffix == ".npz":
        names = ("observations", "actions", "rewards", "terminals", "timeouts")
        return _from_flat(found, load_arrays(found, names, LAYOUT))
    if found.suffix not in (".hdf5", ".h5"):
        raise UsageError(f"{found}: ends in {found.suffix!r}; {LAYOUT}")
    return _from_hdf5(found)


def _from_hdf5(path: Path) -> Trajectories:
    try:
        import h5py
    except ModuleNotFoundError as error:
        raise UnavailableError(f"{path}: reading HDF5 needs h5py: pip install 'essm-deploy[rollout]'") from error
    try:
        with h5py.File(path, "r") as file:
            episodes = [name for name in file if name.startswith("episode_")]
            if episodes:
                return _from_episodes(path, file, sorted(episodes, key=lambda name: int(name.split("_")[1])))
            names = [name for name in ("observations", "actions", "rewards", "terminals", "timeouts") if name in file]
            _check_size(path, file)
            return _from_flat(path, {name: file[name][()] for name in names})
    except (OSError, ValueError, KeyError, AttributeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path}: not a whole HDF5 file ({reason}); is the download complete? {LAYOUT}") from error


def _check_size(path: Path, file: Any) -> None:
    size = int(np.prod(file["observations"].shape, dtype=object)) if "observations" in file else 0
    if size > MAX_VALUES:
        raise InputError(f"{path}: {size} numbers in observations; expected at most {MAX_VALUES}")


def _from_episodes(path: Path, file: Any, names: list[str]) -> Trajectories:
    """Minari's groups. Its observations have one row more than its actions: the state after the last step."""
    parts: dict[str, list[Any]] = {"observations": [], "actions": [], "rewards": []}
    for name in names:
        group = file[name]
        if any(not hasattr(group.get(part), "shape") for part in parts):
            raise InputError(
                f"{path}: {name} holds {sorted(group)}; expected arrays of {', '.join(parts)}: no dictionaries here"
            )
        steps = len(group["rewards"])
        if len(group["actions"]) != steps or len(group["observations"]) not in (steps, steps + 1):
            raise InputError(f"{path}: {name} has {steps} rewards, {len(group['actions'])} actions; expected as many")
        for part, found in parts.items():
            found.append(group[part][:steps])
    joined = {part: np.concatenate(found) for part, found in parts.items()}
    return _checked(path, joined, np.cumsum([0] + [len(rewards) for rewards in parts["rewards"]]))


def _from_flat(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> Trajectories:
    missing = [name for name in ("observations", "actions", "rewards", "terminals") if name not in arrays]
    if missing:
        raise InputError(f"{path}: {missing[0]} is missing; {LAYOUT}")
    ends = np.asarray(arrays["terminals"]).astype(bool).reshape(-1)
    count = len(ends)
    timeouts = arrays.get("timeouts")
    ends = _with_limit(ends) if timeouts is None else ends | np.asarray(timeouts).astype(bool).reshape(-1)[:count]
    edges = np.concatenate([[0], np.flatnonzero(ends) + 1])
    kept = {name: np.asarray(arrays[name]) for name in ("observations", "actions", "rewards")}
    wrong = next((name for name, array in kept.items() if len(array) != count), None)
    if wrong is not None:
        raise InputError(f"{path}: {wrong} has {len(kept[wrong])} rows and terminals {count}; is the download complete?")
    return _checked(path, {name: array[: edges[-1]] for name, array in kept.items()}, edges)


def _with_limit(terminals: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Ends of episodes of at most EPISODE steps."""
    ends: npt.NDArray[np.bool_] = terminals.copy()
    begun = 0
    for stop in [*np.flatnonzero(terminals), len(terminals) - 1]:
        ends[begun + EPISODE - 1 : stop + 1 : EPISODE] = True
        begun = int(stop) + 1
    return ends


def _checked(path: Path, arrays: dict[str, npt.NDArray[Any]], edges: npt.NDArray[Any]) -> Trajectories:
    if len(edges) < 2:
        raise InputError(f"{path}: no episode ends in it; {LAYOUT}")
    if arrays["observations"].ndim != 2 or arrays["actions"].ndim != 2:
        shapes = {name: list(array.shape) for name, array in arrays.items()}
        raise InputError(f"{path}: shapes {shapes}; expected vectors at each step. Images and discrete actions are not read")
    floats = {name: array.astype(np.float32) for name, array in arrays.items()}
    broken = next((name for name, array in floats.items() if not np.isfinite(array).all()), None)
    if broken is not None:
        raise InputError(f"{path}: {broken} holds NaN or infinity")
    return Trajectories(floats["observations"], floats["actions"], floats["rewards"].reshape(-1), edges.astype(np.int64))
