"""The loop: a killed run goes on to the same weights, a diverging one stops, and a whole run ends in a checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from essm_deploy.errors import EssmError, UsageError
from essm_deploy.families import open_checkpoint
from essm_train.average import Average
from essm_train.cli import run
from essm_train.job import training_folder
from essm_train.model import EsSsm, ModelConfig
from essm_train.optim import make_optimizer
from essm_train.settings import Settings, load_settings
from essm_train.share import ALL, Share
from essm_train.state import load_state, save_state
from essm_train.step import Method, Part, optimise
from essm_train.tasks import Batch
from essm_train.trainer import Run, Training, train

RECIPE = """
[model]
hidden_size = 8
num_hidden_layers = 2
k_max = 6
[budgets]
trained = [2, 4, 6]
n_full = 3
warmup_epochs = 1
[optimizer]
lr = 1e-2
[train]
batch_size = 4
epochs = 3
ema = 0.9
eval_every = 2
"""
LENGTH = 12


class Toy:
    """A task of random vectors whose class is the sign of their sum."""

    name, metric, direction, steps_per_epoch = "toy", "accuracy", "maximize", 5

    def __init__(self, settings: Settings, stop_at: int | None = None) -> None:
        m = settings.model
        self.settings, self.stop_at = settings, stop_at
        self.model_config = ModelConfig(m.hidden_size, m.num_hidden_layers, LENGTH, m.k_max, input_size=3, num_labels=2)

    def batch(self, step: int, share: Share = ALL) -> Batch:
        assert share == ALL
        if step == self.stop_at:
            raise KeyboardInterrupt
        inputs = torch.randn(4, LENGTH, 3, generator=torch.Generator().manual_seed(step))
        return Batch(inputs, None, (inputs.sum((1, 2)) > 0).long())

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits, targets)

    def evaluate(self, model: torch.nn.Module, split: str, budget: int) -> float:
        return 0.5

    def model(self) -> EsSsm:
        torch.manual_seed(self.settings.train.seed)
        return EsSsm(self.model_config, np.eye(self.model_config.k_max, LENGTH), np.ones(self.model_config.k_max))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return load_settings("keywords", tmp_path / "recipe.toml")


def weights(model: EsSsm) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("stop_at", [1, 7, 13])
def test_a_resumed_run_ends_with_the_same_weights_to_the_bit(settings: Settings, tmp_path: Path, stop_at: int) -> None:
    whole = Toy(settings)
    wanted = weights(train(whole.model(), whole, settings, Run(tmp_path / "whole")))
    stopped = Toy(settings, stop_at)
    with pytest.raises(KeyboardInterrupt):
        train(stopped.model(), stopped, settings, Run(tmp_path / "parts"))
    assert (tmp_path / "parts" / "state.pt").exists() == (stop_at > whole.steps_per_epoch)
    torch.rand(100)  # whatever else the process drew must not matter
    got = weights(train(whole.model(), whole, settings, Run(tmp_path / "parts")))
    assert torch.equal(got, wanted)


def test_another_seed_ends_elsewhere(settings: Settings, tmp_path: Path) -> None:
    ends = []
    for seed in (0, 1):
        task = Toy(settings.with_train(seed=seed))
        ends.append(weights(train(task.model(), task, task.settings, Run(tmp_path / str(seed)))))
    assert not torch.equal(*ends)


def test_the_log_tells_the_budget_of_every_step(settings: Settings, tmp_path: Path) -> None:
    task = Toy(settings)
    train(task.model(), task, settings, Run(tmp_path))
    entries = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    budgets = [entry["budget"] for entry in entries if "budget" in entry]
    assert len(budgets) == 15
    assert budgets[:5] == [6] * 5  # warm-up
    assert {budgets[6], budgets[9], budgets[12]} == {6}  # every third step
    assert {"2", "4", "6"} == set(next(entry["values"] for entry in entries if "metric" in entry))


def test_without_resume_the_old_state_is_dropped(settings: Settings, tmp_path: Path) -> None:
    task = Toy(settings)
    wanted = weights(train(task.model(), task, settings, Run(tmp_path)))
    save_state(tmp_path / "state.pt", {"recipe": settings.to_dict(), "step": 10, "model": {}, "average": {}, "optimizer": {}})
    got = weights(train(task.model(), task, settings, Run(tmp_path, resume=False)))
    assert torch.equal(got, wanted)


def test_a_state_of_another_recipe_is_refused(settings: Settings, tmp_path: Path) -> None:
    task = Toy(settings)
    train(task.model(), task, settings, Run(tmp_path))
    with pytest.raises(UsageError, match="another recipe, seed or --init"):
        train(task.model(), task, settings.with_train(seed=5), Run(tmp_path))


class Harmful:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.system, ("touch harmed",))


def test_a_state_that_would_run_code_is_refused_unrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"recipe": Harmful()}, "state.pt")
    with pytest.raises(UsageError, match="not a readable training state"):
        load_state(Path("state.pt"), {})
    assert not Path("harmed").exists()


def test_a_truncated_state_is_refused(tmp_path: Path) -> None:
    save_state(tmp_path / "state.pt", {"recipe": {}})
    data = (tmp_path / "state.pt").read_bytes()
    (tmp_path / "state.pt").write_bytes(data[: len(data) // 2])
    with pytest.raises(UsageError, match="--no-resume"):
        load_state(tmp_path / "state.pt", {})


def test_a_loss_that_is_no_number_stops_the_run_before_it_harms_the_weights(settings: Settings) -> None:
    task = Toy(settings)
    model = task.model()
    before, batch = weights(model).clone(), task.batch(0)
    batch.inputs[0, 0, 0] = float("nan")
    with pytest.raises(EssmError, match=r"diverged.*lower optimizer\.lr"):
        optimise(model, task, [Part(batch, 6)], make_optimizer(model, 1e-2, 0.1), Method(clip=1.0))
    assert torch.equal(weights(model), before)


def test_gradients_are_clipped_to_the_norm(settings: Settings) -> None:
    task = Toy(settings)
    model = task.model()
    batch = task.batch(0)
    _, norm = optimise(model, task, [Part(batch, 6)], make_optimizer(model, 1e-2, 0.1), Method(clip=1e-3))
    clipped = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm()
    assert norm > 1e-3
    assert float(clipped) == pytest.approx(1e-3, rel=1e-3)


def test_the_average_follows_the_weights(settings: Settings) -> None:
    model = Toy(settings).model()
    average, start = Average(model, 0.75), weights(model).clone()
    with torch.no_grad():
        for p in model.parameters():
            p += 1.0
    average.update(model)
    assert torch.allclose(weights(average.model), start + 0.25, atol=1e-6)
    assert Average(model, 0.0).model is model


def test_the_saved_state_holds_all_that_changes(settings: Settings, tmp_path: Path) -> None:
    model = Toy(settings).model()
    training = Training(model, Average(model, 0.9), make_optimizer(model, 1e-2, 0.1), step=4)
    training.save(tmp_path / "state.pt", {})
    assert set(torch.load(tmp_path / "state.pt", weights_only=True)) == {"recipe", "step", "model", "average", "optimizer"}


def start(tones: Path, output: Path, recipe: Path) -> subprocess.Popen[str]:
    program = "import sys; from essm_train.cli import run; sys.exit(run(sys.argv[1:]))"
    arguments = ["keywords", "--data-dir", str(tones), "-o", str(output), "--config", str(recipe), "--device", "cpu"]
    return subprocess.Popen([sys.executable, "-c", program, *arguments], stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    _, messages = process.communicate(timeout=200)
    assert process.returncode == 0, messages
    return messages


def kill_when_it_exists(path: Path, process: subprocess.Popen[str]) -> None:
    while process.poll() is None and not path.exists():
        time.sleep(0.005)
    process.kill()
    process.communicate()


def test_a_run_killed_at_any_moment_ends_like_one_that_was_not(tones: Path, tmp_path: Path, keyword_bank: None) -> None:
    recipe, whole, parts = tmp_path / "recipe.toml", tmp_path / "whole", tmp_path / "parts"
    recipe.write_text(RECIPE.replace("epochs = 3", "epochs = 6"))
    undisturbed = start(tones, whole, recipe)
    kill_when_it_exists(training_folder(parts) / "state.pt", start(tones, parts, recipe))
    assert not parts.exists()
    assert "resuming after step" in finish(start(tones, parts, recipe))
    finish(undisturbed)
    for name in ("model.safetensors", "quality.json"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes()


def test_a_smoke_run_ends_in_a_checkpoint_with_its_card(
    tones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], keyword_bank: None
) -> None:
    recipe, output = tmp_path / "recipe.toml", tmp_path / "spotter"
    recipe.write_text(RECIPE)
    assert run(["keywords", "--data-dir", str(tones), "-o", str(output), "--config", str(recipe), "--smoke"]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{output}\n"
    assert "epoch 2/2" in captured.err
    checkpoint = open_checkpoint(output)
    assert checkpoint.config["id2label"]["9"] == "yes"
    assert checkpoint.config["frontend"]["type"] == "log_mel"
    assert checkpoint.quality is not None
    assert list(checkpoint.quality["budgets"]) == ["2", "4", "6"]
    assert (checkpoint.quality["split"], checkpoint.quality["samples"]) == ("test", 10)
    assert "essm-train keywords --data-dir speech_commands -o CHECKPOINT --config recipe.toml --smoke" in checkpoint.card
    assert str(tmp_path) not in checkpoint.card
    assert not (training_folder(output) / "state.pt").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["keywords"], 2, "Missing option"),
        (["keywords", "--data-dir", "nowhere", "-o", "x"], 2, "no such directory"),
        (["keywords", "--data-dir", "nowhere", "-o", "x", "--config", "none.toml"], 2, "none.toml"),
        (["keywords", "--data-dir", "nowhere", "-o", "x", "--device", "tpu"], 2, "tpu"),
        (["keyword"], 2, "keyword"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == code
    assert message in capsys.readouterr().err


def test_an_output_that_holds_something_else_is_refused_before_training(
    tones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.txt").write_text("do not lose")
    assert run(["keywords", "--data-dir", str(tones), "-o", str(tmp_path)]) == 2
    assert "did not write" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").read_text() == "do not lose"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_exit_code_3(tones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["keywords", "--data-dir", str(tones), "-o", str(tmp_path / "x"), "--device", "cuda"]) == 3
    assert "--device cpu" in capsys.readouterr().err


def test_ctrl_c_says_how_to_go_on(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("essm_train.job.train_task", interrupt)
    assert run(["keywords", "--data-dir", str(tones), "-o", str(tmp_path / "x")]) == 130
    assert "same command goes on" in capsys.readouterr().err
