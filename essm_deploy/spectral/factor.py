"""Hankel eigenvectors in float64, from a factor of the matrix rather than from the matrix.

Z = B B^T, so the left singular vectors of B are the eigenvectors of Z and its singular values are their square roots:
18 orders of magnitude of eigenvalue become 9, which float64 holds.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

# Measured against the exact path at ten lengths from 48 to 16384, 44 channels each: the error of filter k (2-norm) is about
# 1e-18 / sqrt(sigma_k / sigma_1), rounding alone. At this ratio it is at most 1e-8, and it reaches 2e-8 at 2e-20.
RESOLVED_RATIO = 5e-20
# Quadrature of the integral over the decay r = exp(-e^-y), uniform in y. The error of the rule falls as
# exp(-pi^2 / spacing), 1e-35 here; cutting off y > ln L + 11 changes Z by 1e-15 of its smallest entry.
NODE_SPACING = 0.12
FIRST_NODE = -5.0
BEYOND_LENGTH = 11.0


def factor_filters(length: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Unit eigenvectors [n, length] and eigenvalues [n] of Z, descending, as far as float64 has any (n <= length).

    Z_ij = 2 / (s^3 - s) = integral over r in (0, 1) of (1 - r)^2 r^(i + j - 2), i, j = 1..length. The trailing vectors
    are noise: `resolved` counts the good ones.
    """
    left, singular, _ = scipy.linalg.svd(
        _quadrature_factor(length), full_matrices=False, overwrite_a=True, check_finite=False, lapack_driver="gesvd"
    )
    return np.ascontiguousarray(left.T), singular**2


def _quadrature_factor(length: int) -> NDArray[np.float64]:
    """B[t, q] = (1 - r_q) r_q^t sqrt(w_q), with w_q = r_q e^-y dy."""
    last = np.log(length) + BEYOND_LENGTH
    nodes, step = np.linspace(FIRST_NODE, last, int(np.ceil((last - FIRST_NODE) / NODE_SPACING)) + 1, retstep=True)
    rate = np.exp(-nodes)
    weight = np.sqrt(np.exp(-rate) * rate * step) * -np.expm1(-rate)
    factor: NDArray[np.float64] = weight * np.exp(-np.outer(np.arange(length), rate))
    return factor


def resolved(sigma: NDArray[np.float64]) -> int:
    """How many leading filters of `factor_filters` are within 2e-8 of the exact ones."""
    return int(np.count_nonzero(sigma > RESOLVED_RATIO * sigma[0]))
