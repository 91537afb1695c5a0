"""The recurrence of a realization run in numpy, in any precision, also past the filters' length.

At L the filters end and the poles do not. `window` keeps every filter's length: an input leaves as another enters,
x(t) = A x(t-1) + B u(t) - A^L B u(t-L), with the last L inputs in a ring. What rounding leaves behind in the state does
not leave with the input, so every `anchor` tokens the state is computed from the ring itself, which also pays before the ring
is full: with L / 4, float32 is off by 2e-5 instead of 9e-5 at k = 32 (L = 1024), at any length. `restart` keeps no ring: two
states are staggered by half the length, and the older one answers until it has seen L tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from essm_deploy.errors import InputError
from essm_deploy.spectral.allpass import Array
from essm_deploy.spectral.realization import Realization

Overflow = Literal["window", "restart", "refuse"]
AnyArray = NDArray[Any]


def simulate(
    realization: Realization,
    inputs: AnyArray,
    *,
    overflow: Overflow = "window",
    dtype: DTypeLike = np.float64,
    anchor: int | None = None,
) -> AnyArray:
    """Features [T, K, d] of inputs [T, d], token by token, every product and sum in `dtype`.

    anchor: tokens between two computations of the state from the ring (`window` only); L // 4 if None, 0 for never.
    Raises InputError for more than L tokens under `refuse`.
    """
    length = realization.length
    if overflow == "refuse" and len(inputs) > length:
        raise InputError(f"{len(inputs)} tokens for filters of length {length}, and overflow is 'refuse'; send fewer")
    inputs = inputs.astype(dtype)
    if overflow == "restart":
        states = _restarted(realization, inputs)
    else:
        states = _windowed(realization, inputs, length // 4 if anchor is None else anchor)
    C = realization.C.astype(dtype)
    return np.stack([C @ state for state in states])


def _windowed(realization: Realization, inputs: AnyArray, anchor: int) -> Iterator[AnyArray]:
    length, dtype = realization.length, inputs.dtype
    A, B, leaving = (array.astype(dtype) for array in (realization.A, realization.B[:, None], realization.leaving()[:, None]))
    # Newest input last, as a ring unrolled; it holds zeros before the start.
    window = realization.impulse_states(length)[:, ::-1].astype(dtype)
    padded = np.concatenate([np.zeros((length, inputs.shape[1]), dtype), inputs])
    state: AnyArray = np.zeros((realization.states, inputs.shape[1]), dtype)
    for t, token in enumerate(inputs):
        if anchor and t % anchor == 0:
            state = window @ padded[t + 1 : t + 1 + length]
        else:
            state = A @ state + B * token - leaving * padded[t]
        yield state


def _restarted(realization: Realization, inputs: AnyArray) -> Iterator[AnyArray]:
    A, B = realization.A.astype(inputs.dtype), realization.B[:, None].astype(inputs.dtype)
    half = realization.length // 2
    old = young = np.zeros((realization.states, inputs.shape[1]), inputs.dtype)
    for t, token in enumerate(inputs):
        if t and t % half == 0:
            # The first L tokens need no exchange: both states have seen all of them.
            old, young = (old if t == half else young), np.zeros_like(young)
        old, young = A @ old + B * token, A @ young + B * token
        yield old


def restart_start(t: int, length: int) -> int:
    """The first input that the answer at token t still sees under `restart`: between L/2 and L tokens back."""
    return max(0, t // (length // 2) - 1) * (length // 2)


def windowed_convolution(filters: Array, inputs: Array) -> Array:
    """The operator itself, [T, K, d] in float64 by FFT: each filter [K, L] against inputs [T, d] of any T."""
    total = len(inputs) + filters.shape[1] - 1
    size = 1 << (total - 1).bit_length()
    spectrum = np.fft.rfft(inputs, size, axis=0)
    features = np.empty((len(inputs), len(filters), inputs.shape[1]))
    for k, row in enumerate(np.fft.rfft(filters, size, axis=1)):
        features[:, k] = np.fft.irfft(row[:, None] * spectrum, size, axis=0)[: len(inputs)]
    return features


def relative_errors(features: AnyArray, expected: Array) -> Array:
    """||features - expected|| / ||expected|| of each channel [K], 2-norm over tokens and dimensions."""
    error = np.sqrt(np.sum((features - expected) ** 2, axis=(0, 2)))
    size: Array = np.sqrt(np.sum(expected**2, axis=(0, 2)))
    return np.asarray(error / size)
