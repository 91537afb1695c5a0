"""Poles of one linear system whose impulse responses are all filters of a bank: the eigensystem realization algorithm.

Juang and Pappa, "An Eigensystem Realization Algorithm", J. Guidance 8(5), 1985, with three changes: lags are log-spaced,
because the filters vary on a logarithmic scale of time; channels are weighted, because the higher ones carry more rounding
error; and only the poles are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from essm_deploy.spectral.allpass import Array

LAGS = 192
# Channel k enters with weight (sigma_k / sigma_1)^0.15. Unweighted, the noise of a float64 bank stops k = 32 at 1e-4 for
# L = 2048 and 2e-3 for L = 1024; weighted, at 2e-6 and 7e-6, and exact banks need four states fewer. 0.1 to 0.2 all work.
WEIGHT_EXPONENT = 0.15
# Poles that ask to grow are put where they decay by 10% over the length of the filter.
SLOWEST_DECAY = 0.1


@dataclass(frozen=True)
class Identification:
    """The singular value decomposition of the block Hankel matrix: poles of any order come from it without another one."""

    left: Array
    singular: Array
    right: Array
    shifted: Array
    length: int

    def poles(self, order: int) -> NDArray[np.complex128]:
        """`order` poles, or one fewer where that would split a pair; |pole| < 1, fastest first."""
        left, singular, right = self.left[:, :order], self.singular[:order], self.right[:order]
        balance = 1 / np.sqrt(singular)
        A = balance[:, None] * (left.T @ self.shifted @ right.T) * balance
        poles = np.linalg.eigvals(A).astype(np.complex128)
        size, limit = np.abs(poles), np.exp(-SLOWEST_DECAY / self.length)
        poles = poles * np.where(size > limit, limit / np.maximum(size, limit), 1.0)
        return poles[np.argsort(np.abs(poles), kind="stable")]

    def first_order(self, tolerance: float) -> int:
        """An order below which the tolerance is out of reach: that of the singular values."""
        return max(1, int(np.count_nonzero(self.singular > tolerance * self.singular[0])) - 4)


def identify(filters: Array, sigma: Array) -> Identification:
    """Decompose H0[(k, i), j] = v_k w_i w_j phi_k(i + j) for [K, L] filters with eigenvalues sigma [K].

    w is the square root of the spacing of the lags, v the weight of the channel.
    """
    channels, length = filters.shape
    filters = filters * _channel_weights(sigma)[:, None]
    lags = np.unique(np.round(np.geomspace(1, length // 2, LAGS)).astype(np.int64)) - 1
    middles = (lags[1:] + lags[:-1]) / 2
    edges = np.concatenate([[-0.5], middles, [1.5 * lags[-1] - 0.5 * lags[-2]]])
    weight = np.sqrt(np.outer(np.diff(edges), np.diff(edges)))
    sums = lags[:, None] + lags
    block, shifted = ((filters[:, sums + shift] * weight).reshape(channels * len(lags), len(lags)) for shift in (0, 1))
    left, singular, right = scipy.linalg.svd(block, full_matrices=False, check_finite=False)
    return Identification(left, singular, right, shifted, length)


def _channel_weights(sigma: Array) -> Array:
    """A foreign bank may come without usable eigenvalues: then all channels count alike."""
    if not (np.isfinite(sigma).all() and (sigma > 0).all()):
        return np.ones(len(sigma))
    weights: Array = (sigma / sigma.max()) ** WEIGHT_EXPONENT
    return weights
