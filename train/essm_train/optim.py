"""The optimiser of the paper: AdamW (0.9, 0.95), linear warm-up into a cosine, no decay on norms, embeddings and biases."""

from __future__ import annotations

import math

import torch
from torch import nn


def decays(name: str, parameter: nn.Parameter) -> bool:
    """Weight decay is for the matrices: linear weights and the projections M_k."""
    return parameter.ndim >= 2 and not name.startswith("embedding.")


def make_optimizer(model: nn.Module, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW over two groups, with decay and without."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for name, p in named if decays(name, p)], "weight_decay": weight_decay},
        {"params": [p for name, p in named if not decays(name, p)], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8)


def learning_rate(step: int, total: int, warmup: int, peak: float, floor: float) -> float:
    """The rate of the step-th of `total` steps: up to `peak` in `warmup` steps, then a cosine down to floor·peak."""
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return peak * (floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * progress)))


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr
