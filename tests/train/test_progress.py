"""What a run tells: throughput and MFU by the paper's count, TensorBoard events, and torch.compile as an equal step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from essm_deploy.errors import UnavailableError
from essm_train.model import ModelConfig
from essm_train.optim import make_optimizer
from essm_train.parallel import World
from essm_train.progress import Progress
from essm_train.step import Method, optimise, plan_step
from essm_train.throughput import macs_per_token, peak_flops, step_flops
from essm_train.trainer import compiled
from tests.train.test_step import SAMPLER, Words, settings

MAIN = ModelConfig(1152, 24, 2048, vocab_size=258)


@pytest.mark.parametrize("budget", [2, 32])
def test_the_operations_are_those_of_the_papers_table(budget: int) -> None:
    d, k = 1152, budget
    layer = k * d * d + k * d // 2 + d * d // 2 + 8 * d * d
    assert macs_per_token(MAIN, budget) == 24 * layer + 258 * d
    assert step_flops(MAIN, budget, 1000) == 6.0 * macs_per_token(MAIN, budget) * 1000


def test_a_pooled_head_is_not_paid_at_every_token() -> None:
    pooled = ModelConfig(64, 4, 100, input_size=40, num_labels=10)
    assert macs_per_token(pooled, 1) == 4 * (64 * 64 + 32 + 64 * 32 + 8 * 64 * 64) + 40 * 64


def test_a_cpu_has_no_peak_to_compare_with() -> None:
    assert peak_flops(torch.device("cpu")) is None


def test_an_epoch_logs_its_throughput_and_mfu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 110.0])
    monkeypatch.setattr("essm_train.progress.time.monotonic", lambda: next(clock))
    progress = Progress(tmp_path / "log.jsonl", 0, 4, 2)
    progress.step(0, 2.0, 1.0, [4], tokens=300, flops=1e12)
    progress.step(1, 1.0, 1.0, [4, 2], tokens=200, flops=1e12)
    progress.epoch(2, peak=1e12)
    entries = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [entry["budget"] for entry in entries[:2]] == [4, [4, 2]]
    assert entries[2] == {
        "epoch": 1, "mean_loss": 1.5, "seconds": 10.0, "tokens_per_second": 50.0, "flops_per_second": 200000000000, "mfu": 0.2,
    }  # fmt: skip


def test_events_for_tensorboard(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "log.jsonl", 0, 2, 1, tmp_path / "tensorboard")
    progress.step(0, 2.0, 1.0, [4], lr=0.1)
    progress.evaluated(1, "accuracy", {2: 0.5})
    progress.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert events.Scalars("loss")[0].value == 2.0
    assert events.Scalars("val_accuracy/K=2")[0].value == 0.5


def test_tensorboard_that_is_not_installed_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(UnavailableError, match=r"pip install 'essm-deploy\[tensorboard\]'"):
        Progress(tmp_path / "log.jsonl", 0, 2, 1, tmp_path / "tensorboard")


def test_a_compiled_model_takes_the_same_steps_with_one_graph_for_each_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[Any] = []

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward  # the tracing is what is tested; generating code for it takes minutes

    plain = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **kw: plain(self, backend=backend, **kw))
    task, found = Words(), []
    for compile_it in (False, True):
        recipe = settings().with_train(compile=compile_it)
        model = compiled(task.model(), recipe)
        optimizer, losses = make_optimizer(model, 1e-2, 0.1), []
        for step in range(12):
            parts = plan_step(task.batch(step), step, recipe, SAMPLER, World())
            losses.append(optimise(model, task, parts, optimizer, Method())[0])  # type: ignore[arg-type]
        found.append(losses)
    assert found[1] == pytest.approx(found[0], rel=1e-5)
    assert len(graphs) == 3  # the three budgets
