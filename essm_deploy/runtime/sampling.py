"""Choosing the next token from logits."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from essm_deploy.errors import EssmError, InputError
from essm_deploy.runtime.tensors import Array


@dataclass(frozen=True)
class Sampling:
    """How to choose: `temperature` 0 takes the likeliest token; `top_k` keeps that many of the likeliest; `top_p` keeps the
    likeliest that together reach that probability (Holtzman et al., arXiv 1904.09751). InputError out of range."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise InputError(f"the temperature is {self.temperature}, expected a finite number of at least 0")
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k is {self.top_k}, expected at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p}, expected more than 0 and at most 1")

    def choose(self, shifted: Array, weights: Array, rng: np.random.Generator) -> int:
        """An index of [n], given the logits less their largest and the exponentials of that, both float64 [n].

        One number is drawn from `rng`, also where there is no choice.
        """
        draw = rng.random()
        if self.temperature == 0:
            return int(shifted.argmax())
        if self.temperature != 1:
            weights = np.exp((shifted - shifted.max()) / self.temperature)
        if self.top_k is not None or self.top_p is not None:
            weights = self._cut(weights)
        sums = weights.cumsum()
        index = int(sums.searchsorted(draw * sums[-1], side="right"))
        return index if index < len(sums) else int(weights.nonzero()[0][-1])  # the product was rounded up to the sum

    def _cut(self, weights: Array) -> Array:
        """Zero for what is not among the likeliest."""
        order = np.argsort(-weights, kind="stable")[: self.top_k]
        if self.top_p is not None:
            sums = weights[order].cumsum()
            order = order[: int(sums.searchsorted(self.top_p * sums[-1])) + 1]
        kept = np.zeros_like(weights)
        kept[order] = weights[order]
        return kept


def softmax_parts(logits: Array) -> tuple[Array, Array, Array]:
    """Logits [n, V] less the largest of their row, the exponentials of that, and the sums of those [n], in float64.

    Raises EssmError if a logit is NaN or too large to be one.
    """
    shifted = logits.astype(np.float64)
    largest = shifted.max(axis=-1, keepdims=True)
    if not np.isfinite(largest).all():
        raise EssmError("the engine gave logits that are not finite: verify the bundle")
    shifted -= largest
    weights = np.exp(shifted)
    return shifted, weights, weights.sum(axis=-1)


def bits(logits: Array, tokens: Array) -> float:
    """-log2 of the probability that logits [n, V] give to tokens [n], summed over n."""
    shifted, _, sums = softmax_parts(logits)
    return float((np.log(sums) - shifted[np.arange(len(tokens)), tokens]).sum()) / math.log(2)
