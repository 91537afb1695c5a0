"""A rank builds its rows of a step's batch and no others, and they are those of one process to the bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from essm_deploy.frontend import LogMel
from essm_deploy.spectral.bank import Bank
from essm_train.job import make_model
from essm_train.parallel import World
from essm_train.registry import TASKS
from essm_train.settings import load_settings
from essm_train.share import ALL, Share
from essm_train.step import plan_step
from essm_train.tasks import Batch, Task, mqar_rules, pathfinder
from essm_train.tasks.bytes import Bytes
from essm_train.tasks.examples import TokenRows
from essm_train.tasks.keywords import Keywords
from essm_train.tasks.streaming import Streamed
from essm_train.trainer import Run, make_sampler, train
from tests.checkpoints import random_bank
from tests.train.recipes import smoke_recipe

CPU = torch.device("cpu")
NAMES = ["bytes", "listops", "text", "retrieval", "images", "pathfinder", "decision", "dna", "mqar"]
SHARES = [Share(rank, size, parts) for size, parts in ((2, 1), (3, 2), (5, 1)) for rank in range(size)]


def make_task(name: str, folder: Path, recipe: Any = None) -> Task:
    module = TASKS[name].load()
    task: Task = module.build(recipe or smoke_recipe(name), module.smoke_data(folder), CPU)
    return task


def spotter(tones: Path, mixup: float) -> Keywords:
    recipe = load_settings("keywords").with_train(batch_size=7)
    return Keywords(tones, dataclasses.replace(recipe, augment=dataclasses.replace(recipe.augment, mixup=mixup)), CPU)


# Whose rows are whose


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 9))
def test_every_row_is_one_ranks_and_micro_batches_are_those_of_one_process(count: int, size: int, parts: int) -> None:
    whole = Share(0, 1, parts).spans(count)
    assert len(whole) == min(parts, count)
    shares = [Share(rank, size, parts) for rank in range(size)]
    assert sorted(row for share in shares for a, b in share.spans(count) for row in range(a, b)) == list(range(count))
    for share in shares:
        spans = share.spans(count)
        assert all(first <= a <= b <= end and a < end for (a, b), (first, end) in zip(spans, whole, strict=True))
        assert share.rows(count).tolist() == [row for a, b in spans for row in range(a, max(b, a + 1))]
    np.testing.assert_array_equal(ALL.rows(count), np.arange(count))


# What they hold


def assert_rows_are_those_of_the_whole(task: Task, step: int) -> None:
    whole = task.batch(step)
    assert (whole.rows, whole.tokens) == (len(whole.targets), whole.inputs.shape[0] * whole.inputs.shape[1])
    for share in SHARES:
        mine, wanted = task.batch(step, share), rows_of(whole, share)
        for name in ("inputs", "lengths", "targets", "weights"):
            got, expected = getattr(mine, name), getattr(wanted, name)
            assert (got is None and expected is None) or torch.equal(got, expected), (share, name)
        assert (mine.rows, mine.tokens, mine.whole_weight) == (whole.rows, whole.tokens, whole.weight)


def rows_of(batch: Batch, share: Share) -> Batch:
    targets = torch.from_numpy(share.rows(batch.rows))
    each = len(batch.inputs) // len(batch.targets)
    inputs = (targets[:, None] * each + torch.arange(each)).flatten()
    lengths = None if batch.lengths is None else batch.lengths[inputs]
    return Batch(
        batch.inputs[inputs], lengths, batch.targets[targets], None if batch.weights is None else batch.weights[targets]
    )


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_those_that_one_process_builds(name: str, tmp_path: Path) -> None:
    task = make_task(name, tmp_path)
    for step in range(4):
        assert_rows_are_those_of_the_whole(task, step)


@pytest.mark.parametrize("mixup", [0.0, 0.4])
def test_augmented_clips_are_those_of_one_process(tones: Path, mixup: float) -> None:
    task = spotter(tones, mixup)
    for step in (0, task.steps_per_epoch - 1):  # the last batch of an epoch is smaller
        assert_rows_are_those_of_the_whole(task, step)


def test_a_rank_takes_its_rows_of_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(split: str, seed: int | None) -> Iterator[Any]:
        return ({"text": f"{split} {seed} {i}"} for i in range(1000))

    monkeypatch.setenv("ESSM_CACHE", str(tmp_path))
    monkeypatch.setattr("essm_train.tasks.bytes.open_stream", lambda name, size: Streamed(name, rows, size))
    task = Bytes(Path("hf:any"), smoke_recipe("bytes"), CPU)
    for step in (0, 1):
        assert_rows_are_those_of_the_whole(task, step)


@pytest.mark.parametrize("name", ["dna", "text"])
def test_the_parts_of_a_share_are_those_that_are_cut_from_the_whole(name: str, tmp_path: Path) -> None:
    recipe = smoke_recipe(name).with_train(accumulate=2, batch_size=5)
    task = make_task(name, tmp_path, recipe)
    sampler = make_sampler(recipe, task.steps_per_epoch)
    for world in [World(rank, size) for size in (1, 2, 4) for rank in range(size)]:
        batches = (task.batch(1), task.batch(1, world.share(2)))
        plans = [plan_step(batch, 1, recipe, sampler, world) for batch in batches]
        assert len(plans[0]) == len(plans[1]) == 2
        for cut, built in zip(*plans, strict=True):
            assert (cut.budget, cut.seed, cut.share) == (built.budget, built.seed, built.share)
            assert torch.equal(cut.batch.inputs, built.batch.inputs)
            assert torch.equal(cut.batch.targets, built.batch.targets)


# And no others


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, rows: Any) -> list[int]:
    """How many rows each call of a function is given."""
    found: list[int] = []
    plain = getattr(owner, name)

    def counting(*arguments: Any) -> Any:
        found.append(rows(*arguments))
        return plain(*arguments)

    monkeypatch.setattr(owner, name, counting)
    return found


def test_a_rank_decodes_its_images_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task("pathfinder", tmp_path)
    decoded = counted(monkeypatch, pathfinder, "read_image", lambda path, side: 1)
    task.batch(0, Share(0, 2))
    assert sum(decoded) == 2  # of 4
    task.batch(0)
    assert sum(decoded) == 2 + 4


def test_a_rank_augments_its_clips_and_those_that_they_are_mixed_with(tones: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, mixing = spotter(tones, 0.0), spotter(tones, 0.4)
    augmented = counted(monkeypatch, LogMel, "power", lambda mel, waveforms: len(waveforms))
    for rank in range(7):
        plain.batch(0, Share(rank, 7))
    assert augmented == [1] * 7
    for rank in range(7):
        mixing.batch(0, Share(rank, 7))
    assert set(augmented[7:]) <= {1, 2}


@pytest.mark.parametrize(
    ("name", "owner", "function", "rows"),
    [
        ("text", TokenRows, "rows", lambda examples, index: len(index)),
        ("mqar", mqar_rules, "_gaps", lambda rules, draws: len(draws)),
    ],
)
def test_a_rank_widens_or_makes_its_sequences_alone(
    name: str, owner: Any, function: str, rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task(name, tmp_path)
    built = counted(monkeypatch, owner, function, rows)
    task.batch(0, Share(1, 4))
    assert built == [1]  # of 4


class Alone(World):
    """A rank that meets no other: its sums are its own."""

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        return model

    def total(self, value: torch.Tensor) -> float:
        return float(value)

    def wait(self) -> None:
        pass


def test_the_trainer_asks_for_the_ranks_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = smoke_recipe("pathfinder").with_train(accumulate=2)
    task = make_task("pathfinder", tmp_path / "data", recipe)
    bank = Bank(random_bank(recipe.model.k_max, 64), np.geomspace(0.3, 1e-3, recipe.model.k_max), "embedded")
    model = make_model(task, bank, recipe, CPU)
    monkeypatch.setattr(type(task), "evaluate", lambda *_: 0.5)
    decoded = counted(monkeypatch, pathfinder, "read_image", lambda path, side: 1)
    train(model, task, recipe, Run(tmp_path / "run"), Alone(1, 2))
    assert sum(decoded) == 2 * 16 // 2  # half of two epochs of 16 images
