"""What `essm-train evaluate` derives: thresholds, calibration, channels; and the same numbers from engines as from weights."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from essm_deploy.cli import cli
from essm_deploy.cli.guard import guarded
from essm_deploy.errors import UsageError
from essm_deploy.families import open_checkpoint
from essm_deploy.profiling import measure
from essm_train.cli import run
from essm_train.evaluate import calibration_error, channel_importance, retention, smallest_keeping, without_channel
from essm_train.loading import load_model
from essm_train.model import EsSsm, ModelConfig
from essm_train.report import parse_budgets
from tests.checkpoints import random_bank


def test_retention_is_a_share_of_the_largest_budgets_metric() -> None:
    assert retention({"2": 0.45, "8": 0.9}, "maximize") == {"2": 0.5, "8": 1.0}
    assert retention({"2": 4.0, "8": 2.0}, "minimize") == {"2": 0.5, "8": 1.0}
    assert math.isnan(retention({"2": -3.0, "8": 2.0}, "maximize")["2"])


@pytest.mark.parametrize(
    ("values", "share", "smallest"),
    [
        ({"2": 0.80, "4": 0.99, "8": 1.0}, 0.98, 4),
        ({"2": 0.80, "4": 0.99, "8": 1.0}, 0.90, 4),
        ({"2": 0.95, "4": 0.97, "8": 1.0}, 0.90, 2),
        ({"2": 0.99, "4": 0.50, "8": 1.0}, 0.98, 8),  # 2 keeps it, but a larger one does not
        ({"2": -1.0, "4": 0.95, "8": 1.0}, 0.90, 4),
    ],
)
def test_the_smallest_budget_from_which_on_all_keep_a_share(values: dict[str, float], share: float, smallest: int) -> None:
    assert smallest_keeping(values, "maximize", share) == smallest


def test_calibration_error_is_the_gap_between_confidence_and_accuracy() -> None:
    sure = torch.tensor([[math.log(9.0), 0.0]]).repeat(10, 1)  # nine in ten
    right = torch.zeros(10, dtype=torch.long)
    half = torch.tensor([0] * 5 + [1] * 5)
    assert calibration_error(sure, right) == pytest.approx(0.1, abs=1e-6)
    assert calibration_error(sure, half) == pytest.approx(0.4, abs=1e-6)


def test_calibration_error_weighs_its_bins_by_their_samples() -> None:
    logits = torch.tensor([[math.log(9.0), 0.0]] * 3 + [[math.log(1.5), 0.0]])  # 0.9 three times and 0.6
    labels = torch.tensor([0, 0, 0, 1])
    assert calibration_error(logits, labels) == pytest.approx(0.75 * 0.1 + 0.25 * 0.6, abs=1e-6)


class Judge:
    """A task whose metric is how close the model's answer is to its answer with all channels."""

    metric, direction = "closeness", "maximize"

    def __init__(self, model: EsSsm) -> None:
        self.inputs = torch.randn(2, 12, 3, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            self.wanted = model(self.inputs, None, 4)

    def evaluate(self, model: EsSsm, split: str, budget: int) -> float:
        with torch.no_grad():
            return -float(torch.linalg.norm(model(self.inputs, None, budget) - self.wanted))


def small_model() -> EsSsm:
    torch.manual_seed(0)
    model = EsSsm(ModelConfig(8, 1, 12, 4, input_size=3, num_labels=2), random_bank(4, 12), np.ones(4))
    with torch.no_grad():
        model.layers[0].spectral.projection.normal_()
        model.layers[0].spectral.projection[2].zero_()
    return model.eval()


def test_knocking_out_a_channel_that_does_nothing_loses_nothing() -> None:
    model = small_model()
    before = model.layers[0].spectral.projection.detach().clone()
    found = channel_importance(Judge(model), model, 4, "test")  # type: ignore[arg-type]
    assert found["loss"][2] == 0.0
    assert all(loss > 0.0 for k, loss in enumerate(found["loss"]) if k != 2)
    assert found["first_8_share"] == 1.0
    assert torch.equal(model.layers[0].spectral.projection, before)


def test_a_knocked_out_channel_comes_back_after_an_error() -> None:
    model = small_model()
    before = model.layers[0].spectral.projection.detach().clone()
    with pytest.raises(KeyboardInterrupt), without_channel(model, 1):
        raise KeyboardInterrupt
    assert torch.equal(model.layers[0].spectral.projection, before)


def test_budgets_are_a_word_or_a_list(keywords: Path) -> None:
    checkpoint = open_checkpoint(keywords)
    k_max, model = checkpoint.config["k_max"], torch.nn.Identity()
    assert parse_budgets("trained", checkpoint, model) == checkpoint.config["budgets"]
    assert parse_budgets("all", checkpoint, model) == list(range(1, k_max + 1))
    assert parse_budgets("2,1", checkpoint, model) == [1, 2]
    for wrong in ("0", "2,x", str(k_max + 1), ""):
        with pytest.raises(UsageError, match="is none of 1, 2"):
            parse_budgets(wrong, checkpoint, model)


def train_tones(tones: Path, folder: Path) -> Path:
    recipe = folder / "recipe.toml"
    recipe.write_text("[model]\nhidden_size = 8\nnum_hidden_layers = 2\nk_max = 4\n[budgets]\ntrained = [2, 4]\n")
    command = ["keywords", "--data-dir", str(tones), "-o", str(folder / "spotter"), "--config", str(recipe), "--smoke"]
    assert run(command) == 0
    return folder / "spotter"


def test_a_checkpoint_is_judged_at_every_budget(
    tones: Path, tmp_path: Path, keyword_bank: None, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = train_tones(tones, tmp_path)
    out, recipe = tmp_path / "report", tmp_path / "recipe.toml"
    command = ["evaluate", str(checkpoint), "--data", str(tones), "--config", str(recipe), "--budgets", "all", "--channels"]
    assert run([*command, "-o", str(out)]) == 0, capsys.readouterr().err
    document = json.loads((out / "quality.json").read_text())
    trained = open_checkpoint(checkpoint).quality
    assert trained is not None
    assert list(document["budgets"]) == ["1", "2", "3", "4"]
    assert {k: document["budgets"][k] for k in ("2", "4")} == trained["budgets"]
    assert len(document["channels"]["loss"]) == 4
    assert set(document["calibration_error"]) == {"1", "2", "3", "4"}
    assert (out / "quality.png").stat().st_size > 1000
    assert "sweet spot (98 %)" in capsys.readouterr().out


def test_the_engines_of_a_bundle_give_the_numbers_of_the_weights(
    tones: Path, tmp_path: Path, keyword_bank: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, bundle = train_tones(tones, tmp_path), tmp_path / "bundle"
    plain, short = measure.Settings, {"min_samples": 100, "min_seconds": 0.05, "max_seconds": 4.0, "warmup_seconds": 0.2}
    monkeypatch.setattr(measure, "Settings", lambda **kwargs: plain(**{**short, **kwargs}))
    words = ("essm-deploy", "build", checkpoint, "--max-latency", "9s", "--budgets", 2, "-o", bundle)
    monkeypatch.setattr(sys, "argv", [str(word) for word in words])
    assert guarded(cli, "essm-deploy") == 0, capsys.readouterr().err
    recipe = str(tmp_path / "recipe.toml")
    base = ["evaluate", str(checkpoint), "--data", str(tones), "--config", recipe]
    for name, more in (("weights", ["--budgets", "2"]), ("engines", ["--engine", str(bundle)])):
        assert run([*base, *more, "-o", str(tmp_path / name)]) == 0, capsys.readouterr().err
    weights, engines = (json.loads((tmp_path / name / "quality.json").read_text()) for name in ("weights", "engines"))
    assert engines["budgets"]["2"] == weights["budgets"]["2"]
    assert engines["engine"] == "bundle"
    # of ten clips; softmax of float32 logits that agree to 2e-6
    assert engines["calibration_error"]["2"] == pytest.approx(weights["calibration_error"]["2"], abs=2e-4)


def test_a_loaded_checkpoint_computes_what_was_trained(shipped: Path) -> None:
    model, checkpoint = load_model(shipped)
    assert model.config.k_max == checkpoint.config["k_max"]
    assert not model.training


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--task", "tea"], "expected one of keywords, bytes"),
        (["--budgets", "99"], "'99' is none of"),
        (["--data", "nowhere"], "nowhere"),
    ],
)
def test_a_wrong_request_is_one_line(
    shipped: Path, tones: Path, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["evaluate", str(shipped), "--data", str(tones), *more]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
