"""The averaged weights, which are the ones exported."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from essm_train.parallel import local


class Average:
    """Exponential average of the weights, which starts as a copy of them. Decay 0: the model itself."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.model = model
        if decay > 0.0:
            self.model = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move towards the model's weights by 1 - decay."""
        if self.model is not model:
            ours, theirs = ([local(p) for p in side.parameters()] for side in (self.model, model))
            torch._foreach_lerp_(ours, theirs, 1.0 - self.decay)

    def state_dict(self) -> dict[str, Any]:
        return self.model.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state)
