"""Ways to spell the gated spectral convolution in torch. All compute the same: K channels, each filter once, no more.

A spelling is built from the filters Phi [K, L] in float64 and the projections M [K, d, d], and maps u [1, L, d] and the
gates g [1, L, K] to sum_k g_k(t) (Phi_k * u)(t) M_k, [1, L, d]. Everything that does not depend on u is computed once.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Filters = np.ndarray


class FftBatched(nn.Module):
    """One rfft of u, the product with K spectra, one batched irfft; time stays the second axis, as in the paper's equations."""

    def __init__(self, filters: Filters, projection: Tensor) -> None:
        super().__init__()
        self.length = filters.shape[1]
        # The channel stays the outer axis in memory, and so in the product's layout: 1.4x faster than [L + 1, K] in order.
        self.register_buffer("spectra", _spectra(filters).T[None, :, :, None])
        self.register_buffer("projection", projection.flatten(0, 1).contiguous())

    def forward(self, u: Tensor, gates: Tensor) -> Tensor:
        n = 2 * self.length
        spectrum = torch.fft.rfft(u, n=n, dim=1)[:, :, None, :] * self.spectra
        features = torch.fft.irfft(spectrum, n=n, dim=1)[:, : self.length]
        return (features * gates[..., None]).flatten(2) @ self.projection


class FftTransposed(nn.Module):
    """The same with time as the last, contiguous axis, and the projection from the left."""

    def __init__(self, filters: Filters, projection: Tensor) -> None:
        super().__init__()
        self.length = filters.shape[1]
        self.register_buffer("spectra", _spectra(filters)[:, None, :])
        self.register_buffer("projection", projection.flatten(0, 1).T.contiguous())

    def forward(self, u: Tensor, gates: Tensor) -> Tensor:
        n = 2 * self.length
        spectrum = torch.fft.rfft(u[0].T, n=n)[None] * self.spectra
        features = torch.fft.irfft(spectrum, n=n)[..., : self.length] * gates[0].T[:, None, :]
        return (self.projection @ features.flatten(0, 1)).T[None]


class FftLoop(nn.Module):
    """One rfft of u, then channel by channel: product, irfft, gate and an accumulating GEMM. Smallest working set."""

    def __init__(self, filters: Filters, projection: Tensor) -> None:
        super().__init__()
        self.length = filters.shape[1]
        self.register_buffer("spectra", _spectra(filters))
        self.register_buffer("projection", projection.clone())

    def forward(self, u: Tensor, gates: Tensor) -> Tensor:
        n = 2 * self.length
        spectrum, out = torch.fft.rfft(u[0], n=n, dim=0), torch.zeros_like(u[0])
        for k in range(len(self.spectra)):
            features = torch.fft.irfft(spectrum * self.spectra[k][:, None], n=n, dim=0)[: self.length]
            out = torch.addmm(out, features * gates[0, :, k : k + 1], self.projection[k])
        return out[None]


class FftLoopTransposed(nn.Module):
    """`FftLoop` with time as the contiguous axis."""

    def __init__(self, filters: Filters, projection: Tensor) -> None:
        super().__init__()
        self.length = filters.shape[1]
        self.register_buffer("spectra", _spectra(filters))
        self.register_buffer("projection", projection.transpose(1, 2).contiguous())

    def forward(self, u: Tensor, gates: Tensor) -> Tensor:
        n, columns = 2 * self.length, u[0].T.contiguous()
        spectrum, out, rows = torch.fft.rfft(columns, n=n), torch.zeros_like(columns), gates[0].T.contiguous()
        for k in range(len(self.spectra)):
            features = torch.fft.irfft(spectrum * self.spectra[k], n=n)[:, : self.length]
            out = torch.addmm(out, self.projection[k], features * rows[k])
        return out.T[None]


class FftReal(nn.Module):
    """`FftBatched` with explicit padding and the complex product in real arithmetic: what exporters and fusers can take."""

    def __init__(self, filters: Filters, projection: Tensor) -> None:
        super().__init__()
        self.length = filters.shape[1]
        spectra = torch.view_as_real(_spectra(filters).T.contiguous())
        self.register_buffer("real", spectra[None, :, :, None, 0].contiguous())
        self.register_buffer("imaginary", spectra[None, :, :, None, 1].contiguous())
        self.register_buffer("projection", projection.flatten(0, 1).contiguous())

    def forward(self, u: Tensor, gates: Tensor) -> Tensor:
        padded = F.pad(u, (0, 0, 0, self.length))
        spectrum = torch.view_as_real(torch.fft.rfft(padded, dim=1))[:, :, None]
        product = torch.view_as_complex(_multiply(spectrum, self.real, self.imaginary))
        features = torch.fft.irfft(product, n=2 * self.length, dim=1)[:, : self.length]
        return (features * gates[..., None]).flatten(2) @ self.projection


class FftRealTransposed(nn.Module):
    """`FftReal` with time as the last axis, where every runtime looks for it."""

    def __init__(self, filters: Filters, projection: Tensor) -> None:
        super().__init__()
        self.length = filters.shape[1]
        spectra = torch.view_as_real(_spectra(filters))
        self.register_buffer("real", spectra[:, None, :, 0].contiguous())
        self.register_buffer("imaginary", spectra[:, None, :, 1].contiguous())
        self.register_buffer("projection", projection.flatten(0, 1).T.contiguous())

    def forward(self, u: Tensor, gates: Tensor) -> Tensor:
        padded = F.pad(u.transpose(1, 2), (0, self.length))
        spectrum = torch.view_as_real(torch.fft.rfft(padded))  # [1, d, L + 1, 2]
        product = torch.view_as_complex(_multiply(spectrum, self.real, self.imaginary))
        features = torch.fft.irfft(product, n=2 * self.length)[..., : self.length]
        gated = (features * gates[0].T[:, None, :]).flatten(0, 1)
        return (self.projection @ gated).T[None]


class Toeplitz(nn.Module):
    """GEMMs with (token, channel) x token Toeplitz matrices: one for short sequences, blocks of 128 tokens for long ones.

    Block i of a long sequence multiplies a window that ends with it and is a power of two blocks wide.
    """

    def __init__(self, filters: Filters, projection: Tensor, block: int = 128) -> None:
        super().__init__()
        self.channels, self.length = filters.shape
        self.block = self.length if self.length <= 2 * block else block
        self.groups = list(_groups(self.length // self.block))
        for first, last in self.groups:
            matrix = _toeplitz(filters, self.block, last * self.block)
            self.register_buffer(f"matrix{first}", torch.tensor(matrix, dtype=torch.float32))
        self.register_buffer("projection", projection.flatten(0, 1).contiguous())

    def forward(self, u: Tensor, gates: Tensor) -> Tensor:
        parts = [self._group(u, first, last) for first, last in self.groups]
        features = torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
        features = features.reshape(1, self.length, self.channels, u.shape[2])
        return (features * gates[..., None]).flatten(2) @ self.projection

    def _group(self, u: Tensor, first: int, last: int) -> Tensor:
        """Features of blocks first..last-1, [1, blocks * block * K, d]."""
        width = last * self.block
        padded = F.pad(u, (0, 0, width - (first + 1) * self.block, 0))
        starts = [(i - first) * self.block for i in range(first, last)]
        windows = torch.stack([padded[0, start : start + width] for start in starts])
        product = getattr(self, f"matrix{first}") @ windows
        return product.reshape(1, -1, u.shape[2])


class DftGemms(nn.Module):
    """The FFT of 2 L points as two stages of DFT GEMMs in real arithmetic (FlashFFTConv's factorisation).

    2 L = n1 n2; time t = t1 n2 + t2, frequency f = f1 + n1 f2. Features are packed in pairs as complex numbers, which is
    lawful because the filters are real; the twiddles and the filters' spectra are folded into the matrices of the second and
    third stage; the zero half of the input and the unused half of the output are not computed.
    """

    def __init__(self, filters: Filters, projection: Tensor) -> None:
        super().__init__()
        self.channels, self.length = filters.shape
        n = 2 * self.length
        self.n1 = 2 ** (int(math.log2(n)) // 2)
        self.n2, d = n // self.n1, projection.shape[1]
        for name, matrix in _dft_gemms(filters, self.n1, self.n2).items():
            self.register_buffer(name, torch.tensor(matrix, dtype=torch.float32))
        paired = projection.reshape(self.channels, 2, d // 2, d).transpose(0, 1).reshape(2, -1, d)
        self.register_buffer("projection", paired.contiguous())

    def forward(self, u: Tensor, gates: Tensor) -> Tensor:
        k, half, n1, n2 = self.channels, self.length // self.n2, self.n1, self.n2
        pairs = u.shape[2] // 2
        z = u.reshape(half, n2, 2, pairs).transpose(1, 2).reshape(2 * half, n2 * pairs)  # rows (t1, re/im)
        z = (self.forward1 @ z).reshape(n1, 2 * n2, pairs)  # [f1, (re/im, t2), pairs]
        z = self.forward2 @ z  # [f1, (re/im, f2), pairs]
        z = (self.inverse2 @ z).reshape(2 * n1, n2 * k * pairs)  # rows (f1, re/im), columns (t2, k, pair)
        features = (self.inverse1 @ z).reshape(2, self.length, k, pairs)  # [re/im, t, k, pair]
        gated = (features * gates[..., None]).reshape(2, self.length, k * pairs)
        return (gated @ self.projection).sum(0, keepdim=True)


SPELLINGS: dict[str, Callable[[Filters, Tensor], nn.Module]] = {
    "fft-batched": FftBatched,
    "fft-transposed": FftTransposed,
    "fft-loop": FftLoop,
    "fft-loop-transposed": FftLoopTransposed,
    "fft-real": FftReal,
    "fft-real-transposed": FftRealTransposed,
    "toeplitz": Toeplitz,
    "dft-gemms": DftGemms,
}


def _spectra(filters: Filters) -> Tensor:
    """rfft of each filter over 2 L points, computed in double: [K, L + 1] complex64."""
    return torch.fft.rfft(torch.tensor(filters, dtype=torch.float64), n=2 * filters.shape[1]).to(torch.complex64)


def _multiply(z: Tensor, real: Tensor, imaginary: Tensor) -> Tensor:
    """(z[..., 0] + i z[..., 1]) (real + i imaginary), real and imaginary parts on the last axis."""
    re, im = z[..., 0], z[..., 1]
    return torch.stack([re * real - im * imaginary, re * imaginary + im * real], dim=-1)


def _groups(blocks: int) -> list[tuple[int, int]]:
    """Block ranges that share a window: 0, 1, 2-3, 4-7, ..."""
    groups, first, reach = [], 0, 1
    while first < blocks:
        groups.append((first, min(reach, blocks)))
        first, reach = min(reach, blocks), 2 * reach
    return groups


def _toeplitz(filters: Filters, block: int, width: int) -> np.ndarray:
    """[block K, width]: entry ((t, k), s) is filter k at lag (width - block + t) - s."""
    channels, length = filters.shape
    lag = (width - block + np.arange(block))[:, None] - np.arange(width)[None, :]
    taps = np.where((lag >= 0) & (lag < length), filters[:, np.clip(lag, 0, length - 1)], 0.0)
    return taps.transpose(1, 0, 2).reshape(block * channels, width)


def _dft_gemms(filters: Filters, n1: int, n2: int) -> dict[str, np.ndarray]:
    """The real matrices of the four stages; see `DftGemms` for the index conventions."""
    n, half = n1 * n2, n1 // 2
    i1, i2 = np.arange(n1), np.arange(n2)
    w1 = np.exp(-2j * np.pi * np.outer(i1, i1[:half]) / n1)  # [f1, t1]
    w2 = np.exp(-2j * np.pi * np.outer(i2, i2) / n2)  # [f2, t2]
    twiddle = np.exp(-2j * np.pi * np.outer(i1, i2) / n)  # [f1, t2]
    spectra = np.fft.fft(filters, n=n).reshape(len(filters), n2, n1)  # [k, f2, f1]
    second = w2[None] * twiddle[:, None, :]  # [f1, f2, t2]
    third = np.einsum("tf,at,kfa->atkf", w2.conj(), twiddle.conj(), spectra) / n  # [f1, t2, k, f2]
    return {
        "forward1": _interleaved(w1),
        "forward2": _stacked(second),
        "inverse2": _stacked(third.reshape(n1, n2 * len(filters), n2)),
        "inverse1": _outer(w1.conj().T),
    }


def _interleaved(w: np.ndarray) -> np.ndarray:
    """[f1, t1] complex -> [(f1, re/im), (t1, re/im)] real."""
    blocks = np.array([[w.real, -w.imag], [w.imag, w.real]])  # [ri', ri, f1, t1]
    return blocks.transpose(2, 0, 3, 1).reshape(2 * w.shape[0], 2 * w.shape[1])


def _stacked(w: np.ndarray) -> np.ndarray:
    """[f1, rows, f2] complex -> [f1, (re/im, rows), (re/im, f2)] real."""
    return np.concatenate([_row(w.real, -w.imag), _row(w.imag, w.real)], axis=1)


def _outer(w: np.ndarray) -> np.ndarray:
    """[t1, f1] complex -> [(re/im, t1), (f1, re/im)] real."""
    blocks = np.array([[w.real, -w.imag], [w.imag, w.real]])  # [ri', ri, t1, f1]
    return blocks.transpose(0, 2, 3, 1).reshape(2 * w.shape[0], 2 * w.shape[1])


def _row(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.concatenate([left, right], axis=-1)
