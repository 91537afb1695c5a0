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
from essm_deploy.graph.dtypes import Precision
from essm_deploy.graph.weights import Region
from essm_deploy.runtime.manifest import TensorInfo
from essm_deploy.spectral.lowerings.base import ConvProblem, Lowering
from essm_deploy.spectral.lowerings.streams import Recurrent, StreamLowering

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Plan:
    """One engine to be made: tokens per call, batch (a number or a free name), and how the convolution is spelled.

    The lowering decides the kind: a `Lowering` makes a sequence engine, a `StreamLowering` a stream engine; None is the
    cheapest lawful lowering by estimate. `precision` is that of the GEMMs outside the spectral island, which is float32.
    """

    length: int
    batch: Dim = 1
    lowering: Lowering | StreamLowering | None = None
    precision: Precision = "fp32"


@dataclass(frozen=True)
class Signature:
    """What an engine takes and gives."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]


@dataclass(frozen=True)
class Lowered:
    """A graph, not yet checked, and what it takes and gives."""

    model: onnx.ModelProto
    signature: Signature


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

    @property
    def generative(self) -> bool:
        """Whether the model is run token by token: its latency is then that of a step of the stream."""
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

    def main_tensors(self, checkpoint: Checkpoint) -> frozenset[str]:
        """The tensors that are used, and so stored, in the main precision of an engine."""
        ...

    def parameter_count(self, checkpoint: Checkpoint, budget: int) -> int:
        """Trained parameters at a budget."""
        ...

    def slice(self, checkpoint: Checkpoint, budget: int) -> Checkpoint:
        """A standalone checkpoint of that budget; UsageError if it is out of range."""
        ...

    def reference(self, checkpoint: Checkpoint, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """The float64 judge: outputs of the checkpoint at its own k_max."""
        ...

    def stream_chunks(self, checkpoint: Checkpoint) -> tuple[int, ...]:
        """Tokens a call of the stream engines that a bundle gets: one for a step, and more for what is already there."""
        ...

    def example_inputs(self, checkpoint: Checkpoint, count: int, seed: int) -> Arrays:
        """`count` lawful inputs, drawn from `seed`, one of them shorter than the model's length where that is allowed."""
        ...

    def problem(self, checkpoint: Checkpoint, plan: Plan) -> ConvProblem:
        """The convolution inside every layer of the engine, which the planner chooses a lowering for."""
        ...

    def lower(self, checkpoint: Checkpoint, plan: Plan, weights: Mapping[str, Region], constants: Path) -> Lowered:
        """The engine's graph at the checkpoint's own k_max; constants of its own go to that new file."""
        ...

    def anchor(self, checkpoint: Checkpoint, lowering: Recurrent, batch: Dim, constants: Path) -> Lowered:
        """The graph that makes a stream's state anew from the last L layer inputs."""
        ...
