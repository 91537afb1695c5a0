"""`toeplitz`: the convolution as matrix products with (token, channel) x token Toeplitz matrices. Exact.

For short sequences one GEMM does it, [L K, L] x [L, d]. For long ones time is cut into blocks of C tokens. Block i needs
the inputs of blocks 0..i; it takes a window that ends with the block and whose width is the next power of two, so that all
blocks of one width share one matrix [C K, width] and one batched GEMM. At most 4/3 of the exact work is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from essm_deploy.graph.builder import GraphBuilder
from essm_deploy.spectral.lowerings.base import ConvProblem, Cost, gate_features, lag_matrix


@dataclass(frozen=True)
class _Group:
    """Blocks first..last (exclusive) whose windows are `width` tokens wide."""

    first: int
    last: int
    width: int


@dataclass(frozen=True)
class Toeplitz:
    """Blocks of `block` tokens; a block as long as the sequence is the single-GEMM form."""

    block: int

    @property
    def label(self) -> str:
        """`toeplitz/50`: blocks of 50 tokens."""
        return f"toeplitz/{self.block}"

    def refusal(self, problem: ConvProblem) -> str | None:
        """It can express every problem up to the filters' own length."""
        if problem.length <= problem.taps:
            return None
        return f"{problem.length} tokens exceed the filter length {problem.taps}"

    def residual(self, problem: ConvProblem) -> NDArray[np.float64]:
        """Zero: the filters themselves are in the matrix."""
        return np.zeros(problem.channels)

    def cost(self, problem: ConvProblem) -> Cost:
        """Two operations a multiply-add over every window; matrices, windows and features move once."""
        rows, d = self.block * problem.channels, problem.width
        groups = list(self._groups(problem.length))
        flops = sum(2 * (g.last - g.first) * rows * g.width * d for g in groups)
        moved = sum(rows * g.width + (g.last - g.first) * (g.width + rows) * d for g in groups)
        return Cost(flops, 4 * moved, 3 * len(groups))

    def emit(self, builder: GraphBuilder, problem: ConvProblem, u: str, gates: str) -> str:
        """Append Pad, Slice, Concat, MatMul, Reshape and Mul nodes; see `Lowering.emit` for the shapes."""
        groups = list(self._groups(problem.length))
        left = max(g.width - (g.first + 1) * self.block for g in groups)
        right = groups[-1].last * self.block - problem.length
        padded = builder.op("Pad", u, builder.ints(0, left, 0, 0, right, 0)) if left or right else u
        parts = [self._emit_group(builder, problem, padded, left, group) for group in groups]
        features = parts[0] if len(parts) == 1 else builder.op("Concat", *parts, axis=1)
        if right:
            features = _rows(builder, features, 0, problem.length * problem.channels)
        return gate_features(builder, problem, features, gates)

    def _emit_group(self, b: GraphBuilder, problem: ConvProblem, padded: str, left: int, group: _Group) -> str:
        matrix = b.constant(self._matrix(problem, group.width), "toeplitz")
        ends = [left + (i + 1) * self.block for i in range(group.first, group.last)]
        whole = len(ends) == 1 and ends[0] == group.width and self._padded_length(problem.length, left) == group.width
        if len(ends) == 1:
            window = padded if whole else _rows(b, padded, ends[0] - group.width, ends[0])
            return b.op("MatMul", matrix, window)
        windows = [b.op("Unsqueeze", _rows(b, padded, end - group.width, end), b.ints(1)) for end in ends]
        product = b.op("MatMul", matrix, b.op("Concat", *windows, axis=1))
        rows = len(ends) * self.block * problem.channels
        return b.op("Reshape", product, b.ints(problem.free_batch, rows, problem.width))

    def _matrix(self, problem: ConvProblem, width: int) -> NDArray[np.float32]:
        """[block K, width], for windows that end with the block."""
        return lag_matrix(problem.filters, self.block, width, width - self.block).astype(np.float32)

    def _groups(self, length: int) -> Iterator[_Group]:
        blocks = -(-length // self.block)
        first, reach = 0, 1
        while first < blocks:
            last = min(reach, blocks)
            yield _Group(first, last, last * self.block)
            first, reach = last, 2 * reach

    def _padded_length(self, length: int, left: int) -> int:
        return left + -(-length // self.block) * self.block


def _rows(builder: GraphBuilder, value: str, start: int, stop: int) -> str:
    return builder.op("Slice", value, builder.ints(start), builder.ints(stop), builder.ints(1))
