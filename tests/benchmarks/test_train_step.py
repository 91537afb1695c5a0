"""The training benchmark weighs its budgets as the sampler draws them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from essm_deploy.spectral.bank import Bank
from essm_train.budget import BUDGETS
from essm_train.model import ModelConfig
from tests.benchmarks import train_step
from tests.benchmarks.train_step import measure, summary, table
from tests.checkpoints import random_bank

SMALL = ModelConfig(8, 1, 40, input_size=3, num_labels=2)


def test_the_mean_step_counts_full_steps_and_drawn_ones() -> None:
    found = summary(SMALL, 4, {k: [9.0, k / 1000, 0.0] for k in BUDGETS})  # a median of K milliseconds
    assert found["step_ms"] == {str(k): float(k) for k in BUDGETS}
    # 10.77 channels are drawn on average (the paper's sampler), and every eighth step has all 32
    assert found["mean_step_ms"] == pytest.approx(32 / 8 + 10.77 * 7 / 8, abs=0.01)
    assert found["saving"] == pytest.approx(1 - (32 / 8 + 10.77 * 7 / 8) / 32, abs=1e-3)


def test_a_measured_model_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    bank = Bank(random_bank(32, SMALL.seq_len), np.ones(32), "embedded")
    monkeypatch.setattr(train_step, "hankel_bank", lambda *_, **__: bank)
    monkeypatch.setitem(train_step.MODELS, "small", (SMALL, 2))
    found = measure("small", 0.0, torch.device("cpu"), "toeplitz")
    assert found["rounds"] == 3
    assert "| small (toeplitz) |" in table([found])
