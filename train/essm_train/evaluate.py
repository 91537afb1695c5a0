"""The metric of a trained model at every budget: the content of a checkpoint's quality.json."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import nn

from essm_train.tasks import Task


def measure_quality(task: Task, model: nn.Module, budgets: Sequence[int], split: str) -> dict[str, Any]:
    """`budgets` maps each K to the metric (a fraction, for accuracy) over all `samples` of the split."""
    values = {str(k): round(task.evaluate(model, split, k), 6) for k in budgets}
    return {
        "schema_version": "1.0",
        "metric": task.metric,
        "direction": task.direction,
        "split": split,
        "samples": task.samples(split),
        "budgets": values,
    }


def standard_error(share: float, samples: int) -> float:
    """Of a share measured on independent samples: sqrt(p (1 - p) / n)."""
    return math.sqrt(max(0.0, share * (1.0 - share)) / samples)
