"""The Transformer++ of the size of an ES-SSM that is cut to a budget, at the same depth."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch

from essm_deploy.errors import UsageError
from essm_train.baselines.transformer import HEADS, parameter_count
from essm_train.model import EsSsm, ModelConfig, count_parameters

RATIO = 8 / 3  # of the feed-forward's width to the model's: Llama's
STEP = 2 * HEADS  # between widths: each head has pairs to rotate


@dataclass(frozen=True)
class Match:
    """Sizes of a Transformer++ whose parameters are nearest to `target`, those of the ES-SSM at `budget`."""

    budget: int
    target: int
    width: int
    intermediate_size: int
    parameters: int

    @property
    def percent(self) -> float:
        """By how much it is larger than the target."""
        return 100.0 * (self.parameters / self.target - 1.0)

    def config(self, elastic: ModelConfig) -> ModelConfig:
        """The elastic model's config at this width."""
        return dataclasses.replace(elastic, hidden_size=self.width)


def match(elastic: ModelConfig, budget: int) -> Match:
    """The width at which a feed-forward that makes up the target is nearest to RATIO times it, and that feed-forward.

    One unit of the feed-forward is 3 d parameters a layer, so the match is off by half of that at most. `elastic` is the
    ES-SSM's config. UsageError where not even the narrowest is as small.
    """
    target = elastic_parameters(elastic, budget)
    found, width = [], STEP
    while (candidate := _at(elastic, budget, target, width)) is not None:
        found.append(candidate)
        width += STEP
    if not found:
        depth = elastic.num_hidden_layers
        raise UsageError(f"K={budget}: no Transformer++ of {depth} layers is as small as {target} parameters; widen the model")
    return min(found, key=lambda m: abs(m.intermediate_size / m.width - RATIO))


def _at(elastic: ModelConfig, budget: int, target: int, width: int) -> Match | None:
    """The nearest match of one width, or None where what is no feed-forward is already too large."""
    config = dataclasses.replace(elastic, hidden_size=width)
    bare = parameter_count(config, 0)
    unit = parameter_count(config, 1) - bare
    size = round((target - bare) / unit)
    return Match(budget, target, width, size, bare + size * unit) if size >= 1 else None


def elastic_parameters(config: ModelConfig, budget: int) -> int:
    """Trained parameters of an ES-SSM cut to a budget, as the compiler counts them. Nothing is allocated."""
    with torch.device("meta"):
        model = EsSsm(config, np.zeros((config.k_max, config.k_max)), np.zeros(config.k_max))
    return count_parameters(model, budget)
