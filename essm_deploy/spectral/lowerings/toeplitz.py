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
from essm_deploy.spectral.lowerings.base import ConvProblem, Cost


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
    name: str = "toeplitz"

    def refusal(self, problem: ConvProblem) -> str | None:
        """It can express every problem up to the filters' own length."""
        longest = problem.filters.shape[1]
        return None if problem.length <= longest else f"{problem.length} tokens exceed the filter length {longest}"

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

    def emit(self, builder: GraphBuilder, problem: ConvProblem, u: str) -> str:
        """Append Pad, Slice, Concat, MatMul and Reshape nodes; see `Lowering.emit` for the shapes."""
        groups = list(self._groups(problem.length))
        left = max(g.width - (g.first + 1) * self.block for g in groups)
        right = groups[-1].last * self.block - problem.length
        padded = builder.op("Pad", u, builder.ints(0, left, 0, 0, right, 0)) if left or right else u
        parts = [self._emit_group(builder, problem, padded, left, group) for group in groups]
        features = parts[0] if len(parts) == 1 else builder.op("Concat", *parts, axis=1)
        if right:
            rows = problem.length * problem.channels
            features = builder.op("Slice", features, builder.ints(0), builder.ints(rows), builder.ints(1))
        return features

    def _emit_group(self, b: GraphBuilder, problem: ConvProblem, padded: str, left: int, group: _Group) -> str:
        matrix = b.constant(self._matrix(problem.filters, group.width), "toeplitz")
        ends = [left + (i + 1) * self.block for i in range(group.first, group.last)]
        whole = len(ends) == 1 and ends[0] == group.width and self._padded_length(problem.length, left) == group.width
        if len(ends) == 1:
            window = padded if whole else _rows(b, padded, ends[0] - group.width, ends[0])
            return b.op("MatMul", matrix, window)
        windows = [b.op("Unsqueeze", _rows(b, padded, end - group.width, end), b.ints(1)) for end in ends]
        product = b.op("MatMul", matrix, b.op("Concat", *windows, axis=1))
        rows = len(ends) * self.block * problem.channels
        return b.op("Reshape", product, b.ints(_batch(problem), rows, problem.width))

    def _matrix(self, filters: NDArray[np.float64], width: int) -> NDArray[np.float32]:
        """[block K, width]: entry ((t, k), s) is filter k at lag (width - block + t) - s, zero outside the filter."""
        channels, length = filters.shape
        lag = (width - self.block + np.arange(self.block))[:, None] - np.arange(width)[None, :]
        taps = np.where((lag >= 0) & (lag < length), filters[:, np.clip(lag, 0, length - 1)], 0.0)
        matrix: NDArray[np.float32] = taps.transpose(1, 0, 2).reshape(self.block * channels, width).astype(np.float32)
        return matrix

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


def _batch(problem: ConvProblem) -> int:
    """The batch as Reshape wants it: -1 where it is only known at run time."""
    return problem.batch if isinstance(problem.batch, int) else -1
