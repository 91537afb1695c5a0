"""What every lowering offers: what it can express, how exact it is, what it costs, and the graph it emits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from essm_deploy.graph.builder import Dim, GraphBuilder


@dataclass(frozen=True)
class ConvProblem:
    """One causal convolution with K filters: u [batch, length, width] -> features [batch, length * K, width].

    `filters` is [K, L] in float64; `length` <= L is the number of tokens that the engine takes.
    """

    filters: NDArray[np.float64]
    length: int
    width: int
    batch: Dim = 1

    @property
    def channels(self) -> int:
        """K, the number of filters."""
        return int(self.filters.shape[0])


@dataclass(frozen=True)
class Cost:
    """What one call takes at batch 1: floating-point operations, bytes moved, kernel launches."""

    flops: int
    bytes: int
    launches: int


class Lowering(Protocol):
    """A lowering. Features come out in rows (token, channel): row t * K + k is filter k at token t."""

    @property
    def name(self) -> str:
        """How `--lowering` and the manifest call it."""
        ...

    def refusal(self, problem: ConvProblem) -> str | None:
        """Why it cannot express the problem, or None."""
        ...

    def residual(self, problem: ConvProblem) -> NDArray[np.float64]:
        """Relative 2-norm error of each filter as this lowering realizes it in exact arithmetic, [K]."""
        ...

    def cost(self, problem: ConvProblem) -> Cost:
        """The price of one call."""
        ...

    def emit(self, builder: GraphBuilder, problem: ConvProblem, u: str) -> str:
        """Append the nodes; u is [batch, length, width] in float32. Returns features [batch, length * K, width]."""
        ...
