"""Every task's model, trained for a step and exported, compiles: engine, torch and float64 reference agree on its data."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from essm_deploy.backends import BACKENDS
from essm_deploy.backends.emit import prepare
from essm_deploy.checkpoint import Checkpoint
from essm_deploy.errors import UsageError
from essm_deploy.families import open_checkpoint
from essm_deploy.families.es_ssm.config import EsSsmConfig
from essm_deploy.families.es_ssm.reference import forward
from essm_deploy.runtime.session import OrtSession
from essm_deploy.spectral.bank import hankel_bank
from essm_train.cli import run
from essm_train.export import export_checkpoint
from essm_train.job import make_model
from essm_train.loading import begin_with
from essm_train.model import EsSsm
from essm_train.optim import make_optimizer
from essm_train.registry import TASKS
from essm_train.step import Method, Part, optimise
from essm_train.tasks import Batch, Task
from essm_train.tasks.decision_model import Conditioned
from tests.train.recipes import smoke_recipe

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]
NAMES = ["listops", "text", "retrieval", "images", "pathfinder", "decision", "dna", "mqar"]
CLOSE = 5e-6
"""What float32 sums of some hundred products lose in two layers whose spectral branch has a gain of order 1."""


def trained(name: str, folder: Path) -> tuple[Task, EsSsm, Checkpoint]:
    """After one step, and with projections large enough that the filters matter."""
    recipe, module = smoke_recipe(name), TASKS[name].load()
    task = module.build(recipe, module.smoke_data(folder / "data"), CPU)
    bank = hankel_bank(task.model_config.seq_len, recipe.model.k_max, method="exact")
    model = make_model(task, bank, recipe, CPU)
    with torch.no_grad():
        for layer in model.layers:
            layer.spectral.projection.mul_(300.0)
    optimise(model, task, [Part(task.batch(0), 2)], make_optimizer(model, 1e-3, 0.01), Method())
    quality = {"schema_version": "1.0", "metric": task.metric, "direction": task.direction, "split": "test", "samples": 1}
    values = {str(k): 0.5 for k in recipe.budgets.trained}
    export_checkpoint(
        folder / "out", model, bank, recipe.budgets.trained, task.config_fields(), quality | {"budgets": values}, "A card."
    )
    return task, model.eval(), open_checkpoint(folder / "out")


@torch.no_grad()
def feed_of(task: Task, model: EsSsm, batch: Batch) -> dict[str, np.ndarray]:
    """What an engine is given for the batch's first row: behind a front, what the front makes of it."""
    config = task.model_config
    values = (batch.inputs if model.front is None else model.front(batch.inputs))[:1].numpy()
    padding = [(0, 0), (0, config.seq_len - values.shape[1]), *[(0, 0)] * (values.ndim - 2)]
    feed = {"tokens" if config.vocab_size is not None else "features": np.pad(values, padding)}
    if config.pooled and not config.tied:
        feed["lengths"] = np.array([config.seq_len]) if batch.lengths is None else batch.lengths[:1].numpy()
    return feed


def apart(value: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(value - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("name", NAMES)
def test_the_engine_computes_what_was_trained(name: str, tmp_path: Path, shared_banks: None) -> None:
    task, model, checkpoint = trained(name, tmp_path)
    config, batch = EsSsmConfig.model_validate(checkpoint.config), task.batch(1)
    feed: dict[str, Any] = feed_of(task, model, batch)
    (tmp_path / "engines").mkdir()
    emitter = prepare(tmp_path / "engines", checkpoint, [2, 4], 1, BACKENDS["onnxruntime"])
    for budget in (2, 4):
        (engine,) = OrtSession(tmp_path / "engines", emitter.sequence(budget), threads=1).run(feed).values()
        values = feed.get("tokens", feed.get("features"))
        expected = forward(config, checkpoint.tensors, values, feed.get("lengths"), budget)
        with torch.no_grad():
            lengths = None if batch.lengths is None else batch.lengths[:1]
            torch_says = model(batch.inputs[:1], lengths, budget).numpy()
        steps = None if config.pooled else torch_says.shape[1]
        assert apart(engine, expected) <= CLOSE
        assert apart(torch_says, expected[:, :steps] if steps else expected) <= CLOSE


def test_a_run_can_begin_with_the_weights_of_a_checkpoint(tmp_path: Path, shared_banks: None) -> None:
    task, model, _ = trained("mqar", tmp_path)
    bank = hankel_bank(task.model_config.seq_len, smoke_recipe("mqar").model.k_max, method="exact")
    fresh = make_model(task, bank, smoke_recipe("mqar"), CPU)
    assert not torch.equal(fresh.layers[0].spectral.projection, model.layers[0].spectral.projection)
    begin_with(fresh, tmp_path / "out", task)
    for (name, new), (_, old) in zip(fresh.state_dict().items(), model.state_dict().items(), strict=True):
        assert torch.equal(new, old), name


def test_weights_of_other_sizes_are_refused_and_nothing_is_trained(
    tmp_path: Path, shared_banks: None, capsys: pytest.CaptureFixture[str]
) -> None:
    trained("mqar", tmp_path)
    begin = ["--init", str(tmp_path / "out"), "-o", str(tmp_path / "new"), "--device", "cpu"]
    assert run(["listops", "--smoke", *begin]) == UsageError.exit_code
    assert "--init takes equal sizes" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_weights_of_another_task_are_refused(tmp_path: Path, shipped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begin = ["--init", str(shipped), "-o", str(tmp_path / "new"), "--device", "cpu"]
    assert run(["decision", "--smoke", *begin]) == UsageError.exit_code
    assert "--init takes a checkpoint of the task decision" in capsys.readouterr().err


def test_a_run_that_began_with_a_checkpoint_does_not_go_on_as_one_that_did_not(
    tmp_path: Path, shared_banks: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained("mqar", tmp_path)
    output = ["-o", str(tmp_path / "new"), "--device", "cpu"]
    monkeypatch.setattr("essm_train.job.measure_quality", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    assert run(["mqar", "--smoke", "--init", str(tmp_path / "out"), *output]) == 130
    assert run(["mqar", "--smoke", *output]) == UsageError.exit_code
    assert "another recipe, seed or --init" in capsys.readouterr().err


class Compiled:
    """What the example asks of a runtime.Model: run(features [1, T, d]), padded to the engine's length and cut back."""

    def __init__(self, folder: Path, checkpoint: Checkpoint, budget: int) -> None:
        folder.mkdir()
        self.session = OrtSession(folder, prepare(folder, checkpoint, [budget], 1, BACKENDS["onnxruntime"]).sequence(budget))
        self.length = checkpoint.config["seq_len"]

    def run(self, features: np.ndarray) -> dict[str, np.ndarray]:
        steps = features.shape[1]
        padded = np.pad(features, [(0, 0), (0, self.length - steps), (0, 0)])
        return {"logits": self.session.run({"features": padded})["logits"][:, :steps]}


def test_the_example_acts_with_an_engine_as_the_policy_does_in_torch(tmp_path: Path, shared_banks: None) -> None:
    task, model, checkpoint = trained("decision", tmp_path)
    spec = importlib.util.spec_from_file_location("policy_app", ROOT / "examples" / "policy_app" / "app.py")
    assert spec is not None
    assert spec.loader is not None
    app = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(app)
    mine = app.Policy(tmp_path / "out", Compiled(tmp_path / "engines", checkpoint, 4))
    theirs = Conditioned(model, 4, task.scaling, task.recipe.data.context, task.target, CPU)
    theirs.reset(1)
    rng, reward = np.random.default_rng(0), 0.0
    for _ in range(7):  # three more than the context
        seen = rng.standard_normal(11).astype(np.float32)
        expected = theirs.act(seen[None], np.full(1, reward, np.float32), np.arange(1))[0]
        np.testing.assert_allclose(mine.act(seen, reward), expected, atol=1e-5)
        reward = float(rng.random())
