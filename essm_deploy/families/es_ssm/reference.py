"""The float64 numpy reference of ES-SSM (arXiv 2601.22488): the judge of every engine at every budget.

Written for clarity, from the equations; it shares no code with the lowering.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf, expit

from essm_deploy.errors import UsageError
from essm_deploy.families.es_ssm.config import EsSsmConfig

Float64 = NDArray[np.float64]
Weights = Mapping[str, NDArray[Any]]
Convolution = Callable[[Float64, Float64], Float64]


def forward(
    config: EsSsmConfig,
    weights: Weights,
    inputs: NDArray[Any],
    lengths: NDArray[np.int64] | None = None,
    budget: int | None = None,
) -> Float64:
    """Logits of a batch in float64.

    `inputs` are token ids [B, T] or features [B, T, input_size]; T may exceed seq_len, and config.overflow says what
    happens then (UsageError for `refuse`). `lengths` [B] are the valid tokens of each row of a pooled model (default T).
    Returns [B, labels] for a classifier, [B, T, vocab] otherwise.
    """
    k = config.k_max if budget is None else budget
    convolve = _convolution(config, inputs.shape[1])
    residual = _embed(config, weights, inputs)
    for i in range(config.num_hidden_layers):
        layer = f"layers.{i}"
        normed = layer_norm(residual, weights, f"{layer}.norm1", config.layer_norm_eps)
        residual = residual + spectral(normed, weights, f"{layer}.spectral", k, convolve)
        normed = layer_norm(residual, weights, f"{layer}.norm2", config.layer_norm_eps)
        residual = residual + _ffn(normed, weights, f"{layer}.ffn")
    hidden = layer_norm(residual, weights, "norm", config.layer_norm_eps)
    if config.pooled:
        hidden = masked_mean(hidden, lengths)
    if config.tie_word_embeddings:
        return np.asarray(hidden @ _f64(weights["embedding.weight"]).T)
    return _linear(hidden, weights, "head")


def _convolution(config: EsSsmConfig, length: int) -> Convolution:
    if length > config.seq_len and config.overflow == "refuse":
        raise UsageError(f"{length} tokens exceed the trained length {config.seq_len}, and the model refuses to go on")
    return restarted_convolution if config.overflow == "restart" else causal_convolution


def spectral(u: Float64, weights: Weights, name: str, budget: int, convolve: Convolution) -> Float64:
    """S_K(u)(t) = sum_{k<=K} g_k(t) M_k (Phi_k * u)(t) with g_k = sigmoid(s_k) / sqrt(K); u is [B, T, d]."""
    scores = _linear(gelu(_linear(u, weights, f"{name}.gate.hidden")), weights, f"{name}.gate.out")
    gates = expit(scores[..., :budget]) / np.sqrt(budget)
    total = np.zeros_like(u)
    for k in range(budget):
        features = convolve(u, _f64(weights["bank.filters"][k]))
        total += gates[..., k : k + 1] * (features @ _f64(weights[f"{name}.projection"][k]))
    return total


def causal_convolution(u: Float64, taps: Float64) -> Float64:
    """y(t) = sum_{s<len(taps)} taps(s) u(t - s), zero before the start; u is [B, T, d], by FFT in float64."""
    length = u.shape[1]
    size = length + min(len(taps), length)
    spectrum = np.fft.rfft(u, size, axis=1) * np.fft.rfft(taps[:length], size)[None, :, None]
    return np.asarray(np.fft.irfft(spectrum, size, axis=1)[:, :length])


def restarted_convolution(u: Float64, taps: Float64) -> Float64:
    """The same with history cut: with h = L // 2, token t >= 2 h sees what came since token (t // h - 1) h, and t < 2 h all."""
    half = max(1, len(taps) // 2)
    parts = [causal_convolution(u[:, : 2 * half], taps)]
    for start in range(2 * half, u.shape[1], half):
        parts.append(causal_convolution(u[:, start - half : start + half], taps)[:, half:])
    return np.concatenate(parts, axis=1)


def layer_norm(x: Float64, weights: Weights, name: str, eps: float) -> Float64:
    """Normalisation over the last axis with the biased variance, then scale and shift."""
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    return np.asarray(scaled * _f64(weights[f"{name}.weight"]) + _f64(weights[f"{name}.bias"]))


def gelu(x: Float64) -> Float64:
    """The exact GELU, x Phi(x), with erf."""
    return np.asarray(0.5 * x * (1.0 + erf(x / np.sqrt(2.0))))


def masked_mean(hidden: Float64, lengths: NDArray[np.int64] | None) -> Float64:
    """Mean over the first `lengths` tokens of each row, [B, T, d] -> [B, d]."""
    if lengths is None:
        return np.asarray(hidden.mean(1))
    mask = np.arange(hidden.shape[1])[None, :] < np.asarray(lengths)[:, None]
    return np.asarray((hidden * mask[..., None]).sum(1) / np.asarray(lengths)[:, None])


def _embed(config: EsSsmConfig, weights: Weights, inputs: NDArray[Any]) -> Float64:
    if config.vocab_size is not None:
        return np.asarray(_f64(weights["embedding.weight"])[inputs])
    return _linear(_f64(inputs), weights, "input")


def _ffn(x: Float64, weights: Weights, name: str) -> Float64:
    return _linear(gelu(_linear(x, weights, f"{name}.up")), weights, f"{name}.down")


def _linear(x: Float64, weights: Weights, name: str) -> Float64:
    return np.asarray(x @ _f64(weights[f"{name}.weight"]).T + _f64(weights[f"{name}.bias"]))


def _f64(array: NDArray[Any]) -> Float64:
    return np.asarray(array, dtype=np.float64)
