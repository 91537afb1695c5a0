"""The checkpoint that ships is what its quality.json and its card say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from essm_deploy.families import open_checkpoint
from essm_deploy.frontend import LogMel
from essm_train.model import EsSsm, ModelConfig
from essm_train.settings import load_settings
from essm_train.tasks.speech_commands import WORDS, load_clips

BUDGETS = [2, 3, 4, 5, 6, 8, 12, 16, 24, 32]


def load_model(path: Path) -> EsSsm:
    """The checkpoint in the training framework, by tensor names alone."""
    checkpoint = open_checkpoint(path)
    c = checkpoint.config
    config = ModelConfig(
        c["hidden_size"], c["num_hidden_layers"], c["seq_len"], c["k_max"], input_size=c["input_size"], num_labels=10
    )
    model = EsSsm(config, checkpoint.tensor("bank.filters"), checkpoint.tensor("bank.sigma"))
    model.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in checkpoint.tensors.items()})
    return model.eval()


def test_it_has_the_size_and_the_budgets_of_the_recipe(shipped: Path) -> None:
    config = open_checkpoint(shipped).config
    assert (config["hidden_size"], config["num_hidden_layers"], config["k_max"]) == (64, 4, 32)
    assert config["budgets"] == BUDGETS == list(load_settings("keywords").budgets.trained)
    assert list(config["id2label"].values()) == list(WORDS)
    assert (shipped / "model.safetensors").stat().st_size < 4e6


def test_its_card_gives_the_command_the_licence_and_every_measured_budget(shipped: Path) -> None:
    checkpoint = open_checkpoint(shipped)
    assert checkpoint.quality is not None
    assert "essm-train keywords --data-dir speech_commands -o CHECKPOINT\n" in checkpoint.card
    assert "CC BY 4.0" in checkpoint.card
    for k, share in checkpoint.quality["budgets"].items():
        assert f"| {k} | {100 * share:.1f} % |" in checkpoint.card


def test_six_channels_keep_98_percent_of_the_best_budget(shipped: Path) -> None:
    budgets = json.loads((shipped / "quality.json").read_text())["budgets"]
    assert min(int(k) for k, share in budgets.items() if share >= 0.98 * max(budgets.values())) <= 6


@pytest.mark.needs_data
def test_its_accuracy_on_the_test_split_is_that_of_its_quality_file(shipped: Path, data_dir: Path) -> None:
    checkpoint, model = open_checkpoint(shipped), load_model(shipped)
    frontend = LogMel.from_config(checkpoint.config["frontend"])
    clips = load_clips(data_dir / "speech_commands_10", frontend, ("test",))["test"]
    pairs = [frontend(clips.floats(slice(i, i + 1))[0, :n]) for i, n in enumerate(clips.lengths)]
    features, frames = torch.from_numpy(np.stack([f for f, _ in pairs])), torch.tensor([n for _, n in pairs])
    assert checkpoint.quality is not None
    assert checkpoint.quality["samples"] == len(clips) == 485
    for k, claimed in checkpoint.quality["budgets"].items():
        with torch.no_grad():
            best = torch.cat([model(x, n, int(k)).argmax(1) for x, n in zip(features.split(64), frames.split(64), strict=True)])
        # one clip may sit on the border between two words and fall the other way with another BLAS
        assert float(np.mean(best.numpy() == clips.labels)) == pytest.approx(claimed, abs=1.01 / 485), k
