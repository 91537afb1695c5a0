"""`dft`: the convolution theorem by ONNX's DFT operator, as of opset 20. What others do; a reference.

    features = DFT^-1( DFT(u, n) * DFT(phi, n) ), the first `length` values, n = the power of two from 2 length - 1 on.

Powers of two alone, because runtimes lose digits elsewhere. The transforms are two-sided: a one-sided inverse has the wrong
shape in some releases of ONNX Runtime. A two-sided transform of real values does everything twice, so we make two adjacent
columns the real and the imaginary part of one (the textbook's "two for one", e.g. Numerical Recipes, section 12.3): filters
are real, so the parts stay apart. An odd width is padded by a column. Time is the last axis but one, the operator's default:
opset 20 made the axis an input, which some runtimes do not read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from essm_deploy.graph.builder import GraphBuilder
from essm_deploy.spectral.lowerings.base import ConvProblem, Cost, gate_features


@dataclass(frozen=True)
class Dft:
    """It has no parameters."""

    @property
    def label(self) -> str:
        """`dft`."""
        return "dft"

    def refusal(self, problem: ConvProblem) -> str | None:
        """It can express every problem up to the filters' own length."""
        if problem.length <= problem.taps:
            return None
        return f"{problem.length} tokens exceed the filter length {problem.taps}"

    def residual(self, problem: ConvProblem) -> NDArray[np.float64]:
        """Zero: the filters' own spectra are in the graph.

        A float32 transform adds 2e-7 to 8e-7 of the norm of the whole sequence (measured in ONNX Runtime to 4096 tokens),
        spread over all of it: small features before large ones lose digits of their own.
        """
        return np.zeros(problem.channels)

    def cost(self, problem: ConvProblem) -> Cost:
        """5 n log2 n a transform (the usual count of radix 2), 6 a product and 2 a gated feature; values move twice a stage."""
        n, k = transform_length(problem.length), problem.channels
        columns = -(-problem.width // 2)
        stages = n.bit_length() - 1
        flops = columns * n * (5 * stages * (1 + k) + 6 * k) + 2 * problem.length * k * problem.width
        return Cost(flops, 16 * columns * n * ((1 + k) * max(stages, 1) + k), 12)

    def emit(self, builder: GraphBuilder, problem: ConvProblem, u: str, gates: str) -> str:
        """Append two DFT nodes and what moves values between them; see `Lowering.emit` for the shapes."""
        b, batch, k = builder, problem.free_batch, problem.channels
        n, odd = transform_length(problem.length), problem.width % 2
        columns = (problem.width + odd) // 2
        padded = b.op("Pad", u, b.ints(0, 0, 0, 0, n - problem.length, odd))
        pairs = b.op("Transpose", b.op("Reshape", padded, b.ints(batch, n, columns, 2)), perm=[0, 2, 1, 3])
        x = b.op("Reshape", b.op("DFT", pairs), b.ints(batch, 1, columns, n, 2))
        real, imaginary = b.ops("Split", x, b.ints(1, 1), outputs=2, axis=4)
        turned = b.op("Concat", b.op("Neg", imaginary), real, axis=4)  # i x
        spectra = np.fft.fft(problem.filters[:, : problem.length], n).reshape(k, 1, n, 1)
        parts = [b.constant(part.astype(np.float32), "spectrum") for part in (spectra.real, spectra.imag)]
        y = b.op("Add", b.op("Mul", x, parts[0]), b.op("Mul", turned, parts[1]))
        y = b.op("Slice", b.op("DFT", y, inverse=1), b.ints(0), b.ints(problem.length), b.ints(3))
        y = b.op("Transpose", y, perm=[0, 3, 1, 2, 4])
        features = b.op("Reshape", y, b.ints(batch, problem.length, k, problem.width + odd))
        if odd:
            features = b.op("Slice", features, b.ints(0), b.ints(problem.width), b.ints(3))
        return gate_features(b, problem, features, gates)


def transform_length(length: int) -> int:
    """The least power of two that holds a linear convolution of two sequences of `length`."""
    return 1 << (2 * length - 2).bit_length()
