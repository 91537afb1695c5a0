"""The Hankel filter bank: the leading eigenvectors of Z_ij = 2 / (s^3 - s), s = i + j, i, j = 1..L."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from essm_deploy.errors import BankError, UnavailableError
from essm_deploy.spectral import bank_cache
from essm_deploy.spectral.exact import exact_filters

Method = Literal["auto", "factor", "exact"]
Kind = Literal["exact", "factor", "embedded"]

# Filters are computed in blocks of this many and cut to what was asked for: a shorter bank is then a prefix of a longer
# one to the last bit, and both come from one cache file.
BLOCK = 32


@dataclass(frozen=True, eq=False)
class Bank:
    """Filters [K, L] and eigenvalues sigma [K], float64, sigma descending.

    kind says where they come from: "exact" (any number of digits, rounded), "factor" (float64, within 2e-8 of exact) or
    "embedded" (a foreign checkpoint's own, of unknown quality).
    """

    filters: NDArray[np.float64]
    sigma: NDArray[np.float64]
    kind: Kind

    @property
    def channels(self) -> int:
        """K."""
        return int(self.filters.shape[0])

    @property
    def length(self) -> int:
        """L, in tokens."""
        return int(self.filters.shape[1])

    @property
    def sha256(self) -> str:
        """Hex digest over the little-endian float64 bytes of the filters, C order."""
        return hashlib.sha256(np.ascontiguousarray(self.filters, dtype="<f8").tobytes()).hexdigest()

    def prefix(self, channels: int) -> Bank:
        """The first `channels` filters, as views. BankError beyond what there is."""
        if not 1 <= channels <= self.channels:
            raise BankError(f"a bank of {self.channels} filters has no prefix of {channels}; ask for 1..{self.channels}")
        return Bank(self.filters[:channels], self.sigma[:channels], self.kind)


def hankel_bank(length: int, channels: int, *, method: Method = "auto", cache: bool = True) -> Bank:
    """The first `channels` filters of length `length`: unit norm, orthonormal to 1e-12, largest entry positive.

    method "factor": float64 SVD of a factor of Z, a second or so. "exact": as many digits as it takes, rounded; a few
    seconds up to L = 1024, ten at 2048, then linear in L. "auto": factor where float64 holds every channel of the block
    of 32 within 2e-8 of the exact one (L >= 950 for 32 channels), exact otherwise. The result is kept in the user's cache
    directory (ESSM_CACHE overrides) unless `cache` is false.

    Raises BankError when there are no such filters or the method cannot resolve them, and UnavailableError when the
    method needs a package that is not installed.
    """
    _check_request(length, channels, method)
    block = min(length, -(-channels // BLOCK) * BLOCK)
    if method == "exact":
        return _exact(length, block, cache).prefix(channels)
    factor = _factor(length, cache)
    if method == "factor" and channels > factor.channels:
        raise BankError(f"float64 resolves {factor.channels} filters of length {length}, not {channels}; use method='exact'")
    needed = block if method == "auto" else channels
    return (factor if needed <= factor.channels else _exact(length, block, cache)).prefix(channels)


def _check_request(length: int, channels: int, method: str) -> None:
    if method not in ("auto", "factor", "exact"):
        raise BankError(f"unknown method {method!r} of the Hankel bank; expected auto, factor or exact")
    if length < 1 or channels < 1:
        raise BankError(f"a bank of {channels} filters of length {length} does not exist; both must be at least 1")
    if channels > length:
        raise BankError(f"there are {length} filters of length {length}, not {channels}; ask for at most {length} channels")


def _factor(length: int, cache: bool) -> Bank:
    """Every filter of this length that float64 resolves."""
    try:
        from essm_deploy.spectral import factor
    except ImportError as error:
        raise UnavailableError("the Hankel bank needs scipy; pip install 'essm-deploy[compiler]'") from error

    def compute() -> bank_cache.Filters:
        filters, sigma = factor.factor_filters(length)
        count = factor.resolved(sigma)
        return filters[:count], sigma[:count]

    filters, sigma = _load(f"factor-L{length}", None, length, compute, cache)
    return Bank(filters, sigma, "factor")


def _exact(length: int, channels: int, cache: bool) -> Bank:
    filters, sigma = _load(f"exact-L{length}-K{channels}", channels, length, lambda: exact_filters(length, channels), cache)
    return Bank(filters, sigma, "exact")


def _load(
    name: str, channels: int | None, length: int, compute: Callable[[], bank_cache.Filters], cache: bool
) -> bank_cache.Filters:
    stored = bank_cache.read(name, channels, length) if cache else None
    if stored is not None:
        return stored
    filters, sigma = compute()
    filters = _with_positive_peaks(filters)
    if cache:
        bank_cache.write(name, filters, sigma)
    return filters, sigma


def _with_positive_peaks(filters: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sign of an eigenvector is free: make its entry of largest magnitude positive."""
    peaks = np.take_along_axis(filters, np.argmax(np.abs(filters), axis=1)[:, None], axis=1)
    return np.ascontiguousarray(filters * np.sign(peaks))
