"""Two processes make the step of one, and what they save is a state and a checkpoint like any other."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from essm_deploy.families import open_checkpoint
from essm_train.cli import run

RECIPE = """
[model]
hidden_size = 8
num_hidden_layers = 2
k_max = 4
dropout = 0.0
drop_path = 0.0
[budgets]
trained = [2, 3, 4]
n_full = 3
[text]
seq_len = 64
short_len = 32
short_share = 0.5
interval = 4
[train]
epochs = 2
batch_size = 3
accumulate = 2
eval_every = 1
ema = 0.9
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def arguments(folder: Path, name: str, *more: str) -> list[str]:
    return ["bytes", "--data", str(folder / "text"), "-o", str(folder / name), "--config", str(folder / "recipe.toml"),
            "--device", "cpu", *more]  # fmt: skip


def two_ranks(command: list[str], *program: str) -> list[str]:
    """What each rank writes to stderr. program: python's arguments, in place of the command line's own module."""
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, *(program or ("-m", "essm_train.cli")), *command],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    printed, messages = zip(*(rank.communicate(timeout=240) for rank in ranks), strict=True)
    assert [rank.returncode for rank in ranks] == [0, 0], messages
    assert printed[1] == ""
    assert "epoch" not in messages[1]  # rank 1 says nothing
    return list(messages)


def losses(folder: Path, name: str) -> list[float]:
    log = (folder / f"{name}.training" / "log.jsonl").read_text().splitlines()
    return [entry["loss"] for entry in map(json.loads, log) if "loss" in entry]


@pytest.fixture
def folder(tmp_path: Path, shared_banks: None) -> Path:
    letters = np.random.default_rng(0).integers(97, 123, 4000).astype(np.uint8)
    (tmp_path / "text").write_bytes(letters.tobytes())
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_train_like_one(folder: Path, strategy: str) -> None:
    assert run(arguments(folder, "one")) == 0
    two_ranks(arguments(folder, "two", "--strategy", strategy))
    # five digits in the log, and the sum of a step's gradient in another order
    assert losses(folder, "two") == pytest.approx(losses(folder, "one"), abs=5e-5)
    one, two = (open_checkpoint(folder / name) for name in ("one", "two"))
    assert one.tensors.keys() == two.tensors.keys()
    for name, wanted in one.tensors.items():
        # AdamW divides by the root of a mean square, so that a rounding of a gradient near zero moves a weight by a share of lr
        assert np.abs(two.tensors[name] - wanted).max() <= 2e-4, name
    assert one.quality is not None
    assert two.quality is not None
    assert two.quality["budgets"] == {k: pytest.approx(v, abs=1e-3) for k, v in one.quality["budgets"].items()}


COUNTING = """
import sys
from essm_train.tasks.augment import Augment
plain = Augment.apply
def counted(self, waveforms, *rest):
    print("augmented", len(waveforms), file=sys.stderr)
    return plain(self, waveforms, *rest)
Augment.apply = counted
from essm_train.cli import run
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.slow
def test_two_processes_augment_half_the_clips_each_and_train_like_one(tones: Path, tmp_path: Path, keyword_bank: None) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE.split("[text]")[0] + "[train]\nepochs = 2\nbatch_size = 8\naccumulate = 2\n")
    command = ["keywords", "--data-dir", str(tones), "--config", str(tmp_path / "recipe.toml"), "--device", "cpu"]
    assert run([*command, "-o", str(tmp_path / "one")]) == 0
    for messages in two_ranks([*command, "-o", str(tmp_path / "two")], "-c", COUNTING):
        built = [line for line in messages.splitlines() if line.startswith("augmented")]
        assert built == ["augmented 4"] * 10  # of the 8 of a step, in two epochs of 40
    assert losses(tmp_path, "two") == pytest.approx(losses(tmp_path, "one"), abs=5e-5)


@pytest.mark.slow
def test_a_state_of_two_sharded_processes_is_resumed_by_one(folder: Path) -> None:
    assert run(arguments(folder, "one")) == 0
    stop = (
        "import essm_train.trainer as t, sys\n"
        "save = t.Training.save\n"
        "def once(self, *a):\n    save(self, *a)\n    sys.exit(7)\n"
        "t.Training.save = once\n"
        "from essm_train.cli import run\nrun(sys.argv[1:])\n"
    )
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    command = [sys.executable, "-c", stop, *arguments(folder, "parts", "--strategy", "fsdp")]
    ranks = [subprocess.Popen(command, env={**environment, "RANK": str(rank)}, stderr=subprocess.PIPE) for rank in range(2)]
    messages = [rank.communicate(timeout=240)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [7, 7], messages
    state = torch.load(folder / "parts.training" / "state.pt", weights_only=True)
    assert state["step"] == 4
    assert state["model"]["layers.0.spectral.projection"].shape == (4, 8, 8)  # whole, and not a rank's share
    assert run(arguments(folder, "parts")) == 0
    assert losses(folder, "parts") == pytest.approx(losses(folder, "one"), abs=5e-5)
