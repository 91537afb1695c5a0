"""What a trained model is worth at every budget: the metric, where it holds and where it collapses, calibration, channels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from essm_train.tasks import Task

SWEET_SPOT, COLLAPSE = 0.98, 0.90  # of the full budget's metric (arXiv 2601.22488, appendix G)
BINS = 15  # of the calibration error (Guo et al. 2017)
FIRST = 8  # the channels whose share of the importance is reported


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


def retention(values: Mapping[str, float], direction: str) -> dict[str, float]:
    """Of each budget: the share of the largest budget's metric that it keeps, 1 = all of it. NaN where signs forbid a share."""
    full = values[max(values, key=int)]
    pairs = {k: (v, full) if direction == "maximize" else (full, v) for k, v in values.items()}
    return {k: a / b if a > 0.0 and b > 0.0 else math.nan for k, (a, b) in pairs.items()}


def smallest_keeping(values: Mapping[str, float], direction: str, share: float) -> int | None:
    """The smallest budget from which on every larger one keeps the share."""
    kept = retention(values, direction)
    smallest = None
    for k in sorted(kept, key=int, reverse=True):
        if not kept[k] >= share:
            break
        smallest = int(k)
    return smallest


def calibration_error(logits: Tensor, labels: Tensor) -> float:
    """Expected calibration error: over BINS equal intervals of confidence, the mean gap to the accuracy, by their samples."""
    confidence, best = torch.softmax(logits.double(), dim=1).max(dim=1)
    right = (best == labels).double()
    bins = (confidence * BINS).ceil().long().clamp(1, BINS)
    gaps = [(right[bins == b].sum() - confidence[bins == b].sum()).abs() for b in range(1, BINS + 1)]
    return float(sum(gaps)) / len(labels)


@contextmanager
def without_channel(model: nn.Module, channel: int) -> Iterator[None]:
    """The model with one channel's projection at zero in every layer; the others keep their gates and the scale 1 / sqrt(K)."""
    projections = [layer.get_parameter("spectral.projection") for layer in model.get_submodule("layers").children()]
    kept = [p.data[channel].clone() for p in projections]
    try:
        for p in projections:
            p.data[channel].zero_()
        yield
    finally:
        for p, values in zip(projections, kept, strict=True):
            p.data[channel].copy_(values)


def channel_importance(task: Task, model: nn.Module, budget: int, split: str) -> dict[str, Any]:
    """`loss` of the metric at `budget` when each channel alone is knocked out, and the first channels' share of all losses.

    A loss is positive where the channel helps. The share counts those only; None where no channel helps.
    """
    sign = 1.0 if task.direction == "maximize" else -1.0
    whole = task.evaluate(model, split, budget)
    losses = []
    for channel in range(budget):
        with without_channel(model, channel):
            losses.append(sign * (whole - task.evaluate(model, split, budget)))
    helpful = [max(0.0, loss) for loss in losses]
    share = sum(helpful[:FIRST]) / sum(helpful) if sum(helpful) > 0.0 else None
    return {"budget": budget, "loss": [round(x, 6) for x in losses], f"first_{FIRST}_share": share and round(share, 4)}
