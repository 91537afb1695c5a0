"""The causal convolution of a training step, and how it is chosen: as the compiler does, by the length and the machine.

A mixer computes a whole spectral sublayer: mixer(u [B, T, d], gates [B, T, K], projection [K, d_in, d_out], filters [K, L])
-> S_K(u) [B, T, d_out], in float32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from essm_deploy.errors import UsageError
from essm_deploy.spectral.bank import Bank
from essm_train.chunked import ChunkedMixer, mixer_for

TOEPLITZ_MAX_LENGTH = 128  # up to here a dense GEMM beats the FFT in training, 3x on two CPU cores at L = 100
FFT_BYTES = 2**30  # of one group's spectra; more channels than fit are convolved group by group and again in the backward pass

Mixer = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def choose_mixer(name: str, bank: Bank, budgets: tuple[int, ...], device: torch.device) -> Mixer:
    """The mixer that train.convolution names. UsageError where a chunked one is asked for and the bank has no realization."""
    if name == "auto" and bank.length > TOEPLITZ_MAX_LENGTH:
        chunked = mixer_for(bank, budgets) if device.type == "cpu" else None
        return ChunkedTime(chunked) if chunked is not None else mix_fft
    if name == "chunked":
        chunked = mixer_for(bank, budgets)
        if chunked is None:
            raise UsageError(f"train.convolution is 'chunked', and filters of length {bank.length} have no small realization")
        return ChunkedTime(chunked)
    return mix_fft if name == "fft" else mix_toeplitz


def default_mixer(length: int) -> Mixer:
    """What a model uses that no mixer was set for."""
    return mix_toeplitz if length <= TOEPLITZ_MAX_LENGTH else mix_fft


def convolve_fft(u: Tensor, filters: Tensor) -> Tensor:
    """Causal convolution through an FFT of twice the filters' length: u [B, T, d], filters [K, L], T <= L -> [B, T, K, d]."""
    n = 2 * filters.shape[1]
    return _product(torch.fft.rfft(u, n=n, dim=1), filters, n)[:, : u.shape[1]]


def convolve_toeplitz(u: Tensor, filters: Tensor) -> Tensor:
    """The same as one GEMM with T[t, k, s] = filters[k, t - s], zero for s > t."""
    time, channels = u.shape[1], filters.shape[0]
    lag = torch.arange(time, device=u.device)[:, None] - torch.arange(time, device=u.device)
    toeplitz = (filters[:, lag.clamp(min=0)] * (lag >= 0)).transpose(0, 1)
    return torch.matmul(toeplitz.reshape(time * channels, time), u).view(-1, time, channels, u.shape[2])


def mix_toeplitz(u: Tensor, gates: Tensor, projection: Tensor, filters: Tensor) -> Tensor:
    """Gate before projection: one GEMM over all channels."""
    gated = convolve_toeplitz(u, filters) * gates[..., None]
    out: Tensor = gated.flatten(2) @ projection.flatten(0, 1)
    return out


def mix_fft(u: Tensor, gates: Tensor, projection: Tensor, filters: Tensor) -> Tensor:
    """The same through FFTs, whose features of all channels at once would not fit into the memory of a wide model."""
    n, budget = 2 * filters.shape[1], len(filters)
    spectrum = torch.fft.rfft(u, n=n, dim=1)
    size = max(1, FFT_BYTES // (spectrum.numel() * spectrum.element_size()))
    if size >= budget:
        return _group(spectrum, gates, projection, filters, n)
    parts = [
        checkpoint(_group, spectrum, gates[..., k : k + size], projection[k : k + size], filters[k : k + size], n,
                   use_reentrant=False, preserve_rng_state=False)
        for k in range(0, budget, size)
    ]  # fmt: skip
    return torch.stack(parts).sum(dim=0)


def _group(spectrum: Tensor, gates: Tensor, projection: Tensor, filters: Tensor, n: int) -> Tensor:
    gated = _product(spectrum, filters, n)[:, : gates.shape[1]] * gates[..., None]
    out: Tensor = gated.flatten(2) @ projection.flatten(0, 1)
    return out


def _product(spectrum: Tensor, filters: Tensor, n: int) -> Tensor:
    product = spectrum[:, :, None, :] * torch.fft.rfft(filters, n=n).T[None, :, :, None]
    features: Tensor = torch.fft.irfft(product, n=n, dim=1)
    return features


class ChunkedTime:
    """A ChunkedMixer for any number of tokens: zeros fill the last chunk, and causality keeps them out of what came before.

    Budgets that it was not made for take the FFT.
    """

    def __init__(self, chunked: ChunkedMixer) -> None:
        self.chunked = chunked

    def __call__(self, u: Tensor, gates: Tensor, projection: Tensor, filters: Tensor) -> Tensor:
        if len(filters) not in self.chunked.systems:
            return mix_fft(u, gates, projection, filters)
        time = u.shape[1]
        missing = -time % self.chunked.chunk
        if missing:
            u, gates = F.pad(u, (0, 0, 0, missing)), F.pad(gates, (0, 0, 0, missing))
        return self.chunked(u, gates, projection)[:, :time]

    def __deepcopy__(self, memo: dict[int, object]) -> ChunkedTime:
        return self  # constants only: an averaged copy of a model shares them
