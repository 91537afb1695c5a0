"""What a model family brings: how to read its config, what tensors it has, how to slice, judge and lower it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import onnx
from numpy.typing import NDArray

from essm_deploy.checkpoint import Checkpoint, TensorSpec
from essm_deploy.graph.builder import Dim
from essm_deploy.graph.weights import Region
from essm_deploy.runtime.manifest import TensorInfo

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Plan:
    """How a model is to be compiled for a target: tokens per call, batch (a number or a free name), lowering."""

    length: int
    batch: Dim = 1
    lowering: str | None = None


@dataclass(frozen=True)
class Signature:
    """What a sequence engine takes and gives."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]


class ModelConfig(Protocol):
    """The part of every family's config that the pipeline reads."""

    @property
    def seq_len(self) -> int:
        """The longest sequence that the model was trained on, in tokens."""
        ...

    @property
    def k_max(self) -> int:
        """The largest budget."""
        ...

    @property
    def budgets(self) -> Sequence[int]:
        """The budgets that training visited, ascending."""
        ...


class Family(Protocol):
    """A model family. Every `checkpoint` argument has passed `open_checkpoint`."""

    @property
    def model_type(self) -> str:
        """The `model_type` in config.json."""
        ...

    def config(self, checkpoint: Checkpoint) -> ModelConfig:
        """Parse and check config.json; CheckpointError."""
        ...

    def tensor_table(self, checkpoint: Checkpoint) -> Iterable[TensorSpec]:
        """Every tensor that the config implies."""
        ...

    def parameter_count(self, checkpoint: Checkpoint, budget: int) -> int:
        """Trained parameters at a budget."""
        ...

    def slice(self, checkpoint: Checkpoint, budget: int) -> Checkpoint:
        """A standalone checkpoint of that budget; UsageError if it is out of range."""
        ...

    def signature(self, checkpoint: Checkpoint, plan: Plan) -> Signature:
        """Inputs and outputs of the engine that `lower` makes."""
        ...

    def reference(self, checkpoint: Checkpoint, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """The float64 judge: outputs of the checkpoint at its own k_max."""
        ...

    def example_inputs(self, checkpoint: Checkpoint, count: int, seed: int) -> Arrays:
        """`count` lawful inputs, drawn from `seed`, one of them shorter than the model's length where that is allowed."""
        ...

    def lower(self, checkpoint: Checkpoint, plan: Plan, weights: Mapping[str, Region], constants: Path) -> onnx.ModelProto:
        """The ONNX graph of the checkpoint at its own k_max; constants of its own go to that new file."""
        ...
