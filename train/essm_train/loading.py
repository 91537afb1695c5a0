"""A checkpoint as a torch model again, and a bundle's engines in the place of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from essm_deploy.checkpoint import Checkpoint
from essm_deploy.errors import UsageError
from essm_deploy.families import open_checkpoint
from essm_deploy.runtime import Model, Stream, load
from essm_train.export import FRONT_FILE
from essm_train.model import EsSsm, ModelConfig
from essm_train.tasks import Fronted, Task


def load_model(path: Path, task: Task | None = None) -> tuple[EsSsm, Checkpoint]:
    """The model of a checkpoint, in evaluation mode. A front is the task's, with the tensors that lie beside the model."""
    checkpoint = open_checkpoint(path)
    front = task.front() if isinstance(task, Fronted) else None
    config = config_of(checkpoint)
    model = EsSsm(config, checkpoint.tensor("bank.filters"), checkpoint.tensor("bank.sigma"), front)
    state = {name: torch.from_numpy(np.array(array)) for name, array in checkpoint.tensors.items()}
    if front is not None:
        state = {name: tensor for name, tensor in state.items() if not name.startswith("input.")}
        state |= {f"front.{name}": tensor for name, tensor in load_file(path / FRONT_FILE).items()}
    model.load_state_dict(state)
    return model.eval(), checkpoint


def begin_with(model: EsSsm, path: Path, task: Task) -> None:
    """Give a new model the weights of a checkpoint. UsageError where it is of another task or of other sizes."""
    try:
        given, wanted = load_model(path, task)[0].state_dict(), model.state_dict()
    except (ValueError, RuntimeError, OSError) as error:  # another kind of input, or no front beside it
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"{path}: --init takes a checkpoint of the task {task.name}, and this is none ({reason})") from error
    for name in sorted(given.keys() | wanted.keys()):
        shapes = [list(state[name].shape) if name in state else "none" for state in (given, wanted)]
        if shapes[0] != shapes[1]:
            raise UsageError(f"{path}: {name} is {shapes[0]}, this recipe's model has {shapes[1]}; --init takes equal sizes")
    model.load_state_dict(given)


def config_of(checkpoint: Checkpoint) -> ModelConfig:
    """The sizes that a checkpoint's config gives."""
    c = checkpoint.config
    labels = len(c["id2label"]) if c.get("id2label") is not None else int(c.get("num_outputs") or 0)
    return ModelConfig(
        hidden_size=c["hidden_size"],
        num_hidden_layers=c["num_hidden_layers"],
        seq_len=c["seq_len"],
        k_max=c["k_max"],
        vocab_size=c.get("vocab_size"),
        input_size=c.get("input_size"),
        num_labels=labels,
        layer_norm_eps=c["layer_norm_eps"],
        pooled=c["task"] != "sequence-regression",
    )


class Engines(nn.Module):
    """The engines of a bundle as a model: the same call, computed by what an app would run, one row at a time."""

    def __init__(self, bundle: Path, front: nn.Module | None = None) -> None:
        super().__init__()
        self.bundle, self.front = bundle, front
        self.opened: dict[int, Model] = {}
        self.eval()

    def budgets(self) -> list[int]:
        """The budgets that the bundle holds engines of."""
        manifest = load(self.bundle, verify=False).manifest
        held = {engine.budget for engine in manifest.engines}
        return sorted(int(budget.axes["k"]) for budget in manifest.budgets if budget.id in held)

    @torch.no_grad()
    def forward(self, inputs: Tensor, lengths: Tensor | None, budget: int) -> Tensor:
        if self.front is not None:
            inputs = self.front(inputs)
        model = self.opened.setdefault(budget, load(self.bundle, budget=budget, verify=False))
        rows = inputs.cpu().numpy()
        ends = [rows.shape[1]] * len(rows) if lengths is None else lengths.tolist()
        outputs = [torch.from_numpy(np.array(self._row(model, row, int(n)))) for row, n in zip(rows, ends, strict=True)]
        return torch.stack(outputs).to(inputs.device)

    def _row(self, model: Model, row: np.ndarray[Any, Any], length: int) -> np.ndarray[Any, Any]:
        pooled = bool(model.labels)
        if model.engine.kind == "stream":
            with model.stream() as stream:
                return self._streamed(stream, row[:length] if pooled else row, pooled)
        inputs: dict[str, Any] = {model.engine.inputs[0].name: row[:length] if pooled else row}
        return next(iter(model.run(**inputs).values()))

    def _streamed(self, stream: Stream, row: np.ndarray[Any, Any], pooled: bool) -> np.ndarray[Any, Any]:
        return stream.push(row, all_positions=not pooled)


def open_engines(bundle: Path, task: Task, model: EsSsm) -> Engines:
    """The bundle's engines for a task's batches. UsageError where the bundle has none."""
    engines = Engines(bundle, model.front)
    if not engines.budgets():
        raise UsageError(f"{bundle}: holds no engine; build it with essm-deploy build")
    return engines
