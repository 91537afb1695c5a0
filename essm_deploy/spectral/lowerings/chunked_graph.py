"""The graph of `chunked`: chunked.py says what it computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from essm_deploy.graph.builder import GraphBuilder
from essm_deploy.spectral.lowerings.base import ConvProblem, gate_features, lag_matrix
from essm_deploy.spectral.realization import Realization

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Past:
    """What a stream knows when a call begins: the state [batch, 1, r, width], and what leaves, in batch * length rows."""

    state: str
    leaving: str | None = None


class Cut(Protocol):
    """How time is cut: chunks of `chunk` tokens, blocks of `block`, and the state that carries the past."""

    @property
    def realization(self) -> Realization:
        """Of at least the problem's filters."""
        ...

    @property
    def chunk(self) -> int:
        """A multiple of the block."""
        ...

    @property
    def block(self) -> int:
        """Tokens whose mutual lags go through the filters' own taps."""
        ...


class Emission:
    """One emission. Values are [batch, pieces, rows, width]; matrices are computed in float64 and stored in float32.

    `after` is the state after the last token, once `run` has run on a stream.
    """

    def __init__(self, cut: Cut, builder: GraphBuilder, problem: ConvProblem, past: Past | None) -> None:
        self.b, self.problem, self.past = builder, problem, past
        self.chunk, self.block = cut.chunk, cut.block
        self.real = cut.realization.prefix(problem.channels)
        self.r, self.d, self.k = self.real.states, problem.width, problem.channels
        self.chunks = -(-problem.length // cut.chunk)
        self.missing = self.chunks * cut.chunk - problem.length
        self.inputs: list[str] = []
        self.after: str | None = None
        self._stacks: dict[tuple[object, ...], str] = {}

    def run(self, u: str, gates: str) -> str:
        """Gated rows [batch * length, K * width]."""
        if self.missing:
            u = self.b.op("Pad", u, self.b.ints(0, 0, 0, 0, self.missing, 0))
        self.inputs = [u] if self.past is None or self.past.leaving is None else [u, self.past.leaving]
        before = self._one_chunk(self.past) if self.past is not None and self.chunks == 1 else self._scan()
        return self._features(self._block_states(before), gates)

    def _one_chunk(self, past: Past) -> str:
        """A stream's short call: the next state is one product, and the state before the chunk is the one that came in."""
        advance = np.hstack([self._gain(), self.real.carry(self.chunk)[0]])
        window = self._stack(1, self.chunk, past.state)
        self.after = self.b.op("MatMul", self._constant(advance, "advance"), window)
        return past.state

    def _scan(self) -> str:
        """States before every chunk, [batch, chunks, r, width]."""
        gained = self.b.op("MatMul", self._constant(self._gain(), "gain"), self._stack(self.chunks, self.chunk))
        carry = self._constant(self.real.carry(self.chunk)[0], "carry")
        states: list[str] = [] if self.past is None else [self._flattened(self.past.state, 1)]
        for piece in self._split(gained):
            states.append(self._advance(carry, states[-1], piece) if states else piece)
        last = states.pop()
        if self.past is not None:
            self.after = self._reshape(last, self._batch, 1, self.r, self.d)
        joined = states[0] if len(states) == 1 else self.b.op("Concat", *states, axis=0 if self._flat else 1)
        joined = self._reshape(joined, self._batch, len(states), self.r, self.d)
        # Nothing came before the first chunk of a sequence.
        return joined if self.past is not None else self.b.op("Pad", joined, self.b.ints(0, 1, 0, 0, 0, 0, 0, 0))

    @property
    def _flat(self) -> bool:
        """At batch 1 a state is a matrix, and a step of the scan is one Gemm instead of a product and a sum."""
        return self.problem.batch == 1

    def _flattened(self, state: str, pieces: int) -> str:
        shape = (pieces * self.r, self.d) if self._flat else (self._batch, pieces, self.r, self.d)
        return self._reshape(state, *shape)

    def _split(self, gained: str) -> list[str]:
        sizes = self.b.ints(*[self.r if self._flat else 1] * self.chunks)
        axis = 0 if self._flat else 1
        return self.b.ops("Split", self._flattened(gained, self.chunks), sizes, outputs=self.chunks, axis=axis)

    def _advance(self, carry: str, state: str, gained: str) -> str:
        if self._flat:
            return self.b.op("Gemm", carry, state, gained)
        return self.b.op("Add", self.b.op("MatMul", carry, state), gained)

    def _block_states(self, before: str) -> str:
        """States before every block, [batch, blocks, r, width]."""
        inner = self.chunk // self.block
        if inner == 1:
            return before
        window = self._stack(self.chunks, self.chunk, before)
        states = self.b.op("MatMul", self._constant(self._block_state_matrix(), "block_states"), window)
        return self._reshape(states, self._batch, self.chunks * inner, self.r, self.d)

    def _features(self, states: str, gates: str) -> str:
        blocks, rows = self.chunks * self.chunk // self.block, self.block * self.k
        matrix, window = self._feature_matrix(), self._stack(self.chunks * self.chunk // self.block, self.block, states)
        weights = self._constant(matrix, "features")
        if matrix.shape[1] >= self.d:
            features = self._trim(self.b.op("MatMul", weights, window))
            return gate_features(self.b, self.problem, features, gates)
        if self.missing:
            gates = self._reshape(gates, self._batch, self.problem.length, self.k)
            gates = self.b.op("Pad", gates, self.b.ints(0, 0, 0, 0, self.missing, 0))
        gated = self.b.op("Mul", self._reshape(gates, self._batch, blocks, rows, 1), weights)
        return self._reshape(self._trim(self.b.op("MatMul", gated, window)), -1, self.k * self.d)

    def _gain(self) -> Float64:
        """[r, sources * C]: what the tokens of a chunk, and those that leave during it, add to the state."""
        taps = self.real.carry(self.chunk)[1]
        return np.hstack([taps, *self._leaving(taps)])

    def _block_state_matrix(self) -> Float64:
        """[inner r, sources * C + r]: state before each block of a chunk, from the chunk's tokens and the state before it."""
        taps, rows = self.real.impulse_states(self.chunk), []
        for start in range(0, self.chunk, self.block):
            seen = np.zeros((self.r, self.chunk))
            seen[:, :start] = taps[:, :start][:, ::-1]
            rows.append(np.hstack([seen, *self._leaving(seen), np.linalg.matrix_power(self.real.A, start)]))
        return np.vstack(rows)

    def _feature_matrix(self) -> Float64:
        """[S K, sources * S + r]: taps of the block's own tokens, of those that leave, and the read-out of the state."""
        parts = [lag_matrix(self.problem.filters, self.block, self.block)]
        if len(self.inputs) == 2:
            beyond = self.real.impulse_states(self.real.length + self.block)[:, self.real.length :]
            parts.append(-lag_matrix(self.real.C @ beyond, self.block, self.block))
        return np.hstack([*parts, self.real.readout(self.block).reshape(self.block * self.k, self.r)])

    def _leaving(self, taps: Float64) -> list[Float64]:
        """The same taps for inputs that are L tokens old, which have to go; empty if nothing leaves."""
        if len(self.inputs) == 1:
            return []
        return [-np.linalg.matrix_power(self.real.A, self.real.length) @ taps]

    def _stack(self, pieces: int, rows: int, *below: str) -> str:
        """[batch, pieces, sources * rows (+ what is below), width]: tokens cut into pieces, one source above the other."""
        key = (pieces, rows, *below)
        if key not in self._stacks:
            cut = [self._reshape(value, self._batch, pieces, rows, self.d) for value in self.inputs]
            parts = [*cut, *below]
            self._stacks[key] = parts[0] if len(parts) == 1 else self.b.op("Concat", *parts, axis=2)
        return self._stacks[key]

    def _trim(self, features: str) -> str:
        """Drop the rows of padded tokens: [batch, blocks, S K, width] -> [batch, length K, width]."""
        if not self.missing:
            return features
        rows = (self.problem.length + self.missing) * self.k
        whole = self._reshape(features, self._batch, rows, self.d)
        return self.b.op("Slice", whole, self.b.ints(0), self.b.ints(self.problem.length * self.k), self.b.ints(1))

    def _constant(self, values: Float64, hint: str) -> str:
        return self.b.constant(values.astype(np.float32), hint)

    def _reshape(self, value: str, *shape: int) -> str:
        return self.b.op("Reshape", value, self.b.ints(*shape))

    @property
    def _batch(self) -> int:
        return self.problem.free_batch
