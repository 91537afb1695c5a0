"""What a model is trained on. A task gives the trainer its batches, its loss and its metric; the trainer knows no data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from essm_train.model import ModelConfig


@dataclass(frozen=True)
class Batch:
    """inputs [B, T] or [B, T, input_size]; lengths [B] valid steps (None: all); targets as the task's loss takes them."""

    inputs: Tensor
    lengths: Tensor | None
    targets: Tensor


class Task(Protocol):
    """The seam between the trainer and a data set."""

    name: str
    metric: str  # of `evaluate`
    direction: str  # "maximize" or "minimize"
    model_config: ModelConfig
    steps_per_epoch: int

    def batch(self, step: int) -> Batch:
        """The step-th training batch: a function of the seed and the step alone, so that a resumed run repeats it."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The scalar to minimise."""

    def evaluate(self, model: nn.Module, split: str, budget: int) -> float:
        """The metric of the model, in evaluation mode, with `budget` channels."""

    def samples(self, split: str) -> int:
        """How many samples `evaluate` judges."""

    def config_fields(self) -> dict[str, Any]:
        """What the checkpoint's config says about the task: `task`, `id2label`, `frontend`."""
