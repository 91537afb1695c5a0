"""`chunked`: short Toeplitz blocks, and one small recurrent state that carries the past. All GEMMs.

Time is cut into chunks of C tokens, and a chunk into blocks of S. With the realization x(t) = A x(t-1) + B u(t),
features = C x, and with x the state before a block,

    features of a block = [T | O] [u; x]      T: the filters' first S taps, Toeplitz    O = [C A; C A^2; ...; C A^S]

The states before the chunks come from a scan with A^C, the states before the blocks of a chunk from one GEMM on [u; x]. Every
block of every chunk then goes through one batched GEMM with the same matrix. Where that matrix is narrower than the features,
the gates multiply it, row by row, and not the features: less memory moves, and the product comes out gated.

A stream is the same graph with a state at either end. Past L tokens (`window`), an input that is L tokens old leaves: it is one
more input, with the taps -C A^(L+j) B.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from essm_deploy.errors import BuildError
from essm_deploy.graph.builder import GraphBuilder
from essm_deploy.spectral.lowerings.base import ConvProblem, Cost
from essm_deploy.spectral.lowerings.chunked_graph import Emission, Past
from essm_deploy.spectral.realization import Realization

Float64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Chunked:
    """Chunks of `chunk` tokens in blocks of `block`; the chunk is a multiple of the block."""

    realization: Realization
    chunk: int
    block: int

    @property
    def label(self) -> str:
        """`chunked/64/16/r46`: chunks of 64 tokens, blocks of 16, 46 states."""
        return f"chunked/{self.chunk}/{self.block}/r{self.realization.states}"

    def refusal(self, problem: ConvProblem) -> str | None:
        """It needs a realization of these very filters, and a sequence within their length."""
        if len(self.realization.C) < problem.channels:
            return f"the realization reads {len(self.realization.C)} channels, {problem.channels} are asked for"
        if self.chunk % self.block:
            return f"the chunk {self.chunk} is not a multiple of the block {self.block}"
        if not self.chunk < problem.length <= problem.taps:
            return f"{problem.length} tokens are not more than a chunk of {self.chunk} and at most {problem.taps}"
        return None

    def residual(self, problem: ConvProblem) -> Float64:
        """The realization's own; lags within a block are exact."""
        return self.realization.residual[: problem.channels]

    def cost(self, problem: ConvProblem) -> Cost:
        """Scan, states of the blocks, features; matrices, windows and features move once."""
        r, k, d = self.realization.states, problem.channels, problem.width
        chunks = -(-problem.length // self.chunk)
        blocks = chunks * self.chunk // self.block
        inner = self._inner
        macs = chunks * (r * self.chunk + r * r) + blocks * k * self.block * (self.block + r)
        macs += blocks * r * (self.chunk + r) if inner > 1 else 0
        moved = blocks * ((self.block + r) * d + self.block * k * (d + self.block + r))
        return Cost(2 * macs * d, 4 * moved, 2 * chunks + 10)

    def emit(self, builder: GraphBuilder, problem: ConvProblem, u: str, gates: str) -> str:
        """A whole sequence from an empty state; see `Lowering.emit` for the shapes."""
        return Emission(self, builder, problem, None).run(u, gates)

    def emit_from(self, builder: GraphBuilder, problem: ConvProblem, u: str, gates: str, past: Past) -> tuple[str, str]:
        """A call of a stream: gated rows, and the state after the last token, [batch, 1, r, width].

        BuildError unless the call's length is a multiple of the chunk: padding would enter the state.
        """
        if problem.length % self.chunk:
            raise BuildError(f"a stream of {problem.length} tokens a call cannot be cut into chunks of {self.chunk}")
        emission = Emission(self, builder, problem, past)
        gated = emission.run(u, gates)
        assert emission.after is not None  # there is a past, so there is a state to hand on
        return gated, emission.after

    @property
    def _inner(self) -> int:
        """Blocks in a chunk."""
        return self.chunk // self.block
