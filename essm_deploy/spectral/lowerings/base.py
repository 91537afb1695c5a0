"""What every lowering offers: what it can express, how exact it is, what it costs, and the graph it emits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from essm_deploy.graph.builder import Dim, GraphBuilder


@dataclass(frozen=True)
class ConvProblem:
    """One gated causal convolution with K filters: u [batch, length, width] -> rows [batch * length, K * width].

    `filters` is [K, L] in float64 and `sigma` [K] are their eigenvalues, None where nobody knows them; `length` is the number
    of tokens that the engine takes.
    """

    filters: NDArray[np.float64]
    length: int
    width: int
    batch: Dim = 1
    sigma: NDArray[np.float64] | None = None

    @property
    def channels(self) -> int:
        """K, the number of filters."""
        return int(self.filters.shape[0])

    @property
    def taps(self) -> int:
        """L, the length of every filter."""
        return int(self.filters.shape[1])

    @property
    def free_batch(self) -> int:
        """The batch as Reshape wants it: -1 where it is only known at run time."""
        return self.batch if isinstance(self.batch, int) else -1


@dataclass(frozen=True)
class Cost:
    """What one call takes at batch 1: floating-point operations, bytes moved, kernel launches."""

    flops: int
    bytes: int
    launches: int


class Lowering(Protocol):
    """A way to compute the gated features of a whole sequence that starts from nothing."""

    @property
    def label(self) -> str:
        """Its name and parameters, as records show them; the name is what `--lowering` takes."""
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

    def emit(self, builder: GraphBuilder, problem: ConvProblem, u: str, gates: str) -> str:
        """Append the nodes; u is [batch, length, width] and gates are [batch * length, K], both float32.

        Returns [batch * length, K * width]: in row t, columns k * width.. are g_k(t) (phi_k * u)(t).
        """
        ...


def gate_features(builder: GraphBuilder, problem: ConvProblem, features: str, gates: str) -> str:
    """Features in rows (token, channel), [.., width] -> gated rows [batch * length, K * width]."""
    k, d = problem.channels, problem.width
    rows = builder.op("Reshape", features, builder.ints(-1, k, d))
    gated = builder.op("Mul", rows, builder.op("Reshape", gates, builder.ints(-1, k, 1)))
    return builder.op("Reshape", gated, builder.ints(-1, k * d))


def lag_matrix(taps: NDArray[np.float64], rows: int, columns: int, offset: int = 0) -> NDArray[np.float64]:
    """Toeplitz matrix [rows * K, columns]: entry ((t, k), s) is taps[k] at lag offset + t - s, zero outside of it."""
    channels, length = taps.shape
    lag = (offset + np.arange(rows))[:, None] - np.arange(columns)[None, :]
    values = np.where((lag >= 0) & (lag < length), taps[:, np.clip(lag, 0, length - 1)], 0.0)
    return np.ascontiguousarray(values.transpose(1, 0, 2)).reshape(rows * channels, columns)
