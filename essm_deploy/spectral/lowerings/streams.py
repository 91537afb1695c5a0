"""Convolutions that go on from where the last call ended: a state comes in, a state goes out, its size never grows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from essm_deploy.graph.builder import GraphBuilder
from essm_deploy.spectral.lowerings.base import ConvProblem, gate_features, lag_matrix
from essm_deploy.spectral.lowerings.chunked import Chunked
from essm_deploy.spectral.lowerings.chunked_graph import Past
from essm_deploy.spectral.realization import Realization

_BLOCK = 16
"""Tokens of a block in a long call: beyond, the Toeplitz part costs more than the read-out of one more state."""


@dataclass(frozen=True, eq=False)
class Recurrent:
    """The small recurrent state. `ring` says whether the graph takes the inputs that leave."""

    realization: Realization
    ring: bool
    label: str = "recurrent"

    def rows(self, problem: ConvProblem) -> int:
        """r, whatever the budget."""
        return self.realization.states

    def layout(self, problem: ConvProblem) -> str:
        """Of A and B: the read-out C differs from budget to budget, the state does not."""
        real = self.realization
        return hashlib.sha256(b"recurrent" + real.A.tobytes() + real.B.tobytes()).hexdigest()

    def emit(self, b: GraphBuilder, problem: ConvProblem, u: str, gates: str, past: Past) -> tuple[str, str]:
        """The `chunked` graph of one chunk: blocks of 16 tokens where that divides the call."""
        block = _BLOCK if problem.length % _BLOCK == 0 else problem.length
        return Chunked(self.realization, problem.length, block).emit_from(b, problem, u, gates, past)

    def emit_state(self, b: GraphBuilder, problem: ConvProblem, u: str, state: str) -> str:
        """The next state alone: what `restart` keeps in reserve."""
        power, gain = self.realization.carry(problem.length)
        tokens = b.op("Reshape", u, b.ints(problem.free_batch, 1, problem.length, problem.width))
        window = b.op("Concat", tokens, state, axis=2)
        return b.op("MatMul", b.constant(np.hstack([gain, power]).astype(np.float32), "reserve"), window)

    def anchor_matrix(self, length: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        """[r, L]: the state from the last L inputs, oldest first."""
        return np.ascontiguousarray(self.realization.impulse_states(length)[:, ::-1]).astype(np.float32)


@dataclass(frozen=True)
class Fir:
    """The last L - 1 inputs are the state. Exact for any filter and any length of stream; short filters only are cheap."""

    label: str = "fir"
    ring: bool = False

    def rows(self, problem: ConvProblem) -> int:
        """L - 1, and one where there is no past at all: a tensor of no rows is nothing that every runtime can hold."""
        return max(1, problem.taps - 1)

    def layout(self, problem: ConvProblem) -> str:
        """The inputs themselves: any filters of that length read them."""
        return hashlib.sha256(f"fir {self.rows(problem)}".encode()).hexdigest()

    def emit(self, b: GraphBuilder, problem: ConvProblem, u: str, gates: str, past: Past) -> tuple[str, str]:
        """One Toeplitz GEMM over the state and the call, [length K, L - 1 + length] x [L - 1 + length, width]."""
        rows = self.rows(problem)
        tokens = b.op("Reshape", u, b.ints(problem.free_batch, 1, problem.length, problem.width))
        window = b.op("Concat", past.state, tokens, axis=2)
        matrix = lag_matrix(problem.filters, problem.length, rows + problem.length, rows).astype(np.float32)
        features = b.op("MatMul", b.constant(matrix, "toeplitz"), window)
        end = rows + problem.length
        kept = b.op("Slice", window, b.ints(problem.length), b.ints(end), b.ints(2))
        return gate_features(b, problem, features, gates), kept


StreamLowering: TypeAlias = Recurrent | Fir
"""One call is [batch, length, width]; the state is [batch, 1, rows, width] for every budget alike."""
