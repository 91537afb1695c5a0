"""The ONNX operators that our graphs use, in numpy: what each computes, as the operators' specification says at opset 20.

Those of COMPUTE get floating values as float32 (or wider), whatever the graph's type is, and the evaluator rounds what they
return; sums inside a product are therefore float32. Those of MOVE return the values that they got.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf, expit

from essm_deploy.errors import BuildError

Array = NDArray[Any]
Attributes = Mapping[str, Any]
Operator = Callable[[Attributes, Sequence[Array]], list[Array]]


def _gemm(a: Attributes, x: Sequence[Array]) -> list[Array]:
    left = x[0].T if a.get("transA") else x[0]
    right = x[1].T if a.get("transB") else x[1]
    product = a.get("alpha", 1.0) * (left @ right) if a.get("alpha", 1.0) != 1.0 else left @ right
    return [product + a.get("beta", 1.0) * x[2] if len(x) == 3 else product]


def _gelu(a: Attributes, x: Sequence[Array]) -> list[Array]:
    if a.get("approximate", b"none") not in (b"none", "none"):
        raise BuildError("an approximate Gelu is not the model's")
    return [0.5 * x[0] * (1 + erf(x[0] * np.float32(np.sqrt(0.5))))]


def _layer_norm(a: Attributes, x: Sequence[Array]) -> list[Array]:
    centred = x[0] - x[0].mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + np.float32(a.get("epsilon", 1e-5)))
    return [scaled * x[1] + x[2]]


def _dft(a: Attributes, x: Sequence[Array]) -> list[Array]:
    if a.get("onesided"):
        raise BuildError("a one-sided DFT is wrong in some runtimes, and not in our graphs")
    transform = np.fft.ifft if a.get("inverse") else np.fft.fft
    result = transform(x[0][..., 0] + 1j * x[0][..., 1], axis=-1)
    return [np.stack([result.real, result.imag], axis=-1)]


def _split(a: Attributes, x: Sequence[Array]) -> list[Array]:
    axis = a.get("axis", 0)
    if len(x) == 2:
        return list(np.split(x[0], np.cumsum(x[1])[:-1], axis=axis))
    size = -(-x[0].shape[axis] // a["num_outputs"])
    return list(np.split(x[0], np.arange(1, a["num_outputs"]) * size, axis=axis))


def _slice(a: Attributes, x: Sequence[Array]) -> list[Array]:
    data, starts, ends, axes = x[:4]
    steps = x[4] if len(x) == 5 else np.ones_like(starts)
    cut = [slice(None)] * data.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        cut[axis] = slice(int(start), int(end), int(step))
    return [data[tuple(cut)]]


def _pad(a: Attributes, x: Sequence[Array]) -> list[Array]:
    before, after = x[1].reshape(2, -1)
    return [np.pad(x[0], list(zip(before.tolist(), after.tolist(), strict=True)))]


def _reshape(a: Attributes, x: Sequence[Array]) -> list[Array]:
    shape = [x[0].shape[i] if size == 0 else int(size) for i, size in enumerate(x[1])]
    return [x[0].reshape(shape)]


def _unsqueeze(a: Attributes, x: Sequence[Array]) -> list[Array]:
    return [np.expand_dims(x[0], tuple(int(axis) for axis in x[1]))]


COMPUTE: dict[str, Operator] = {
    "Add": lambda a, x: [x[0] + x[1]],
    "Sub": lambda a, x: [x[0] - x[1]],
    "Mul": lambda a, x: [x[0] * x[1]],
    "Div": lambda a, x: [x[0] / x[1]],
    "Neg": lambda a, x: [-x[0]],
    "MatMul": lambda a, x: [x[0] @ x[1]],
    "Gemm": _gemm,
    "Gelu": _gelu,
    "Sigmoid": lambda a, x: [expit(x[0])],
    "LayerNormalization": _layer_norm,
    "DFT": _dft,
    "Less": lambda a, x: [x[0] < x[1]],
}
MOVE: dict[str, Operator] = {
    "Identity": lambda a, x: [x[0]],
    "Concat": lambda a, x: [np.concatenate(x, axis=a["axis"])],
    "Gather": lambda a, x: [np.take(x[0], x[1], axis=a.get("axis", 0))],
    "Pad": _pad,
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Transpose": lambda a, x: [np.transpose(x[0], a["perm"])],
    "Unsqueeze": _unsqueeze,
}
