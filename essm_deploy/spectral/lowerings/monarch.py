"""`monarch`: the convolution by an FFT of two stages, each a GEMM with a small DFT matrix. Exact, for any length.

FlashFFTConv (arXiv 2311.05908, order-2 Monarch) cuts time as t = p N + q, with q < N, and factors the DFT over t into one
over p, twiddles, and one over q. What lies between the two outer stages is, for every frequency f of the DFT over p, a
linear map of the N values at q: second stage, filter spectrum, inverse second stage. We multiply it out when the graph is
made (it is the polyphase form of the filter), for as many products as the inverse second stage alone would take:

    G_k(f)[q, q'] = sum_p phi_k[p N + q - q'] e^(-2 pi i f p / P)

Three GEMMs are left, and no transposition between them:

    [2P', P'] x [P', N d]    forward: u is real, so half of the P frequencies do; the zeros it is padded with are left out
    [2N K, 2N] x [2N, d]     G, complex in real arithmetic, one for every frequency
    [P', 2P'] x [2P', N K d] inverse: the result is real, and only its first P' blocks are wanted

with P' = ceil(length / N) and P = 2 P' - 1, the least that keeps the end of the linear convolution off its beginning. That
u is real saves here what packing two columns into a complex one would save, and the width may be odd.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from essm_deploy.graph.builder import GraphBuilder
from essm_deploy.spectral.lowerings.base import ConvProblem, Cost, gate_features

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Monarch:
    """Blocks of `block` tokens, N above. Work is least near block = sqrt(length / 2)."""

    block: int

    @property
    def label(self) -> str:
        """`monarch/32`: blocks of 32 tokens."""
        return f"monarch/{self.block}"

    def refusal(self, problem: ConvProblem) -> str | None:
        """It can express every problem up to the filters' own length."""
        if problem.length <= problem.taps:
            return None
        return f"{problem.length} tokens exceed the filter length {problem.taps}"

    def residual(self, problem: ConvProblem) -> Float64:
        """Zero: the filters themselves are in the matrices.

        In float32 it rounds to 2e-7 to 4e-7 of the norm of the whole sequence (measured to 4096 tokens, no more than Toeplitz
        products do). A DFT mixes all blocks, the later ones too: small features before large ones lose digits of their own.
        """
        return np.zeros(problem.channels)

    def cost(self, problem: ConvProblem) -> Cost:
        """Two operations a multiply-add of the three GEMMs; matrices and values move once."""
        k, d, n, blocks = problem.channels, problem.width, self.block, self._blocks(problem)
        spectra = blocks * 2 * n * k
        flops = 2 * blocks * 2 * blocks * n * d * (1 + k) + 2 * spectra * 2 * n * d
        values = blocks * n * d * (1 + 2 + 2 * k + k)
        return Cost(flops, 4 * (4 * blocks**2 + spectra * 2 * n + values), 5)

    def emit(self, builder: GraphBuilder, problem: ConvProblem, u: str, gates: str) -> str:
        """Append Pad, MatMul, Reshape, Slice and Mul nodes; see `Lowering.emit` for the shapes."""
        b, batch, k, d = builder, problem.free_batch, problem.channels, problem.width
        n, blocks = self.block, self._blocks(problem)
        missing = blocks * n - problem.length
        forward = _dft(blocks)
        if missing:
            u = b.op("Pad", u, b.ints(0, 0, 0, 0, missing, 0))
        u = b.op("Reshape", u, b.ints(batch, blocks, n * d))
        x = b.op("MatMul", b.constant(forward.astype(np.float32), "dft"), u)
        x = b.op("Reshape", x, b.ints(batch, blocks, 2 * n, d))
        y = b.op("MatMul", b.constant(self._spectra(problem), "spectra"), x)
        y = b.op("Reshape", y, b.ints(batch, 2 * blocks, n * k * d))
        features = b.op("MatMul", b.constant(_inverse(forward).astype(np.float32), "inverse_dft"), y)
        if missing:
            features = b.op("Reshape", features, b.ints(batch, blocks * n * k, d))
            features = b.op("Slice", features, b.ints(0), b.ints(problem.length * k), b.ints(1))
        return gate_features(b, problem, features, gates)

    def _blocks(self, problem: ConvProblem) -> int:
        return -(-problem.length // self.block)

    def _spectra(self, problem: ConvProblem) -> NDArray[np.float32]:
        """G as [P', 2 N K, 2 N]: rows (part, q, k) and columns (part, q'), parts being real and imaginary."""
        n, blocks = self.block, self._blocks(problem)
        taps = np.zeros((problem.channels, n + blocks * n))  # n zeros first: nothing answers before its input
        reach = min(problem.taps, blocks * n)
        taps[:, n : n + reach] = problem.filters[:, :reach]
        lag = np.arange(n)[:, None] - np.arange(n)[None, :]
        shifted = np.stack([taps[:, n + shift :: n][:, :blocks] for shift in range(1 - n, n)], axis=2)
        spectrum = np.fft.fft(shifted, 2 * blocks - 1, axis=1)[:, :blocks]
        g = spectrum[:, :, lag + n - 1].transpose(1, 2, 0, 3)
        out = np.empty((blocks, 2, n, problem.channels, 2, n), np.float32)
        out[:, 0, :, :, 0], out[:, 0, :, :, 1] = g.real, -g.imag
        out[:, 1, :, :, 0], out[:, 1, :, :, 1] = g.imag, g.real
        return out.reshape(blocks, 2 * n * problem.channels, 2 * n)


def _dft(blocks: int) -> Float64:
    """[2 P', P']: rows (frequency, part) of the DFT of 2 P' - 1 values of which the first P' are not zero."""
    steps = np.outer(np.arange(blocks), np.arange(blocks)) % (2 * blocks - 1)
    angle = 2 * np.pi / (2 * blocks - 1) * steps
    return np.stack([np.cos(angle), -np.sin(angle)], axis=1).reshape(2 * blocks, blocks)


def _inverse(forward: Float64) -> Float64:
    """[P', 2 P']: the first P' values again. Every frequency but zero also stands for its conjugate."""
    blocks = len(forward) // 2
    weights = np.full(2 * blocks, 2.0 / (2 * blocks - 1))
    weights[:2] /= 2
    inverse: Float64 = forward.T * weights
    return inverse
